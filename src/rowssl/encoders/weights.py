"""Files of weights: where published ViT weights come from, how a file is checked, and how its names become those of `ViT`.

Weights are read from safetensors, or from a `.pth` of bare tensors (`torch.load(weights_only=True)`); nothing else is
unpickled. A downloaded file must have the sha256 that is pinned below, or that a lock file recorded at first sight. Any
other file may be untrusted input: what it asks for is compared with what it holds before it is made.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickletools
import re
import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from torch import Tensor

from rowssl.core.errors import InputError
from rowssl.core.files import LARGEST_CONFIG, read_json, sha256_of, write_text

if TYPE_CHECKING:
    from rowssl.encoders.vit import Architecture, ViT

FILE = "model.safetensors"


# All that a pickle of plain tensors names. torch.load allows more, of which `bytearray(2**33)` takes 8 GB out of 1 kB.
NAMED = re.compile(
    r"collections OrderedDict|torch\._utils _rebuild_(tensor_v2|parameter)"
    r"|torch (Float|Double|Half|BFloat16|Long|Int|Short|Char|Byte|Bool)Storage"
)


def read_state(path: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors file, or of a .pth file that holds a flat dictionary of them and nothing else."""
    import torch

    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            state = load_file(path)
        else:
            _check_pickles(path)
            state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise InputError(
            f"{path} cannot be read as weights (a .safetensors file, or a .pth of bare tensors): {one_line(error)}"
        ) from None
    if not isinstance(state, dict) or not all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in state.items()
    ):
        raise InputError(f"{path} is not a flat dictionary of tensors: save the backbone's state_dict alone")
    # A view may repeat one number 2**45 times, and many views may share their bytes: a copy of each would not.
    if sum(value.numel() * value.itemsize for value in state.values()) > path.stat().st_size:
        raise InputError(f"{path} names tensors that are larger than the file: save each as a copy of its own")
    check_values(state, path)
    return state


def _check_pickles(path: Path) -> None:
    """A ValueError unless all that torch.load would do with a .pth file is to put tensors of its size together."""
    with contextlib.suppress(tarfile.TarError), tarfile.open(path, "r:"):
        raise ValueError("it is a tar archive, the oldest format of PyTorch")
    with path.open("rb") as stream:
        zipped = stream.read(4) == b"PK\x03\x04"
        stream.seek(0)
        # Before PyTorch 1.6 there were five pickles in a row, and then the bytes of the tensors.
        for pickle in _zipped_pickles(stream, path.stat().st_size) if zipped else [stream] * 5:
            for operation, name, _ in pickletools.genops(pickle):
                if operation.name == "GLOBAL" and not NAMED.fullmatch(str(name)):
                    raise ValueError(f"it holds more than plain tensors (`{name}`)")


def _zipped_pickles(stream: IO[bytes], size: int) -> list[IO[bytes]]:
    """The pickles in an archive of torch.save; a ValueError if torch.load would read more than its `size` bytes from it."""
    archive = zipfile.ZipFile(stream)
    members = {
        member.filename.lower(): member for member in archive.infolist()
    }  # PyTorch reads `a` where `A` is asked for
    if len(members) < len(archive.infolist()) or sum(member.file_size for member in members.values()) > size:
        raise ValueError("its archive unpacks to more bytes than it has")
    if not all(name.split("/data/")[1].isdecimal() for name in members if "/data/" in name):
        raise ValueError("its archive does not number its tensors")  # `a`, `A` and so on would be copies of one
    return [archive.open(member) for name, member in members.items() if name.endswith(".pkl")]


def check_values(state: Mapping[str, Tensor], place: Path) -> None:
    """An InputError that names `place` unless every tensor holds finite numbers of a kind that weights have."""
    import torch

    for name, value in state.items():
        if value.is_complex() or (value.is_floating_point() and value.itemsize < 2):
            raise InputError(f"{place} holds {value.dtype} in `{one_line(name)}`, which cannot be weights")
        if value.is_floating_point() and value.numel() and not all(map(torch.isfinite, value.detach().aminmax())):
            raise InputError(f"{place} holds values that are not finite numbers in `{one_line(name)}`")


