"""Files of weights, which may be a stranger's: what they ask for is compared with what they hold before it is made."""

from __future__ import annotations

import contextlib
import pickletools
import re
import tarfile
import zipfile
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from torch import Tensor

from rowssl.core.errors import InputError
from rowssl.core.files import LARGEST_CONFIG, read_json

if TYPE_CHECKING:
    from torch import Tensor


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
    """An int, and no bool, within these limits: how a number that a stranger wrote is looked at before it is used."""
    return type(value) is int and low <= value <= high
