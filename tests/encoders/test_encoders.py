"""Encoders by name, by path, `identity` and `convnet`; tails; what is said when an encoder cannot be had."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from rowssl.core.errors import InputError
from rowssl.encoders import dino, weights
from rowssl.encoders.base import available_encoders, best_available, build_encoder
from rowssl.encoders.tails import AdapterTail, BlockTail
from rowssl.encoders.vit import Architecture, ViT
from rowssl.encoders.weights import PUBLISHED


def vit_file(path: Path, architecture: Architecture, seed: int = 0) -> Path:
    """A file of random half-precision weights with the names of a published checkpoint."""
    generator = torch.Generator().manual_seed(seed)
    with torch.device("meta"):
        shapes = {name: value.shape for name, value in ViT(architecture).state_dict().items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({n: (torch.randn(s, generator=generator) * 0.1).half() for n, s in shapes.items()}, path)
    return path


SMALL = Architecture(patch=8, dim=64, depth=3, heads=1, hidden=128, grid=4)


def test_a_published_name_end_to_end(empty_machine: Path) -> None:
    vit_file(empty_machine / "dino_vits16.safetensors", PUBLISHED["dino_vits16"].architecture)
    encoder = build_encoder("dino_vits16", image_size=64)
    assert encoder.name == "dino_vits16"
    assert (encoder.trunk_shape, encoder.out_dim) == ((17, 384), 384)
    assert (encoder.image_size, encoder.resize) == (64, 73)
    assert isinstance(encoder.tail, BlockTail)
    trained = {name for name, p in encoder.tail.named_parameters() if p.requires_grad}
    assert trained
    assert all(name.startswith("blocks.0.") for name in trained)  # block 11 alone, the final norm stays frozen
    rows = {row.spec: row for row in available_encoders()}
    assert rows["dino_vits16"].works
    assert not rows["dino_vitb16"].works
    assert "hf download" in rows["dino_vitb16"].how
    assert best_available(True) == (
        "dino_vits16",
        "dino_vitb16, the encoder of the paper, is not on this machine, but dino_vits16 is.",
    )


def test_default_sizes_are_the_paper_s(tmp_path: Path) -> None:
    encoder = build_encoder(str(vit_file(tmp_path / "vit.safetensors", SMALL)))
    assert (encoder.image_size, encoder.resize, encoder.trunk_shape) == (224, 256, (785, 64))
    assert encoder.mean == (0.485, 0.456, 0.406)
    assert encoder.std == (0.229, 0.224, 0.225)


@pytest.mark.parametrize("tail", ["auto", "blocks:2", "blocks:3", "adapter", "adapter:16"])
def test_tails_of_a_vit_file(tail: str, tmp_path: Path) -> None:
    path = vit_file(tmp_path / "vit.safetensors", SMALL)
    encoder = build_encoder(str(path), tail=tail, image_size=32)
    pixels = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    vit = ViT(SMALL)
    vit.load_state_dict({name: value.float() for name, value in load_file(path).items()})
    feature = encoder.forward(pixels)
    assert (feature - vit(pixels)).abs().max() <= 1e-5
    feature.sum().backward()
    assert all(p.grad is None for p in encoder.trunk.parameters())
    assert any(p.grad is not None for p in encoder.tail.parameters())
    key = copy.deepcopy(encoder.tail)
    assert key.out_dim == encoder.out_dim == 64
    torch.testing.assert_close(key(encoder.trunk_forward(pixels)), feature, rtol=0, atol=0)


def test_fingerprints_tell_trunks_apart(tmp_path: Path) -> None:
    first = str(vit_file(tmp_path / "a.safetensors", SMALL, seed=0))
    other = str(vit_file(tmp_path / "b.safetensors", SMALL, seed=1))

    def fingerprint(path: str, tail: str = "blocks:1", size: int = 32) -> str:
        return build_encoder(path, tail=tail, image_size=size).fingerprint

    same = fingerprint(first)
    assert len(same) == 64
    assert same == fingerprint(first)
    changed = [
        fingerprint(other),
        fingerprint(first, "blocks:2"),
        fingerprint(first, "adapter"),
        fingerprint(first, size=64),
    ]
    assert len({same, *changed}) == 5


def test_identity_starts_as_the_identity() -> None:
    before = torch.get_rng_state()
    encoder = build_encoder("identity", embedding_dim=20, seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    assert (encoder.trunk_shape, encoder.out_dim, encoder.image_size) == ((20,), 20, 0)
    rows = torch.randn(5, 20, generator=torch.Generator().manual_seed(0))
    assert torch.equal(encoder.forward(rows), rows)
    encoder.forward(rows).square().sum().backward()
    moved = {name for name, p in encoder.tail.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
    assert moved == {"fc2.weight", "fc2.bias"}  # the zero layer moves first, and lets the others move after it
    other = build_encoder("identity", embedding_dim=21)
    assert other.fingerprint != encoder.fingerprint


def test_adapter_formula_and_seed() -> None:
    tail = AdapterTail(6, 4, seed=1)
    torch.nn.init.normal_(tail.fc2.weight, generator=torch.Generator().manual_seed(2))
    x = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))
    centred = (x - x.mean(1, keepdim=True)) / (x.var(1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    expected = x + torch.nn.functional.gelu(centred @ tail.fc1.weight.T) @ tail.fc2.weight.T
    torch.testing.assert_close(tail(x), expected)
    assert torch.equal(AdapterTail(6, 4, seed=1).fc1.weight, tail.fc1.weight)
    assert not torch.equal(AdapterTail(6, 4, seed=2).fc1.weight, tail.fc1.weight)
    assert AdapterTail(2048).fc1.out_features == 512


@pytest.mark.parametrize("size", [8, 31, 32, 48])
def test_convnet_is_decided_by_its_seed_and_keeps_rows_apart(size: int) -> None:
    before = torch.get_rng_state()
    encoder, twin, other = (build_encoder("convnet", image_size=size, seed=seed) for seed in (4, 4, 5))
    assert torch.equal(torch.get_rng_state(), before)
    assert (encoder.trunk_shape, encoder.out_dim) == ((3, size, size), 256)
    assert encoder.fingerprint == other.fingerprint  # no weights in the trunk
    batch = np.random.default_rng(0).integers(0, 256, (4, size, size, 3), dtype=np.uint8)
    pixels = encoder.normalise(batch)
    encoder.tail.train()
    feature = encoder.forward(pixels)
    assert torch.equal(feature, twin.forward(pixels))
    assert not torch.allclose(feature, other.forward(pixels))
    alone = torch.cat([encoder.forward(row[None]) for row in pixels])
    torch.testing.assert_close(alone, feature, rtol=1e-4, atol=1e-5)
    assert 0.1 < feature.std() < 10  # the signal neither dies nor explodes
    feature.square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in encoder.tail.parameters())


def test_convnet_learns() -> None:
    """Two classes that differ by the side of a bright half: a few steps separate them."""
    encoder = build_encoder("convnet", image_size=16, seed=0)
    generator = np.random.default_rng(0)
    batch = generator.integers(0, 120, (32, 16, 16, 3), dtype=np.uint8)
    label = torch.arange(32) % 2
    batch[::2, :, :8] += 100
    batch[1::2, :, 8:] += 100
    head = torch.nn.Linear(256, 2)
    torch.nn.init.zeros_(head.weight)
    optimiser = torch.optim.SGD([*encoder.tail.parameters(), *head.parameters()], lr=0.05, momentum=0.9)
    for _ in range(20):
        loss = torch.nn.functional.cross_entropy(head(encoder.forward(encoder.normalise(batch))), label)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss.item() < 0.3


def test_preprocess_is_one_row_of_normalise() -> None:
    encoder = build_encoder("convnet", image_size=16)
    batch = np.random.default_rng(0).integers(0, 256, (2, 16, 16, 3), dtype=np.uint8)
    batch.flags.writeable = False
    rows = torch.stack([encoder.preprocess(Image.fromarray(picture)) for picture in batch])
    assert rows.dtype == torch.float32
    assert torch.equal(rows, encoder.normalise(batch))
    assert torch.equal(rows, encoder.normalise(torch.from_numpy(batch.copy())))
    np.testing.assert_allclose(rows[1, 2, 3, 4], (batch[1, 3, 4, 2] / 255 - 0.5) / 0.25, atol=1e-5)
    with pytest.raises(ValueError, match="16 px crops"):
        encoder.preprocess(Image.new("RGB", (17, 16)))


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        ("dino_vitb61", {}, "neither a file or folder nor one of dino_vitb16"),
        ("dino_vitb16", {}, "hf download timm/vit_base_patch16"),
        ("identity", {}, "takes a matrix of embeddings"),
        ("identity", {"embedding_dim": 4, "tail": "blocks:1"}, "use adapter"),
        ("convnet", {"tail": "adapter"}, "the whole network trains"),
        ("convnet", {"image_size": 4}, "8 is the least"),
        ("convnet", {"tail": "blocks:x"}, "--tail blocks:x is not one of"),
        ("convnet", {"tail": "stage:1"}, "--tail stage:1 is not one of"),
        ("FILE", {"tail": "stage"}, "use blocks:K or adapter"),
        ("FILE", {"tail": "blocks:9"}, "more blocks than the 3"),
        ("FILE", {"image_size": 36}, "not a multiple of the 8 px patches"),
        ("FILE", {"sha256": "0" * 64}, "does not have sha256 000"),
    ],
)
def test_errors_are_one_sentence(spec: str, options: dict, message: str, empty_machine: Path, tmp_path: Path) -> None:
    if spec == "FILE":
        spec = str(vit_file(tmp_path / "vit.safetensors", SMALL))
    with pytest.raises(InputError, match=message) as caught:
        build_encoder(spec, **options)
    assert "\n" not in str(caught.value)


def test_without_the_package_that_fetches_it_is_named(empty_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "find_spec", lambda name: None)
    with pytest.raises(
        InputError, match=r"pip install 'rowssl\[hf\]' to be fetched, or .*dino_deitsmall16_pretrain.pth in "
    ):
        build_encoder("dino_vits16")


def test_what_is_chosen_without_being_asked_is_never_fetched(
    empty_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(weights, "hub_answers", lambda name: pytest.fail(f"huggingface.co was asked for {name}"))
    assert best_available(False)[0] == "identity"
    assert best_available(True)[0] == "efficientnet_lite0"
    working = [row.spec for row in available_encoders() if row.works]
    assert working == ["efficientnet_lite0", "convnet", "gradients", "pixels", "identity"]


def test_every_published_encoder_has_a_help_line() -> None:
    assert list(dino.NAMES) == list(PUBLISHED)