def stored_sizes(folder: Path) -> dict[str, int]:
    """How many numbers each tensor in the safetensors of a Hugging Face folder has, by what their headers say."""
    from safetensors import safe_open

    index, files = folder / f"{FILE}.index.json", [folder / FILE]
    sizes: dict[str, int] = {}
    try:
        if not files[0].is_file() and index.is_file():
            names = sorted(set(read_json(index, LARGEST_CONFIG, links=True)["weight_map"].values()))
            if any(Path(name).name != name for name in names):
                raise ValueError("the index names a file that is not in the folder")
            files = [folder / name for name in names]
        for file in files:
            if file.exists() and not file.is_file():  # safetensors would wait for a pipe
                raise ValueError(f"{file.name} is no plain file")
            with safe_open(file, framework="pt") as opened:  # which compares the header with the length of the file
                sizes |= {name: prod(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
    except Exception as error:
        raise InputError(f"{folder} cannot be loaded as an encoder: its safetensors: {one_line(error)}") from None
    return sizes


def one_line(said: object) -> str:
    """The first line of what an error says, or of a name out of a file, short and fit to be shown."""
    from rowssl.core.text import printable

    lines = str(said).strip().splitlines()
    return printable(lines[0][:160]) if lines else type(said).__name__


def is_whole(value: Any, low: int, high: int) -> bool:
    """An int, and no bool, within these limits: how a number of untrusted input is checked before it is used."""
    return type(value) is int and low <= value <= high


# The parameters that tell the sizes of a ViT, and how many dimensions each has; the last two are not in every model.
TELLING = {"cls_token": 3, "pos_embed": 3, "patch_embed.proj.weight": 4, "blocks.0.mlp.fc1.weight": 2, "norm.weight": 1}
TELLING_IF_THERE = {"register_tokens": 3, "reg_token": 3}
WIDEST, DEEPEST = 2**16, 512  # far more than any encoder has: to build more for untrusted input would only take long


@dataclass(frozen=True)
class Published:
    """One published encoder: its architecture, its Hugging Face repository and its original file."""

    size: str
    patch: int
    version: int
    registers: int
    repository: str
    url: str  # the authors' own file, for torch.hub's cache and for people who fetch by hand
    sha256: str | None  # of model.safetensors in that repository; None: recorded by the lock file when first fetched

    @property
    def architecture(self) -> Architecture:
        from rowssl.encoders.vit import vit_architecture

        return vit_architecture(self.size, self.patch, version=self.version, registers=self.registers)


def _dino(size: str, patch: int, original: str, sha256: str | None = None) -> Published:
    long = {"s": "small", "b": "base"}[size]
    url = f"https://dl.fbaipublicfiles.com/dino/{original}_pretrain/{original}_pretrain.pth"
    return Published(size, patch, 1, 0, f"timm/vit_{long}_patch{patch}_224.dino", url, sha256)


def _dinov2(size: str, registers: int = 0, sha256: str | None = None) -> Published:
    long = {"s": "small", "b": "base", "l": "large"}[size]
    stem = f"dinov2_vit{size}14"
    url = f"https://dl.fbaipublicfiles.com/dinov2/{stem}/{stem}{'_reg4' if registers else ''}_pretrain.pth"
    repository = f"timm/vit_{long}_patch14{'_reg4' if registers else ''}_dinov2.lvd142m"
    return Published(size, 14, 2, registers, repository, url, sha256)


# The pinned sums are those that huggingface.co shows for the file in its repository.
PUBLISHED: dict[str, Published] = {
    "dino_vitb16": _dino("b", 16, "dino_vitbase16", "93181583427d6de3e18ab0e6ee4df35736cfc51a3c1bf9ae0e9b53b1316598dc"),
    "dino_vitb8": _dino("b", 8, "dino_vitbase8", "01be14b99784a4c0970a5703214513588daf27014e908ac7ea08967b7bd80f5f"),
    "dino_vits16": _dino("s", 16, "dino_deitsmall16"),
    "dino_vits8": _dino("s", 8, "dino_deitsmall8", "e1b79616ce6d1b8dc3cc0d5952b6d0958356a189122882493e665d28f20654a0"),
    "dinov2_vits14": _dinov2("s"),
    "dinov2_vitb14": _dinov2("b", sha256="55cbb5d887b336d430e649c277b85a1429e724871f9d02ac16203235886d8c7b"),
    "dinov2_vitl14": _dinov2("l"),
    "dinov2_vits14_reg": _dinov2("s", 4),
    "dinov2_vitb14_reg": _dinov2("b", 4),
    "dinov2_vitl14_reg": _dinov2("l", 4),
}


def cache_dir() -> Path:
    """The folder for hand-placed weights and the lock file: $ROWSSL_CACHE, else ~/.cache/rowssl."""
    return Path(os.environ.get("ROWSSL_CACHE") or Path.home() / ".cache" / "rowssl") / "encoders"


def offline() -> bool:
    """Whether the user asked for no network."""
    asked = (os.environ.get(name, "") for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))
    return any(value.upper() in {"1", "TRUE", "YES", "ON"} for value in asked)


def hub_answers(repository: str) -> bool:
    """Whether huggingface.co knows the repository, asked once and briefly (a download would retry for long)."""
    if offline():
        return False
    try:
        from huggingface_hub import HfApi

        HfApi().model_info(repository, timeout=5)
    except Exception:  # no package, no network, a proxy that refuses, no such repository: it cannot be had now
        return False
    return True


def locate(name: str) -> Path | None:
    """The file of a published encoder on this machine: placed by hand, or in the cache of torch.hub or Hugging Face."""
    import torch

    entry = PUBLISHED[name]
    checkpoints = Path(torch.hub.get_dir()) / "checkpoints"
    original = entry.url.rsplit("/", 1)[1]
    for path in (cache_dir() / f"{name}.safetensors", cache_dir() / original, checkpoints / original):
        if path.is_file():
            return path
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return None
    found = try_to_load_from_cache(entry.repository, FILE)
    return Path(found) if isinstance(found, str) else None


def how_to_get(name: str) -> str:
    """The commands that bring a published encoder to this machine, as part of a sentence."""
    entry = PUBLISHED[name]
    return f"`hf download {entry.repository} {FILE}`, or save {entry.url} in {cache_dir()}"


def fetch(name: str, *, sha256: str | None = None) -> Path:
    """The checked file of a published encoder, downloaded once if it is not on this machine."""
    entry = PUBLISHED[name]
    path = locate(name)
    if path is None:
        if find_spec("huggingface_hub") is None:
            raise InputError(f"encoder `{name}` needs pip install 'rowssl[hf]' to be fetched, or {how_to_get(name)}")
        if not hub_answers(entry.repository):
            raise InputError(
                f"encoder `{name}` is not on this machine and huggingface.co cannot be asked for it: where there is a "
                f"network run {how_to_get(name)}; encoders that work now: {', '.join(working_now())}"
            )
        from huggingface_hub import hf_hub_download

        from rowssl.core.console import err

        err.print(f"fetching {name} once from huggingface.co/{entry.repository}")
        path = Path(hf_hub_download(entry.repository, FILE))
    pinned = entry.sha256 if path.suffix == ".safetensors" else None
    verify(path, f"{name}{path.suffix}", expected=sha256 or pinned)
    return path


def working_now() -> list[str]:
    """The specs that need nothing from the network, for error messages."""
    here = [name for name in PUBLISHED if locate(name) is not None]
    rest = ("efficientnet_lite0", "convnet", "identity (for embeddings)")
    return [*here, *rest, "a path to a .safetensors file or a Hugging Face folder"]


def verify(path: Path, key: str, *, expected: str | None = None) -> str:
    """Check a file against `expected`, else against the lock file or Hugging Face's cache; record it if new."""
    lock = cache_dir() / "sha256.json"
    try:
        locked = json.loads(lock.read_text())
    except (OSError, ValueError):
        locked = {}
    blob = path.resolve().name  # Hugging Face's cache names a large file by its sha256
    expected = expected or locked.get(key) or (blob if re.fullmatch("[0-9a-f]{64}", blob) else None)
    found = sha256_of(path)
    if expected is not None and found != expected.lower():
        raise InputError(
            f"{path} has sha256 {found} where {expected} is expected: delete it and fetch it again"
            + (f", or remove `{key}` from {lock} if you trust the new file" if locked.get(key) == expected else "")
        )
    if locked.get(key) != found:
        with contextlib.suppress(InputError):  # a read-only cache still verifies against the pinned sums
            write_text(lock, json.dumps({**locked, key: found}, indent=1, sort_keys=True))
    return found


def to_dino_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename timm's parameters of DINO and DINOv2 to the published ones; published files pass through unchanged.

    timm calls `register_tokens` `reg_token`, leaves `mask_token` out, and with registers it adds the position of CLS
    into `cls_token` and drops it from `pos_embed`: a position of zero restores the same sum. A classifier `head` is
    dropped.
    """
    import torch

    state = {name: value.float() for name, value in state.items() if not name.startswith("head.")}
    if "reg_token" in state:
        state["register_tokens"] = state.pop("reg_token")
    if "pos_embed" in state and "cls_token" in state:
        from rowssl.encoders.vit import square_side

        position, cls = state["pos_embed"], state["cls_token"]
        without = square_side(position.shape[1] - 1) is None and square_side(position.shape[1]) is not None
        if without and cls.shape[::2] == position.shape[::2]:
            state["pos_embed"] = torch.cat([torch.zeros_like(cls), position], dim=1)
        if "blocks.0.ls1.gamma" in state:
            state.setdefault("mask_token", torch.zeros_like(cls[0]))
    return state


def _depth_of(names: Iterable[str]) -> int | None:
    """How many blocks parameters of these names belong to; None unless every one from 0 on is there."""
    numbers = {name.split(".")[1] for name in names if name.startswith("blocks.")}
    depth = min(len(numbers), DEEPEST)
    return depth if numbers == {str(number) for number in range(depth)} else None


def _unlike_a_vit(state: Mapping[str, Tensor]) -> str:
    """What is wrong with the parameters that tell the sizes of a ViT, as part of a sentence; empty if nothing is."""
    for name, dimensions in {**TELLING, **TELLING_IF_THERE}.items():
        if name not in state and name in TELLING:
            return f"no `{name}`"
        shape = tuple(state[name].shape) if name in state else (1,) * dimensions
        if len(shape) != dimensions or not all(1 <= size <= WIDEST for size in shape):
            return f"`{name}` is {shape}"
    return ""


def infer_architecture(state: dict[str, Tensor], path: Path) -> Architecture:
    """The architecture behind a state dictionary with DINO's names; heads are 64 wide in every published model."""
    from rowssl.encoders.vit import Architecture, square_side

    depth = _depth_of(state)
    if depth is None:
        raise InputError(f"{path} is not a ViT with DINO's parameter names: its blocks are not 0, 1, 2 and so on")
    dim, _, patch, _ = state["patch_embed.proj.weight"].shape
    grid = square_side(state["pos_embed"].shape[1] - 1)
    if grid is None or dim % 64:
        raise InputError(f"{path}: a ViT of width {dim} with {state['pos_embed'].shape[1]} positions is not supported")
    registers = state["register_tokens"].shape[1] if "register_tokens" in state else 0
    plain = Architecture(
        patch=patch,
        dim=dim,
        depth=depth,
        heads=dim // 64,
        hidden=state["blocks.0.mlp.fc1.weight"].shape[0],
        grid=grid,
        layer_scale="blocks.0.ls1.gamma" in state,
        mask_token="mask_token" in state,
        registers=registers,
    )
    return replace(plain, position_offset=0.0, position_antialias=True) if registers else plain


def _shapes(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter, from a ViT of one block: all of them are alike, and untrusted input may name many."""
    import torch

    from rowssl.encoders.vit import ViT

    with torch.device("meta"):
        one = ViT(replace(architecture, depth=1)).state_dict()
    return {
        name.replace("blocks.0.", f"blocks.{number}."): tuple(value.shape)
        for name, value in one.items()
        for number in range(architecture.depth if name.startswith("blocks.") else 1)
    }


def load_vit(path: Path, architecture: Architecture | None = None) -> ViT:
    """A `ViT` with the weights of a file, every name and shape matched; the architecture is inferred if not given."""
    import torch

    from rowssl.encoders.vit import ViT

    state = read_state(path)
    if wrong_shape := _unlike_a_vit(state):
        raise InputError(
            f"{path} is not a ViT with DINO's parameter names ({wrong_shape}): "
            "give a Hugging Face model as its whole folder, config.json included"
        )
    state = to_dino_names(state)
    architecture = architecture or infer_architecture(state, path)
    expected = _shapes(architecture)
    found = {name: tuple(value.shape) for name, value in state.items()}
    wrong = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    if wrong:
        name = wrong[0]
        raise InputError(
            f"{path} does not fit: `{one_line(name)}` is {found.get(name, 'missing')} where {expected.get(name, 'nothing')} is "
            f"expected ({len(wrong)} parameters differ)"
        )
    with torch.device("meta"):  # neither memory nor random numbers for weights that are replaced at once
        vit = ViT(architecture)
    vit.load_state_dict(state, strict=True, assign=True)
    return vit
