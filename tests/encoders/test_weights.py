"""Weight files: renames of timm's, strict loading, sums, the lock file, and what is refused."""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from rowssl.core.errors import InputError
from rowssl.encoders import weights
from rowssl.encoders.vit import Architecture, ViT

PLAIN = Architecture(patch=8, dim=128, depth=2, heads=2, hidden=256, grid=4)
SECOND = Architecture(patch=8, dim=128, depth=2, heads=2, hidden=256, grid=4, layer_scale=True, mask_token=True)
REGISTERS = Architecture(
    patch=8,
    dim=128,
    depth=2,
    heads=2,
    hidden=256,
    grid=4,
    layer_scale=True,
    mask_token=True,
    registers=4,
    position_offset=0.0,
    position_antialias=True,
)


def random_state(architecture: Architecture, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    with torch.device("meta"):
        shapes = {name: value.shape for name, value in ViT(architecture).state_dict().items()}
    return {name: torch.randn(shape, generator=generator) * 0.2 for name, shape in shapes.items()}


def as_timm(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """What timm's converter writes for a published checkpoint."""
    state = dict(state)
    state.pop("mask_token", None)
    if "register_tokens" in state:
        state["reg_token"] = state.pop("register_tokens")
        state["cls_token"] = state["cls_token"] + state["pos_embed"][:, :1]
        state["pos_embed"] = state["pos_embed"][:, 1:].contiguous()
    return state


@pytest.mark.parametrize("architecture", [PLAIN, SECOND, REGISTERS], ids=["dino", "dinov2", "registers"])
@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_published_and_timm_files_give_the_same_features(
    architecture: Architecture, suffix: str, tmp_path: Path
) -> None:
    state = random_state(architecture)
    features = []
    for name, content in (("published", state), ("timm", as_timm(state))):
        path = tmp_path / f"{name}{suffix}"
        save_file(content, path) if suffix == ".safetensors" else torch.save(content, path)
        vit = weights.load_vit(path)
        assert vit.architecture == architecture
        weights.load_vit(path, architecture)
        pixels = torch.randn(2, 3, 40, 40, generator=torch.Generator().manual_seed(1))
        features.append(vit(pixels))
    reference = ViT(architecture)
    reference.load_state_dict(state, strict=True)
    torch.testing.assert_close(features[0], reference(pixels), rtol=0, atol=0)
    torch.testing.assert_close(features[1], features[0], rtol=0, atol=1e-5)


def test_half_precision_files_become_float32_and_heads_are_dropped(tmp_path: Path) -> None:
    state = {name: value.half() for name, value in random_state(PLAIN).items()}
    save_file({**state, "head.weight": torch.zeros(10, 128), "head.bias": torch.zeros(10)}, tmp_path / "a.safetensors")
    vit = weights.load_vit(tmp_path / "a.safetensors")
    assert {value.dtype for value in vit.state_dict().values()} == {torch.float32}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fc_norm.weight": torch.zeros(128)}, r"`fc_norm.weight` is \(128,\) where nothing"),
        ({"blocks.1.mlp.fc1.bias": None}, r"`blocks.1.mlp.fc1.bias` is missing where \(256,\)"),
        ({"norm.bias": torch.zeros(64)}, r"`norm.bias` is \(64,\) where \(128,\)"),
        ({"cls_token": None}, "no `cls_token`"),
        ({"pos_embed": torch.zeros(1, 24, 128)}, "24 positions"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_in_one_sentence(change: dict, message: str, tmp_path: Path) -> None:
    state = {name: value for name, value in {**random_state(PLAIN), **change}.items() if value is not None}
    save_file(state, tmp_path / "odd.safetensors")
    with pytest.raises(InputError, match=message) as caught:
        weights.load_vit(tmp_path / "odd.safetensors")
    assert "odd.safetensors" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_pickled_objects_are_never_loaded(tmp_path: Path) -> None:
    torch.save({"args": argparse.Namespace(a=1), **random_state(PLAIN)}, tmp_path / "full.pth")
    with pytest.raises(InputError, match="cannot be read as weights"):
        weights.read_state(tmp_path / "full.pth")
    torch.save({"teacher": random_state(PLAIN)}, tmp_path / "nested.pth")
    with pytest.raises(InputError, match="flat dictionary"):
        weights.read_state(tmp_path / "nested.pth")
    (tmp_path / "torn.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{")
    with pytest.raises(InputError, match="cannot be read as weights"):
        weights.read_state(tmp_path / "torn.safetensors")


def test_offline_error_says_what_to_run_and_what_works(empty_machine: Path) -> None:
    with pytest.raises(InputError) as caught:
        weights.fetch("dino_vitb16")
    text = str(caught.value)
    assert "hf download timm/vit_base_patch16_224.dino model.safetensors" in text
    assert "dino_vitbase16_pretrain.pth" in text
    assert str(empty_machine) in text
    assert "convnet" in text
    assert "\n" not in text


def test_pinned_and_given_sums_are_checked(empty_machine: Path) -> None:
    empty_machine.mkdir(parents=True)
    path = empty_machine / "dino_vitb16.safetensors"
    path.write_bytes(b"not the published file")
    with pytest.raises(InputError, match="93181583427d6de3"):
        weights.fetch("dino_vitb16")
    right = hashlib.sha256(path.read_bytes()).hexdigest()
    assert weights.fetch("dino_vitb16", sha256=right.upper()) == path
    with pytest.raises(InputError, match="sha256"):
        weights.fetch("dino_vitb16", sha256="0" * 64)


def test_an_unpinned_file_is_locked_when_first_seen(empty_machine: Path) -> None:
    assert weights.PUBLISHED["dino_vits16"].sha256 is None
    empty_machine.mkdir(parents=True)
    path = empty_machine / "dino_deitsmall16_pretrain.pth"
    path.write_bytes(b"one")
    assert weights.fetch("dino_vits16") == path
    locked = json.loads((empty_machine / "sha256.json").read_text())
    assert locked == {"dino_vits16.pth": hashlib.sha256(b"one").hexdigest()}
    assert weights.fetch("dino_vits16") == path
    path.write_bytes(b"two")
    with pytest.raises(InputError, match="remove `dino_vits16"):
        weights.fetch("dino_vits16")


def test_a_damaged_blob_of_the_hugging_face_cache_is_noticed(empty_machine: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "hub" / "models--timm--vit_small_patch16_224.dino" / "snapshots" / "abc"
    blobs = snapshot.parents[1] / "blobs"
    for folder in (snapshot, blobs, snapshot.parents[1] / "refs"):
        folder.mkdir(parents=True)
    (snapshot.parents[1] / "refs" / "main").write_text("abc")
    blob = blobs / hashlib.sha256(b"whole").hexdigest()
    blob.write_bytes(b"whole")
    (snapshot / "model.safetensors").symlink_to(blob)
    assert weights.locate("dino_vits16") == snapshot / "model.safetensors"
    blob.write_bytes(b"damaged")
    with pytest.raises(InputError, match="fetch it again"):
        weights.fetch("dino_vits16")
    blob.write_bytes(b"whole")
    assert weights.fetch("dino_vits16") == snapshot / "model.safetensors"


def test_torch_hub_files_are_found(empty_machine: Path, tmp_path: Path) -> None:
    path = tmp_path / "torch" / "hub" / "checkpoints" / "dinov2_vits14_reg4_pretrain.pth"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"weights")
    assert weights.locate("dinov2_vits14_reg") == path
    assert weights.locate("dinov2_vits14") is None
