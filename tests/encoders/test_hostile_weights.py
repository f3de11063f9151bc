"""Weights from a stranger: each is refused in one sentence that names it, before anything is made as large as it says."""

from __future__ import annotations

import json
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from rowssl.core.errors import InputError
from rowssl.encoders.base import build_encoder
from rowssl.encoders.vit import Architecture, ViT
from rowssl.encoders.weights import load_vit, read_state

# No machine holds so many numbers: whoever makes them fails with something else than a refusal.
BEYOND = 2**45
SMALL = Architecture(patch=8, dim=64, depth=2, heads=1, hidden=64, grid=2)


def whole() -> dict[str, Tensor]:
    """The parameters of a small ViT."""
    with torch.device("meta"):
        shapes = {name: value.shape for name, value in ViT(SMALL).state_dict().items()}
    return {name: torch.zeros(shape) for name, shape in shapes.items()}


@contextmanager
def refused(match: str, named: Path) -> Iterator[None]:
    """The block is refused at once, in one sentence that names the file or folder."""
    began = time.process_time()
    with pytest.raises(InputError, match=match) as caught:
        yield
    assert time.process_time() - began < 5
    text = str(caught.value)
    assert str(named) in text
    assert text.isprintable()  # no line breaks, no escape sequences
    assert len(text) < 600


def save(state: dict[str, Any], path: Path) -> Path:
    save_file(state, path) if path.suffix == ".safetensors" else torch.save(state, path)
    return path


def seen(size: int) -> Tensor:
    """One number, seen `size` times."""
    return torch.zeros(1, dtype=torch.half).expand(size)


class Grows:
    """A pickle that asks torch.load, which allows it, for a long `bytearray`."""

    def __reduce__(self) -> Any:
        return bytearray, (2**27,)


