"""Helpers of the tests on hostile input: how much memory something took, and files that lie."""

from __future__ import annotations

import gzip
import io
import json
import struct
import tarfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from rowssl.core.errors import InputError

MEGABYTE = 2**20


def _status(name: str) -> int:
    """A line of /proc/self/status in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(name)


@contextmanager
def within(megabytes: int = 64, seconds: float = 20.0) -> Iterator[None]:
    """Fail if the block takes more memory than this at any moment, or more time."""
    began = time.monotonic()
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak is forgotten
        before = _status("VmRSS")
    except OSError:
        before = -1
    yield
    assert time.monotonic() - began < seconds
    if before >= 0:
        grown = (_status("VmHWM") - before) / MEGABYTE
        assert grown < megabytes, f"{grown:.0f} MB were taken"


def one_sentence(error: InputError | str) -> str:
    """The text of a refusal, which must be one line and name no internal."""
    text = str(error)
    assert text
    assert "\n" not in text
    assert "Traceback" not in text
    assert "\x1b" not in text
    return text


@contextmanager
def refused(match: str | None = None, megabytes: int = 64, seconds: float = 20.0) -> Iterator[None]:
    """The block is refused with an InputError of one sentence, within memory and time."""
    with within(megabytes, seconds), pytest.raises(InputError, match=match) as caught:
        yield
    one_sentence(caught.value)


def npy(header: str, data: bytes = b"") -> bytes:
    """A .npy file with any header."""
    text = header.encode("latin-1") + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def npz(path: Path, **members: bytes) -> Path:
    """A .npz file of any content."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return path


def safetensors(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    """A .safetensors file with any header, which may also lie about its own length."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tar_gz(path: Path, *entries: tuple[tarfile.TarInfo, bytes]) -> Path:
    """An archive of any entries; a size in the header may be larger than the data."""
    with gzip.open(path, "wb") as stream:
        for entry, data in entries:
            stream.write(entry.tobuf(tarfile.PAX_FORMAT))
            stream.write(data + bytes(-len(data) % 512))
        stream.write(bytes(1024))
    return path


def entry(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = size, kind, link
    return info


def array_bytes(array: np.ndarray, *, allow_pickle: bool = False) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=allow_pickle)
    return stream.getvalue()
