"""The reader behind `read_table` for embeddings: `.npy`, `.npz` and `.safetensors`, never a pickle."""

from __future__ import annotations

import math
import struct
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from rowssl.core.console import track
from rowssl.core.errors import InputError
from rowssl.core.memory import available_memory, release
from rowssl.core.text import printable
from rowssl.data.labels import encode_labels, labels_from_csv
from rowssl.data.table import ROW_BYTES, Table

_KEYS = ("embeddings", "labels", "views", "truth", "test_embeddings", "test_truth")
_CHECK_VALUES = 1 << 22  # values looked at together when embeddings are checked
_MAP_BYTES = 1 << 26  # arrays of an uncompressed `.npz` file from this size on stay on disk


def read_embeddings(path: Path, labels: Path | None, *, label_column: str | None) -> Table:
    """Embeddings (N, D) with what else the file holds; `.npy` and large arrays of an uncompressed `.npz` are memory-mapped."""
    where = printable(str(path))
    arrays = _load_arrays(path)
    _require_memory(arrays, where)
    embeddings = _features(arrays["embeddings"], where, "embeddings", 2)
    rows, size = embeddings.shape
    views = test = None
    if "views" in arrays:
        views = _features(arrays["views"], where, "views", 3)
        if views.shape[1:] != embeddings.shape:
            raise InputError(f"{where}: views are {views.shape}, but embeddings are {embeddings.shape}")
    if ("test_embeddings" in arrays) != ("test_truth" in arrays):
        raise InputError(f"{where} has only one of 'test_embeddings' and 'test_truth'")
    if "test_embeddings" in arrays:
        test = _features(arrays["test_embeddings"], where, "test_embeddings", 2)
        if test.shape[1] != size:
            raise InputError(f"{where}: test_embeddings have {test.shape[1]} columns, but embeddings have {size}")
    given: Sequence[object] | np.ndarray | None = _label_list(arrays, "labels", rows, where)
    if labels is not None:
        given = labels_from_csv(labels, rows, by_name=None, folder=None, label_column=label_column)
    truth = _label_list(arrays, "truth", rows, where)
    test_truth = _label_list(arrays, "test_truth", 0 if test is None else len(test), where)
    # One numbering for all three, so that ids can be compared.
    parts = [np.full(rows, -1) if given is None else given]
    ids, class_names = _encode([*parts, *(part for part in (truth, test_truth) if part is not None)], where)
    test_table = None
    if test is not None:
        names = tuple(f"test row {row}" for row in range(len(test)))
        test_table = Table(ids[len(ids) - len(test) :], class_names, names, embeddings=test, source=where)
    return Table(
        labels=ids[:rows],
        class_names=class_names,
        names=tuple(f"row {row}" for row in range(rows)),
        embeddings=embeddings,
        views=views,
        truth=None if truth is None else ids[rows : 2 * rows],
        test=test_table,
        source=where,
    )