LARGER, NOT_FLAT, NOT_WEIGHTS = "larger than the file", "flat dictionary of tensors", "cannot be read as weights"
PICKLED: dict[str, tuple[Callable[[], Any], str]] = {
    "a view of one number": (lambda: {"cls_token": seen(2**28)}, LARGER),
    "a view that no machine holds": (lambda: {"cls_token": seen(BEYOND)}, LARGER),
    "a parameter that no machine holds": (lambda: {"a": torch.nn.Parameter(seen(BEYOND))}, LARGER),
    "one storage, seen often": (lambda: dict.fromkeys(map(str, range(200)), torch.zeros(1000)), LARGER),
    "a number for a name": (lambda: {7: torch.zeros(3)}, NOT_FLAT),
    "a value that is no tensor": (lambda: {"epoch": 3, "a": torch.zeros(3)}, NOT_FLAT),
    "a list": (lambda: [torch.zeros(3)], NOT_FLAT),
    "sparse": (lambda: {"a": torch.sparse_coo_tensor([[0]], [1.0], (2**40,))}, NOT_WEIGHTS),
    "quantized": (lambda: {"a": torch.quantize_per_tensor(torch.zeros(3), 0.1, 0, torch.qint8)}, NOT_WEIGHTS),
    "of no device": (lambda: {"a": torch.zeros(BEYOND, device="meta")}, NOT_WEIGHTS),
    "nested": (lambda: {"a": torch.nested.nested_tensor([torch.zeros(3)])}, NOT_WEIGHTS),
    "complex": (lambda: {"a": torch.zeros(3, dtype=torch.complex64)}, NOT_WEIGHTS),
    "small floats": (lambda: {"a": torch.zeros(3).to(torch.float8_e4m3fn)}, NOT_WEIGHTS),
    "more than tensors": (lambda: {"a": Grows()}, r"more than plain tensors \(`\w+ bytearray`\)"),
    "NaN": (lambda: {"a": torch.tensor([0.0, torch.nan])}, "not finite numbers in `a`"),
    "infinite half": (lambda: {"a": torch.tensor([0.0, -torch.inf]).half()}, "not finite numbers in `a`"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("old_format", [False, True], ids=["zip", "pickles"])
@pytest.mark.parametrize("name", PICKLED)
def test_a_pth_that_holds_something_else(name: str, old_format: bool, tmp_path: Path) -> None:
    content, sentence = PICKLED[name]
    path = tmp_path / "enc.pth"
    torch.save(content(), path, _use_new_zipfile_serialization=not old_format)
    assert path.stat().st_size < 100_000
    with refused(sentence, path):
        build_encoder(str(path))


def repack(
    path: Path, change: Callable[[str, bytes], list[tuple[str, bytes]]], method: int = zipfile.ZIP_STORED
) -> Path:
    """Write a .pth anew, with each member changed, dropped or doubled."""
    with zipfile.ZipFile(path) as archive:
        members = [pair for name in archive.namelist() for pair in change(name, archive.read(name))]
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return path


def test_a_compressed_pth(tmp_path: Path) -> None:
    path = save({"cls_token": torch.zeros(2**22)}, tmp_path / "enc.pth")
    repack(path, lambda name, content: [(name, content)], zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 2**16
    with refused("unpacks to more bytes", path):
        read_state(path)


def test_a_pth_that_pytorch_reads_otherwise(tmp_path: Path) -> None:
    """PyTorch takes `A` for `a`: it copies one tensor for each spelling, and finds a pickle under another name."""
    path = save({"a": torch.zeros(4)}, tmp_path / "enc.pth")
    repack(path, lambda name, content: [(name.replace("data/0", "data/a"), content)])
    with refused("does not number its tensors", path):
        read_state(path)
    path = save({"a": torch.zeros(4)}, tmp_path / "enc.pth")
    repack(path, lambda n, content: [(n, content), (n.upper(), b"")] if n.endswith(".pkl") else [(n, content)])
    with refused("unpacks to more bytes", path):
        read_state(path)
    path = save({"a": Grows()}, tmp_path / "enc.pth")
    repack(path, lambda n, content: [(n.upper() if n.endswith(".pkl") else n, content)])
    with refused("more than plain tensors", path):
        read_state(path)


def test_a_tar_in_the_oldest_format(tmp_path: Path) -> None:
    path = tmp_path / "enc.pth"
    with tarfile.open(path, "w") as archive:
        for name in ("storages", "tensors", "pickle"):
            archive.addfile(tarfile.TarInfo(name))
    with refused("tar archive", path):
        read_state(path)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"PK\x03\x04" + bytes(100), b"\x80\x02.", b"\x80\x02N." * 5])
def test_a_torn_pth(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "enc.pth"
    path.write_bytes(content)
    with refused(NOT_WEIGHTS, path):
        read_state(path)


NOT_COUNTED = "blocks are not 0, 1, 2"
SHAPES: dict[str, tuple[dict[str, Tensor], str]] = {
    "a block far away": ({"blocks.200000.w": torch.zeros(1)}, NOT_COUNTED),
    "a gap between blocks": ({"blocks.3.w": torch.zeros(1)}, NOT_COUNTED),
    "a block with leading zeros": ({"blocks.02.w": torch.zeros(1)}, NOT_COUNTED),
    "a block without number": ({"blocks.x.w": torch.zeros(1)}, NOT_COUNTED),
    "a block of no name": ({"blocks.": torch.zeros(1)}, NOT_COUNTED),
    "blocks without content": ({f"blocks.{i}.w": torch.zeros(0) for i in range(600)}, NOT_COUNTED),
    "blocks of one value": ({f"blocks.{i}.w": torch.zeros(1) for i in range(100)}, "does not fit"),
    "flat patches": ({"patch_embed.proj.weight": torch.zeros(64)}, r"`patch_embed.proj.weight` is \(64,\)"),
    "no patches": ({"patch_embed.proj.weight": torch.zeros(64, 3, 0, 0)}, r"weight` is \(64, 3, 0, 0\)"),
    "endless patches": ({"patch_embed.proj.weight": torch.zeros(64, 0, BEYOND, 1)}, "patch_embed.proj.weight"),
    "flat positions": ({"pos_embed": torch.zeros(64)}, r"`pos_embed` is \(64,\)"),
    "no positions": ({"pos_embed": torch.zeros(1, 0, 64)}, r"`pos_embed` is \(1, 0, 64\)"),
    "positions of another width": ({"pos_embed": torch.zeros(1, 4, 32)}, "4 positions is not supported"),
    "a scalar for CLS": ({"cls_token": torch.zeros(()), "blocks.0.ls1.gamma": torch.zeros(64)}, r"`cls_token` is \(\)"),
    "no CLS": ({"cls_token": torch.zeros(0, 1, 64), "blocks.0.ls1.gamma": torch.zeros(64)}, "`cls_token` is"),
    "two CLS": ({"cls_token": torch.zeros(2, 1, 64), "pos_embed": torch.zeros(1, 4, 64)}, "4 positions"),
    "a scalar in a block": ({"blocks.0.mlp.fc1.weight": torch.zeros(())}, r"fc1.weight` is \(\)"),
    "a scalar register": ({"register_tokens": torch.zeros(())}, r"`register_tokens` is \(\)"),
    "a scalar register of timm": ({"reg_token": torch.zeros(())}, r"`reg_token` is \(\)"),
    "a name of two lines": ({"a\x1b[31m\nb": torch.zeros(1)}, r"does not fit: `a\\x1b\[31m` is"),
    "a long name": ({"a" * 10**5: torch.zeros(1)}, "does not fit: `aaa"),
    "NaN": ({"norm.weight": torch.full((64,), torch.nan)}, "not finite numbers in `norm.weight`"),
}


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize("name", SHAPES)
def test_a_vit_of_odd_shapes(name: str, suffix: str, tmp_path: Path) -> None:
    change, sentence = SHAPES[name]
    path = save({**whole(), **change}, tmp_path / f"enc{suffix}")
    with refused(sentence, path):
        load_vit(path)
    with refused("does not fit|not finite|DINO's parameter names", path):
        load_vit(path, SMALL)


@pytest.mark.parametrize("kind", [torch.complex64, torch.float8_e4m3fn], ids=str)
def test_numbers_that_are_no_weights(kind: torch.dtype, tmp_path: Path) -> None:
    path = save({**whole(), "norm.weight": torch.zeros(64).to(kind)}, tmp_path / "enc.safetensors")
    with refused("`norm.weight`, which cannot be weights", path):
        load_vit(path)


@pytest.mark.parametrize("old_format", [False, True], ids=["zip", "pickles"])
def test_the_whole_vit_is_read(old_format: bool, tmp_path: Path) -> None:
    """The tests above would pass if everything were refused."""
    held = {name: torch.nn.Parameter(value.bfloat16()) for name, value in whole().items()}
    for state in (ViT(SMALL).state_dict(), held):
        torch.save(state, tmp_path / "enc.pth", _use_new_zipfile_serialization=not old_format)
        assert load_vit(tmp_path / "enc.pth").architecture == SMALL


ATTENTIVE = ["vit", "dinov2", "dinov2_with_registers", "dinov3_vit", "clip_vision_model", "clip"]
SIDES = {"image_size": 32, "patch_size": 8}
TINY = {**SIDES, "hidden_size": 8, "num_attention_heads": 1, "intermediate_size": 8, "num_hidden_layers": 1}
STAGE = {"hidden_sizes": [8], "depths": [1], "num_stages": 1}
TOO_WIDE, TOO_DEEP = "asks for [0-9]{5,} weights where its files hold 1$", "more layers than there are"
ASKING: list[tuple[str, dict[str, Any], str]] = [
    *((kind, {**TINY, "hidden_size": 131072}, TOO_WIDE) for kind in ATTENTIVE),
    *((kind, {**TINY, "num_hidden_layers": 5000}, TOO_DEEP) for kind in ATTENTIVE),
    *((kind, {**TINY, "num_hidden_layers": 10**9}, "a num_hidden_layers that no") for kind in ATTENTIVE),
    *((kind, {**STAGE, "hidden_sizes": [131072]}, TOO_WIDE) for kind in ("convnext", "convnextv2")),
    *((kind, {**STAGE, "depths": [5000]}, TOO_DEEP) for kind in ("convnext", "convnextv2")),
    ("convnext", {**STAGE, "depths": [10**12]}, "a depths that no encoder has"),
    ("convnext", {**STAGE, "hidden_sizes": [8, 8], "depths": [-5, 6]}, TOO_DEEP),
    ("resnet", {**STAGE, "hidden_act": "gelu", "hidden_sizes": [131072]}, TOO_WIDE),
    ("resnet", {**STAGE, "hidden_act": "gelu", "depths": [5000]}, TOO_DEEP),
    ("vit", {**TINY, "num_hidden_layers": 5000, "depths": [1]}, TOO_DEEP),
    ("vit", {**TINY, "num_hidden_layers": 0}, TOO_DEEP),
    ("vit", {**TINY, "pooler_output_size": 2**18}, TOO_WIDE),
    ("vit", {**TINY, "image_size": 4096, "patch_size": 1}, TOO_WIDE),
    ("vit", {**TINY, "num_labels": 10**10}, "a num_labels that no encoder has"),
    ("vit", {**TINY, "a": [{"b": [[-(10**30)]]}]}, "a b that no encoder has"),
    ("vit", {**TINY, "num_attention_heads": -2}, "does not say what num_attention_heads is"),
    ("vit", {**TINY, "patch_size": "x"}, "does not say what patch_size is"),
    ("vit", {**TINY, "transformers_weights": "adapter_model.bin"}, "a transformers_weights that no"),
    ("vit", {**TINY, "configuration_files": ["config.4.0.0.json"]}, "a configuration_files that no"),
]


def folder(place: Path, kind: str, config: dict[str, Any], tensors: dict[str, Tensor] | None = None) -> Path:
    """A Hugging Face folder of a config and some tensors, by default one of 4 bytes."""
    config = {"vision_config": {**config, "model_type": "clip_vision_model"}} if kind == "clip" else config
    (place / "config.json").write_text(json.dumps({**config, "model_type": kind}))
    save_file(tensors or {"a": torch.zeros(1)}, place / "model.safetensors", metadata={"format": "pt"})
    return place


@pytest.fixture(scope="module")
def transformers() -> Any:
    """The package, with the modules that it imports late."""
    package = pytest.importorskip("transformers")
    assert package.AutoModel
    assert package.CLIPVisionModel
    return package


@pytest.mark.parametrize(
    ("kind", "config", "sentence"), ASKING, ids=[f"{i}-{ASKING[i][0]}" for i in range(len(ASKING))]
)
def test_a_config_that_asks_for_more_than_the_folder_holds(
    kind: str, config: dict[str, Any], sentence: str, tmp_path: Path, transformers: Any
) -> None:
    with refused(sentence, folder(tmp_path, kind, config)):
        build_encoder(str(tmp_path), image_size=32)


@pytest.mark.parametrize("kind", ["resnet", "convnext"])
def test_names_alone_do_not_make_a_deep_network(kind: str, tmp_path: Path, transformers: Any) -> None:
    """Tensors without content are cheap: what they would allow to build is limited all the same."""
    names = {str(number): torch.zeros(0) for number in range(1000)}
    with refused("what depths is|more layers", folder(tmp_path, kind, {**STAGE, "depths": [600]}, names)):
        build_encoder(str(tmp_path), image_size=32)


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({"a": "../other.safetensors"}, "not in the folder"),
        ({"a": "missing.safetensors"}, "its safetensors: "),
        ({"a": 7}, "its safetensors: "),
        ([["a"]], "its safetensors: "),
        ({"a": "one.safetensors", "b": "two.safetensors"}, TOO_WIDE),  # one tensor, found twice
    ],
)
def test_an_index_that_leads_astray(files: Any, sentence: str, tmp_path: Path, transformers: Any) -> None:
    folder(tmp_path, "vit", {**TINY, "hidden_size": 131072})
    (tmp_path / "model.safetensors").rename(tmp_path / "one.safetensors")
    (tmp_path / "two.safetensors").symlink_to("one.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    with refused(sentence, tmp_path):
        build_encoder(str(tmp_path), image_size=32)


def test_a_config_that_fits_its_weights_and_does_not_work(tmp_path: Path, transformers: Any) -> None:
    model = transformers.DINOv3ViTModel(transformers.DINOv3ViTConfig(**TINY))
    folder(tmp_path, "dinov3_vit", {**TINY, "num_attention_heads": 3}, model.state_dict())
    with refused("cannot work with 32 px pictures", tmp_path):
        build_encoder(str(tmp_path), image_size=32)


def test_a_folder_of_nan(tmp_path: Path, transformers: Any) -> None:
    state = transformers.ViTModel(transformers.ViTConfig(**TINY)).state_dict()
    next(iter(state.values())).fill_(torch.nan)
    with refused("not finite numbers in `", folder(tmp_path, "vit", TINY, state)):
        build_encoder(str(tmp_path), image_size=32)
