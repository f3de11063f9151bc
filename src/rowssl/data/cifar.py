"""CIFAR-10 and CIFAR-100 from what people have: Hugging Face parquet files or the original python archive.

The original archive is the one place where a pickle is read, because CIFAR was published as pickles and in no other
form for Python. A plain unpickler runs whatever code the file names; the one here knows three names, those that rebuild
a numpy array, and refuses all others. Archives are read in memory: nothing is extracted to disk.
"""

from __future__ import annotations

import io
import pickle
import tarfile
import zlib
from bisect import bisect_right
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rowssl.data.images import ImageColumn, printable
from rowssl.data.table import Table, read_table
from rowssl.errors import InputError

_ALLOWED = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),  # as the published archives say
    ("numpy._core.multiarray", "_reconstruct"),  # as numpy 2 says
}
_MEMBER_BYTES = 400_000_000  # the largest real member has 153 MB
_LAYOUT = {
    10: ("cifar-10-batches-py", "cifar-10-python.tar.gz", tuple(f"data_batch_{i}" for i in range(1, 6)), "test_batch"),
    100: ("cifar-100-python", "cifar-100-python.tar.gz", ("train",), "test"),
}
_KEYS = {10: ("labels", "batches.meta", "label_names"), 100: ("fine_labels", "meta", "fine_label_names")}
_LABEL_COLUMNS = {10: ("label", "labels"), 100: ("fine_label", "fine_labels", "label")}


def read_cifar(folder: Path, classes: int) -> tuple[Table, Table] | None:
    """Train and test table of CIFAR in `folder`; None if no file of it is there."""
    for place in (folder, folder / "data", folder / f"cifar{classes}", folder / "plain_text"):
        train, test = _shards(place, "train"), _shards(place, "test")
        if train and test:
            return _read_parquet(train, classes), _read_parquet(test, classes)
        if train or test:
            missing = "test" if train else "train"
            raise InputError(
                f"{printable(str(place))} has only a part of CIFAR-{classes}: {missing}.parquet is missing"
            )
    inner, archive, train_members, test_member = _LAYOUT[classes]
    for place in (folder / inner, folder):
        if (place / test_member).is_file() and (place / train_members[0]).is_file():
            return _read_members(place, classes, partial(_file_bytes, place))
    if (folder / archive).is_file():
        return _read_archive(folder / archive, classes)
    return None


def _shards(folder: Path, part: str) -> list[Path]:
    whole = folder / f"{part}.parquet"
    return [whole] if whole.is_file() else sorted(folder.glob(f"{part}-*.parquet"))


class Chain:
    """Several image columns one after the other."""

    def __init__(self, columns: list[ImageColumn]) -> None:
        self.columns = columns
        self.ends = np.cumsum([len(column) for column in columns]).tolist()

    def __len__(self) -> int:
        return self.ends[-1]

    def __getitem__(self, index: int) -> bytes | np.ndarray:
        shard = bisect_right(self.ends, index)
        return self.columns[shard][index - (self.ends[shard - 1] if shard else 0)]


def _read_parquet(paths: list[Path], classes: int) -> Table:
    """One table of all shards, rows in the order of their names."""
    parts = [read_table(path, label_column=_label_column(path, classes), check_images=False) for path in paths]
    names = parts[0].class_names
    labels = [part.labels for part in parts]
    if all(name.isdigit() for part in parts for name in part.class_names):  # no names in the file: labels are ids
        names = tuple(str(c) for c in range(classes))
        labels = [np.array([int(c) for c in part.class_names])[part.labels] for part in parts]
        if {int(c) for part in parts for c in part.class_names} != set(range(classes)):
            names = ()
    whole = np.concatenate(labels)
    if len(names) != classes or whole.min() < 0:
        raise InputError(
            f"{printable(str(paths[0]))} is not CIFAR-{classes}: its labels are not those of {classes} classes"
        )
    columns = [part.images for part in parts if part.images is not None]
    if len(columns) != len(parts):
        raise InputError(f"{printable(str(paths[0]))} holds no images but paths")
    row_names = [name for part in parts for name in part.names]
    if len(parts) > 1:  # "row 3" must be the row of the whole
        row_names = [f"row {i}" if name.startswith("row ") else name for i, name in enumerate(row_names)]
    images = columns[0] if len(columns) == 1 else Chain(columns)
    return Table(whole, names, tuple(row_names), images=images, source=printable(str(paths[0])))