def _load_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays we know by name; a `.npy` file is the embeddings alone."""
    where = printable(str(path))
    try:
        if path.suffix.lower() == ".safetensors":
            from safetensors import safe_open

            with safe_open(path, framework="np") as file:
                names = list(file.keys())
                arrays = {name: file.get_tensor(name) for name in names if name in _KEYS}
        else:
            with open(path, "rb") as stream:
                zipped = stream.read(4) in (b"PK\3\4", b"PK\5\6")  # as numpy itself tells them apart
            if not zipped:
                return {"embeddings": np.load(path, mmap_mode="r", allow_pickle=False)}
            names, arrays = _load_zipped(path)
    except zipfile.BadZipFile:
        raise InputError(f"{where} cannot be read: the archive is damaged") from None
    except Exception as error:  # safetensors has its own exceptions; numpy raises ValueError, EOFError and others
        reason = printable(str(error).split("\n")[0][:120]) or type(error).__name__
        if "pickle" in reason or "Python objects" in reason:
            reason = "it holds Python objects (pickle), which are never loaded, or is no array at all"
        elif "bfloat16" in reason:
            reason = "numpy has no bfloat16; save it as float16 or float32"
        raise InputError(f"{where} cannot be read: {reason}") from None
    if "embeddings" not in arrays:
        there = ", ".join(repr(name) for name in names) or "nothing"
        raise InputError(f"{where} has no array 'embeddings'; it has {there}")
    return arrays


def _require_memory(arrays: dict[str, np.ndarray], where: str) -> None:
    """Few bytes can hold many rows, and numbers of one byte become numbers of four."""
    rows = sum(len(arrays[name]) for name in ("embeddings", "test_embeddings") if name in arrays and arrays[name].ndim)
    kept = (np.dtype(np.float16), np.dtype(np.float32))
    features = [arrays[name] for name in ("embeddings", "views", "test_embeddings") if name in arrays]
    needed = rows * ROW_BYTES + 4 * sum(array.size for array in features if array.dtype not in kept)
    free = available_memory()
    if free and needed > free:
        raise InputError(f"{where}: its {rows:,} rows need {needed / 1e9:.1f} GB, more than the memory that is free")


def _load_zipped(path: Path) -> tuple[list[str], dict[str, np.ndarray]]:
    """Names of all arrays of an `.npz` file, and those we know; how much memory they take is looked at before it is taken."""
    from numpy.lib import format as npy

    with zipfile.ZipFile(path) as archive:
        members = {name.removesuffix(".npy"): name for name in archive.namelist()}
        arrays: dict[str, np.ndarray] = {}
        wanted, needed = [], 0
        for name in members:
            if name not in _KEYS:
                continue
            about = archive.getinfo(members[name])
            with archive.open(about) as stream:
                version = npy.read_magic(stream)
                read_header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
                if read_header is None:
                    raise ValueError(f"{name} has an unknown format {version}")
                shape, fortran, dtype = read_header(stream)
                begin, size = stream.tell(), dtype.itemsize * math.prod(shape)
                if not dtype.hasobject and size != about.file_size - begin:
                    raise ValueError(f"{name} has {shape} values by its header, but another size")
                if about.compress_type == zipfile.ZIP_STORED and size >= _MAP_BYTES and not dtype.hasobject:
                    while stream.read(_CHECK_VALUES):
                        pass  # at its end the checksum is compared
                    offset = _member_data(path, about) + begin
                    order: Literal["F", "C"] = "F" if fortran else "C"
                    arrays[name] = np.memmap(path, dtype, "r", offset, shape, order)
                    continue
            wanted.append(name)
            needed += size
        free = available_memory()
        if free and needed > free:
            raise ValueError(f"it unpacks to {needed / 1e9:.1f} GB, more than the memory that is free: save it as .npy")
        for name in wanted:
            with archive.open(members[name]) as stream:
                arrays[name] = npy.read_array(stream, allow_pickle=False)
        return list(members), arrays


def _member_data(path: Path, about: zipfile.ZipInfo) -> int:
    """Where the bytes of a member begin: its own header may be longer than the entry in the directory says."""
    with open(path, "rb") as stream:
        stream.seek(about.header_offset + 26)
        name, extra = struct.unpack("<HH", stream.read(4))
    return int(about.header_offset) + 30 + int(name) + int(extra)


def _features(array: np.ndarray, where: str, key: str, axes: int) -> np.ndarray:
    """Check one array of features; float16 and float32 stay as they are, other numbers become float32."""
    shape = "N x D" if axes == 2 else "V x N x D"
    if array.ndim != axes or 0 in array.shape or array.dtype.kind not in "fiu":
        raise InputError(f"{where}: {key} must be numbers of shape {shape}, not {array.dtype} {array.shape}")
    if array.dtype not in (np.dtype(np.float16), np.dtype(np.float32)):
        with np.errstate(over="ignore"):  # too large for float32 becomes infinite and is refused below
            array = array.astype(np.float32)
    step = max(1, _CHECK_VALUES // array.shape[-1])
    for view in array if axes == 3 else array[None]:
        starts = range(0, len(view), step)
        for start in track(starts, f"checking {key}", enabled=len(starts) > 8):
            bad = np.flatnonzero(~np.isfinite(view[start : start + step]).all(axis=1))
            release(view)
            if len(bad):
                raise InputError(f"{where}: row {start + bad[0]} of {key} holds a value that is not finite")
    return array


def _label_list(arrays: dict[str, np.ndarray], key: str, rows: int, where: str) -> np.ndarray | None:
    """The labels under a key, (rows,), whatever they are written as."""
    if key not in arrays:
        return None
    array = arrays[key]
    if array.shape != (rows,) or array.dtype.kind not in "iuUSf":
        raise InputError(f"{where}: {key} must be {rows} whole numbers or texts, not {array.dtype} {array.shape}")
    return array


def _encode(parts: Sequence[Sequence[object] | np.ndarray], where: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Ids of all parts in a row, and the class names; of whole numbers each is looked at once, however many rows have it."""
    plain = [part for part in parts if isinstance(part, np.ndarray) and part.dtype.kind in "iu"]
    if len(plain) == len(parts) and all(part.min(initial=0) >= -1 for part in plain):
        found = [np.unique(part, return_inverse=True) for part in plain]
        ids, names = encode_labels([value for values, _ in found for value in values.tolist()], where=where)
        own = np.split(ids, np.cumsum([len(values) for values, _ in found])[:-1])
        return np.concatenate([mine[inverse] for mine, (_, inverse) in zip(own, found, strict=True)]), names
    return encode_labels(
        [x for part in parts for x in (part.tolist() if isinstance(part, np.ndarray) else part)], where=where
    )
