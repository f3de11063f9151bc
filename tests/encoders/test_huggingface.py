"""Encoders from Hugging Face folders, against transformers itself: tiny random models, and the real ResNet-50."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rowssl.core.errors import InputError
from rowssl.encoders.base import build_encoder
from rowssl.encoders.vit import Architecture, ViT

transformers = pytest.importorskip("transformers")

TOKENS: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
CONFIGS: dict[str, Any] = {
    "resnet": lambda: transformers.ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32, 64], depths=[1, 2, 2], layer_type="bottleneck"
    ),
    "convnext": lambda: transformers.ConvNextConfig(hidden_sizes=[16, 32, 64], depths=[1, 1, 2], num_stages=3),
    "vit": lambda: transformers.ViTConfig(**TOKENS, intermediate_size=96, image_size=32, patch_size=8),
    "dinov2": lambda: transformers.Dinov2Config(**TOKENS, image_size=32, patch_size=8),
    "registers": lambda: transformers.Dinov2WithRegistersConfig(**TOKENS, image_size=32, patch_size=8),
    "swiglu": lambda: transformers.Dinov2Config(**TOKENS, image_size=32, patch_size=8, use_swiglu_ffn=True),
    "dinov3": lambda: transformers.DINOv3ViTConfig(
        **TOKENS, intermediate_size=96, image_size=32, patch_size=8, num_register_tokens=4
    ),
    "clip_vision": lambda: transformers.CLIPVisionConfig(**TOKENS, intermediate_size=96, image_size=32, patch_size=8),
    "clip": lambda: transformers.CLIPConfig(
        vision_config={**TOKENS, "intermediate_size": 96, "image_size": 32, "patch_size": 8},
        text_config={**TOKENS, "intermediate_size": 96, "vocab_size": 50},
    ),
}
CONVOLUTIONAL, WITH_BLOCKS = ["resnet", "convnext"], ["vit", "dinov2", "registers", "clip_vision", "clip"]


def tiny(kind: str, folder: Path) -> Any:
    """A random model of a kind, saved into a folder and returned; buffers and gains are random too."""
    generator = torch.Generator().manual_seed(7)
    model = transformers.AutoModel.from_config(CONFIGS[kind]()).eval()
    for name, value in model.state_dict().items():
        if value.is_floating_point() and "position_ids" not in name:
            noise = torch.randn(value.shape, generator=generator)
            centre = 1.0 if value.ndim == 1 and "bias" not in name and "mean" not in name else 0.0
            value.copy_((noise * 0.1 + centre).abs() if "running_var" in name else noise * 0.1 + centre)
    model.save_pretrained(folder)
    return model


def random_pixels(size: int = 32, batch: int = 4) -> Tensor:
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(3))


@torch.no_grad()
def reference(model: Any, kind: str, pixels: Tensor) -> Tensor:
    """The pooled feature as transformers computes it."""
    if kind in {"vit", "clip", "clip_vision"}:
        model = model.vision_model if kind == "clip" else model
        output = model(pixel_values=pixels, interpolate_pos_encoding=True)
        return output.last_hidden_state[:, 0] if kind == "vit" else output.pooler_output
    output = model(pixel_values=pixels)
    return output.pooler_output.flatten(1) if kind in CONVOLUTIONAL else output.last_hidden_state[:, 0]


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found.detach() - expected).abs().max() / expected.abs().max())


CASES = (
    [(kind, "adapter") for kind in CONFIGS]
    + [(kind, "stage") for kind in CONVOLUTIONAL]
    + [(kind, tail) for kind in WITH_BLOCKS for tail in ("blocks:1", "blocks:2")]
)


@pytest.mark.parametrize(("kind", "tail"), CASES)
def test_trunk_and_tail_start_as_the_pretrained_model(kind: str, tail: str, tmp_path: Path) -> None:
    model = tiny(kind, tmp_path)
    encoder = build_encoder(f"hf:{tmp_path}", tail=tail, image_size=48)  # not the size of pretraining
    pixels = random_pixels(48)
    cached = encoder.trunk_forward(pixels)
    assert cached.shape == (4, *encoder.trunk_shape)
    assert len(encoder.trunk_shape) == {"adapter": 1, "stage": 3}.get(tail, 2)
    assert encoder.out_dim == 64
    feature = encoder.tail(cached)
    assert relative(feature, reference(model, kind, pixels)) <= 1e-5
    assert not cached.requires_grad
    assert not any(p.requires_grad for p in encoder.trunk.parameters())

    # gradients reach the tail, and training mode keeps rows apart and batch statistics out
    twin = copy.deepcopy(encoder.tail)
    encoder.tail.train()
    encoder.trunk.train()
    buffers = {name: value.clone() for name, value in encoder.tail.state_dict().items()}
    encoder.tail(cached).square().sum().backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in encoder.tail.parameters())
    alone = torch.cat([encoder.tail(encoder.trunk_forward(row[None])) for row in pixels])
    torch.testing.assert_close(alone, feature, rtol=1e-4, atol=1e-4)
    for name, value in encoder.tail.state_dict().items():
        assert torch.equal(value, buffers[name])
    with torch.no_grad():
        for parameter in encoder.tail.parameters():
            parameter.add_(0.1)
    torch.testing.assert_close(twin(cached), feature, rtol=0, atol=0)


def test_a_trunk_takes_a_few_pictures_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("vit", tmp_path)
    encoder = build_encoder(f"hf:{tmp_path}", tail="adapter", image_size=48)
    pixels, passes = random_pixels(48, batch=7), []
    encoder.trunk.body.model.register_forward_hook(lambda *_, **__: passes.append(1))
    monkeypatch.setattr("rowssl.encoders.vit.TOKENS", 3 * 36)  # three pictures of 6 x 6 patches
    assert relative(encoder.tail(encoder.trunk_forward(pixels)), reference(model, "vit", pixels)) <= 1e-5
    assert len(passes) == 3


def test_automatic_tails(tmp_path: Path) -> None:
    shapes = {}
    for kind in CONFIGS:
        tiny(kind, tmp_path / kind)
        shapes[kind] = len(build_encoder(str(tmp_path / kind), image_size=32).trunk_shape)  # a plain path will do
    assert shapes == {kind: 2 if kind in WITH_BLOCKS else 1 for kind in CONFIGS}


@pytest.mark.parametrize("kind", ["vit", "dinov2", "registers"])
def test_our_vit_gives_the_numbers_of_transformers(kind: str, tmp_path: Path) -> None:
    """The names on disk, mapped here by hand, loaded strictly into `ViT`."""
    model = tiny(kind, tmp_path)
    disk = load_file(tmp_path / "model.safetensors")
    names = {
        "embeddings.cls_token": "cls_token",
        "embeddings.mask_token": "mask_token",
        "embeddings.register_tokens": "register_tokens",
        "embeddings.position_embeddings": "pos_embed",
        "embeddings.patch_embeddings.projection": "patch_embed.proj",
        "layernorm": "norm",
        "encoder.layer": "blocks",
        "attention.output.dense": "attn.proj",
        "layernorm_before": "norm1",
        "layernorm_after": "norm2",
        "intermediate.dense": "mlp.fc1",
        "output.dense": "mlp.fc2",
        "layer_scale1.lambda1": "ls1.gamma",
        "layer_scale2.lambda1": "ls2.gamma",
    }
    state: dict[str, Tensor] = {}
    for name, value in disk.items():
        if "pooler" in name or ".attention.attention." in name:
            continue
        for old, new in names.items():
            name = re.sub(rf"(?<![a-z_.]){re.escape(old)}(?![a-z_])|(?<=\.){re.escape(old)}(?=\.|$)", new, name)
        state[name] = value
    for i in range(3):
        for part in ("weight", "bias"):
            three = [disk[f"encoder.layer.{i}.attention.attention.{q}.{part}"] for q in ("query", "key", "value")]
            state[f"blocks.{i}.attn.qkv.{part}"] = torch.cat(three)
    second, registers = kind != "vit", 4 if kind == "registers" else 0
    architecture = Architecture(
        patch=8, dim=64, depth=3, heads=4, hidden=96 if kind == "vit" else 256, grid=4, layer_scale=second,
        mask_token=second, registers=registers, norm_eps=model.config.layer_norm_eps,
        position_offset=0.0, position_antialias=registers > 0,
    )  # fmt: skip
    vit = ViT(architecture)
    vit.load_state_dict(state, strict=True)
    for size in (32, 48):  # transformers resizes positions to a size, which is our offset 0
        pixels = random_pixels(size)
        assert (vit(pixels) - reference(model, kind, pixels)).abs().max() <= 1e-5


def test_preprocessing_comes_from_the_folder(tmp_path: Path) -> None:
    tiny("vit", tmp_path)
    facts = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.25, 0.5], "size": {"shortest_edge": 48}}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**facts, "crop_size": {"height": 32, "width": 32}}))
    encoder = build_encoder(str(tmp_path))
    assert (encoder.image_size, encoder.resize) == (32, 48)
    batch = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), dtype=np.uint8)
    expected = (batch / 255 - facts["image_mean"]) / facts["image_std"]
    np.testing.assert_allclose(encoder.normalise(batch).numpy(), expected.transpose(0, 3, 1, 2), atol=1e-5)
    assert build_encoder(str(tmp_path), image_size=64).resize == 96


def test_fingerprint_follows_weights_preprocessing_and_split(tmp_path: Path) -> None:
    tiny("resnet", tmp_path)

    def fingerprint(tail: str = "adapter", size: int = 32) -> str:
        return build_encoder(str(tmp_path), tail=tail, image_size=size).fingerprint

    first = fingerprint()
    assert fingerprint() == first == fingerprint("adapter:16")  # the adapter is no part of the trunk
    assert len({first, fingerprint("stage"), fingerprint(size=64)}) == 3
    state = load_file(tmp_path / "model.safetensors")
    name = next(name for name in state if name.endswith("running_mean"))
    state[name][0] += 1e-3
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert fingerprint() != first


@pytest.mark.parametrize(
    ("kind", "tail", "size", "message"),
    [
        ("resnet", "blocks:1", 32, "use stage or adapter"),
        ("vit", "stage", 32, "use blocks:K or adapter"),
        ("vit", "blocks:4", 32, "more blocks than the 3"),
        ("vit", "auto", 30, "--image-size 30 is not a multiple of the 8 px patches"),
        ("dinov3", "blocks:1", 32, "use adapter"),
        ("swiglu", "blocks:1", 32, "use adapter"),
    ],
)
def test_what_does_not_fit_is_refused(kind: str, tail: str, size: int, message: str, tmp_path: Path) -> None:
    tiny(kind, tmp_path)
    with pytest.raises(InputError, match=message):
        build_encoder(str(tmp_path), tail=tail, image_size=size)


def test_broken_folders_are_refused_in_one_sentence(tmp_path: Path, empty_machine: Path) -> None:
    with pytest.raises(InputError, match=r"no readable config\.json"):
        build_encoder(str(tmp_path))
    tiny("vit", tmp_path / "vit")
    config = json.loads((tmp_path / "vit" / "config.json").read_text())
    state = load_file(tmp_path / "vit" / "model.safetensors")
    del state["layernorm.weight"]
    save_file(state, tmp_path / "vit" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"lacks weights of its own model, `layernorm\.weight`"):
        build_encoder(str(tmp_path / "vit"))
    (tmp_path / "vit" / "model.safetensors").unlink()
    torch.save(state, tmp_path / "vit" / "pytorch_model.bin")  # a pickle, which is not read
    with pytest.raises(InputError, match="cannot be loaded as an encoder"):
        build_encoder(str(tmp_path / "vit"))
    (tmp_path / "vit" / "config.json").write_text(json.dumps({**config, "model_type": "bert"}))
    with pytest.raises(InputError, match="holds a `bert` model"):
        build_encoder(str(tmp_path / "vit"))
    with pytest.raises(InputError, match="hf download facebook/dinov2-base"):
        build_encoder("hf:facebook/dinov2-base")


@pytest.mark.parametrize(
    "content",
    [
        '{"size": {"shortest_edge": 1000000000}}',
        '{"size": 4}',
        '{"crop_pct": 1e-6}',
        '{"crop_pct": NaN}',
        '{"crop_pct": "x"}',
        '{"size": 4000, "crop_size": 20}',
        '{"image_mean": [0.5, 0.5]}',
        '{"image_mean": "abc"}',
        '{"image_std": [0.5, 0.5, 0]}',
        '{"image_std": [0.5, 0.5, Infinity]}',
        '{"rescale_factor": null}',
        '{"rescale_factor": -1}',
    ],
)
def test_preprocessing_that_no_encoder_has_is_refused(content: str, tmp_path: Path) -> None:
    tiny("resnet", tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(content)
    with pytest.raises(InputError, match=r"preprocessor_config\.json has a \w+ that no encoder has"):
        build_encoder(str(tmp_path))


@pytest.mark.parametrize("content", ["[]", "7", "{", "[" * 10**5, "\udcff"])
def test_files_that_hold_no_object_count_as_missing(content: str, tmp_path: Path) -> None:
    tiny("resnet", tmp_path)
    (tmp_path / "preprocessor_config.json").write_bytes(content.encode(errors="surrogateescape"))
    assert build_encoder(str(tmp_path)).image_size == 224
    (tmp_path / "config.json").write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(InputError, match=r"no readable config\.json"):
        build_encoder(str(tmp_path))


def test_loading_leaves_the_global_random_state_alone(tmp_path: Path) -> None:
    tiny("vit", tmp_path)
    before = torch.get_rng_state()
    build_encoder(str(tmp_path))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.shared
def test_the_real_resnet(shared_dir: Path) -> None:
    folder = shared_dir / "encoders" / "resnet50-imagenet"
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    batch = np.random.default_rng(0).integers(0, 256, (2, 96, 96, 3), dtype=np.uint8)
    for tail, shape in (("adapter", (2048,)), ("stage", (1024, 6, 6))):
        encoder = build_encoder(str(folder), tail=tail, image_size=96)
        assert (encoder.trunk_shape, encoder.out_dim) == (shape, 2048)
        assert (encoder.image_size, encoder.resize) == (96, 109)
        pixels = encoder.normalise(batch)
        mean = np.array([0.48502, 0.457957, 0.407604]) * 255
        np.testing.assert_allclose(pixels.numpy(), (batch - mean).transpose(0, 3, 1, 2), atol=1e-3)
        assert not any(isinstance(module, nn.BatchNorm2d) for module in encoder.trunk.modules())
        with torch.no_grad():
            expected = model(pixel_values=pixels).pooler_output.flatten(1)
            assert relative(encoder.tail(encoder.trunk_forward(pixels)), expected) <= 1e-4