def _label_column(path: Path, classes: int) -> str:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise InputError(f"reading {path.name} needs pyarrow: pip install 'rowssl[data]'") from error
    try:
        columns = pyarrow.parquet.read_schema(path).names
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{printable(str(path))} is not a readable parquet file: {str(error)[:100]}") from error
    for name in _LABEL_COLUMNS[classes]:
        if name in columns:
            return name
    wanted = " or ".join(_LABEL_COLUMNS[classes])
    raise InputError(f"{printable(str(path))} is not CIFAR-{classes}: it has no column {wanted}")


def _file_bytes(folder: Path, name: str) -> bytes | None:
    path = folder / name
    return path.read_bytes() if path.is_file() else None


def _read_archive(path: Path, classes: int) -> tuple[Table, Table]:
    inner = _LAYOUT[classes][0]
    try:
        with tarfile.open(path) as archive:

            def member(name: str) -> bytes | None:
                try:
                    entry = archive.getmember(f"{inner}/{name}")
                except KeyError:
                    return None
                if not entry.isfile() or entry.size > _MEMBER_BYTES:
                    raise InputError(f"{printable(str(path))}: {name} is no file of CIFAR's size")
                file = archive.extractfile(entry)
                return None if file is None else file.read()

            return _read_members(path, classes, member)
    except (tarfile.TarError, zlib.error, OSError, EOFError) as error:
        raise InputError(f"{printable(str(path))} is not a readable archive: {error}") from error


def _read_members(where: Path, classes: int, read: Callable[[str], bytes | None]) -> tuple[Table, Table]:
    """Train and test table from the archive's members, rows in the published order."""
    _, _, train_members, test_member = _LAYOUT[classes]
    label_key, meta_member, names_key = _KEYS[classes]

    def load(name: str) -> dict[str, Any]:
        data = read(name)
        if data is None:
            raise InputError(f"{printable(str(where))} has only a part of CIFAR-{classes}: {name} is missing")
        return unpickle_arrays(data, f"{where}: {name}")

    meta = load(meta_member).get(names_key)
    if not isinstance(meta, list) or len(meta) != classes:
        raise InputError(f"{printable(str(where))}: {meta_member} does not name {classes} classes")
    names = tuple(printable(_text(name)) for name in meta)

    def table(members: tuple[str, ...]) -> Table:
        images: list[np.ndarray] = []
        labels: list[np.ndarray] = []
        files: list[str] = []
        for name in members:
            content = load(name)
            pixels, ids = content.get("data"), np.asarray(content.get(label_key, ()))
            if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (3072,):
                raise InputError(f"{printable(str(where))}: {name} holds no images of 32 x 32 pixels")
            if ids.shape != (len(pixels),) or ids.dtype.kind not in "iu" or not ((ids >= 0) & (ids < classes)).all():
                raise InputError(f"{printable(str(where))}: {name} does not hold one label of {classes} for each image")
            given = content.get("filenames")
            if not isinstance(given, list) or len(given) != len(pixels):
                given = [f"row {len(files) + i}" for i in range(len(pixels))]
            images.append(pixels)
            labels.append(ids)
            files += [_text(file) for file in given]
        # The archive keeps the three colour planes one after the other; a picture has them per pixel.
        pictures = np.concatenate(images).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        shown = tuple(printable(name) for name in files)
        return Table(np.concatenate(labels), names, shown, images=pictures, source=printable(str(where)))

    return table(train_members), table((test_member,))


class _ArraysOnly(pickle.Unpickler):
    """Plain containers, numbers, strings and numpy arrays; nothing else has a name here."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        if name == "_reconstruct":
            from numpy._core.multiarray import _reconstruct

            return _reconstruct
        return getattr(np, name)


def unpickle_arrays(data: bytes, where: str) -> dict[str, Any]:
    """The dictionary of arrays in a pickle of the CIFAR archive; an InputError for anything else."""
    try:
        content = _ArraysOnly(io.BytesIO(data), encoding="bytes").load()
    except Exception as error:  # a broken pickle may raise anything
        raise InputError(f"{printable(where)} is not a file of the CIFAR archive and was refused: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"{printable(where)} is not a file of the CIFAR archive: it holds no dictionary")
    return {_text(key): value for key, value in content.items()}


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
