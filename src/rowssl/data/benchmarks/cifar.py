"""CIFAR-10 and CIFAR-100 from what people have: Hugging Face parquet files or the original python archive.

The original archive holds pickles, a format that may call any function: the unpickler here finds nothing but what makes a numpy
array. Archives are read in memory, nothing is extracted to disk, and no more is decompressed than CIFAR can have.
"""

from __future__ import annotations

import gzip
import io
import pickle
import pickletools
import tarfile
import zlib
from bisect import bisect_right
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from rowssl.core.errors import InputError
from rowssl.core.text import printable
from rowssl.data.images import ImageColumn
from rowssl.data.table import Table, read_table

NAMES = {
    "cifar10": "60,000 photographs of 32 x 32 pixels in 10 classes",
    "cifar100": "60,000 photographs of 32 x 32 pixels in 100 classes",
}
WANTS = (
    "train.parquet and test.parquet of Hugging Face, or the original cifar-10-python.tar.gz or cifar-100-python.tar.gz"
)
_MEMBER_BYTES = 400_000_000  # the largest real member has 153 MB
_ARCHIVE_BYTES = 800_000_000  # real archives have 186 MB unpacked
_MEMBERS = 300  # real archives have at most 9; each is 512 bytes that pack to nearly nothing, and an object here
_LAYOUT = {
    10: ("cifar-10-batches-py", "cifar-10-python.tar.gz", tuple(f"data_batch_{i}" for i in range(1, 6)), "test_batch"),
    100: ("cifar-100-python", "cifar-100-python.tar.gz", ("train",), "test"),
}
_KEYS = {10: ("labels", "batches.meta", "label_names"), 100: ("fine_labels", "meta", "fine_label_names")}
_LABEL_COLUMNS = {10: ("label", "labels"), 100: ("fine_label", "fine_labels", "label")}


def read(name: str, folder: Path, **_: object) -> tuple[Table, Table] | None:
    """Train and test table of CIFAR in `folder`; None if no file of it is there."""
    classes = 10 if name == "cifar10" else 100
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
    if not path.is_file():
        return None
    if path.stat().st_size > _MEMBER_BYTES:
        raise InputError(f"{printable(str(path))} is no file of CIFAR's size")
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{printable(str(path))} cannot be read: {error.strerror or error}") from None


class _Bounded:
    """What `tarfile` needs of a file, up to a size: a small file may unpack to any number of bytes."""

    def __init__(self, stream: Any) -> None:
        self.stream, self.tell = stream, stream.tell

    def seek(self, place: int, whence: int = 0) -> int:
        if whence or place > _ARCHIVE_BYTES:
            raise tarfile.ReadError("it unpacks to more than CIFAR has")
        return self.stream.seek(place)

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _MEMBER_BYTES or self.tell() + size > _ARCHIVE_BYTES:
            raise tarfile.ReadError("it unpacks to more than CIFAR has")
        return self.stream.read(size)


def _read_archive(path: Path, classes: int) -> tuple[Table, Table]:
    inner = _LAYOUT[classes][0]
    try:
        with gzip.open(path) as stream, tarfile.open(fileobj=cast(IO[bytes], _Bounded(stream)), mode="r:") as archive:
            entries: dict[str, tarfile.TarInfo] = {}
            for number, found in enumerate(archive):  # `getmember` would list all of them first
                if number >= _MEMBERS:
                    raise tarfile.ReadError("it holds more files than CIFAR has")
                entries[found.name] = found

            def member(name: str) -> bytes | None:
                entry = entries.get(f"{inner}/{name}")
                if entry is None:
                    return None
                if not entry.isfile() or entry.size > _MEMBER_BYTES:
                    raise InputError(f"{printable(str(path))}: {name} is no file of CIFAR's size")
                file = archive.extractfile(entry)
                return None if file is None else file.read()

            return _read_members(path, classes, member)
    except (tarfile.TarError, zlib.error, OSError, EOFError, RecursionError) as error:  # headers of headers of headers
        raise InputError(f"{printable(str(path))} is not a readable archive: {printable(str(error))}") from error


_NUMBERS = {f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)}


class _Kind:
    """What a pickle says of numpy's `dtype`."""

    order = "|"

    def __init__(self, code: Any, *_: Any) -> None:
        if text_of(code) not in _NUMBERS:
            raise ValueError(f"it holds an array of {text_of(code)[:20]!r}")
        self.code = text_of(code)

    def __setstate__(self, state: Any) -> None:
        self.order = {"|": "|", "<": "<", ">": ">", "=": "="}[text_of(state[1])]


class _Array:
    """What a pickle says of an array: version, shape, dtype, order, bytes."""

    value: np.ndarray | None = None

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, content = state
        if not isinstance(kind, _Kind) or not isinstance(content, bytes) or len(shape) > 4:
            raise ValueError("it holds an array of something else than numbers")
        flat = np.frombuffer(content, np.dtype(kind.order + kind.code))
        self.value = flat.reshape(shape, order="F" if fortran else "C")


# All that numpy names when it writes an array. Its own classes would allocate whatever size they are asked for.
_NAMES = {
    ("numpy", "ndarray"): None,
    ("numpy", "dtype"): _Kind,
    ("numpy.core.multiarray", "_reconstruct"): _Array,  # as the published archives say
    ("numpy._core.multiarray", "_reconstruct"): _Array,  # as numpy 2 says
}
_TEXTS = {"BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES",
          "BINBYTES8"}  # fmt: skip
_PUT, _GET = {"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"}, {"GET", "BINGET", "LONG_BINGET"}
_TUPLES = {"TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"}
_SHARED = _TEXTS | {
    "GLOBAL",
    "STACK_GLOBAL",
    "REDUCE",
    "BUILD",
    "EMPTY_TUPLE",
}  # what may occur twice: never a nest of lists
_OPERATIONS = {
    *("PROTO", "FRAME", "MARK", "STOP", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1"),
    *("EMPTY_LIST", "EMPTY_DICT", "DICT", "LIST", "APPEND", "APPENDS", "SETITEM", "SETITEMS"),
    *_SHARED, *_PUT, *_GET, *_TUPLES,
}  # fmt: skip
OPERATIONS = 4_000_000  # in a file, each of which may take a hundred bytes; the largest real one has about 400,000
TUPLES = 100  # in a file; an array has five of them


class _Unpickler(pickle.Unpickler):
    """Knows lists, dictionaries, tuples, numbers, texts and arrays of numbers."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _NAMES:
            raise ValueError(f"it asks for {module}.{name}")
        return _NAMES[module, name]


def _check_operations(data: bytes) -> None:
    """A ValueError unless a pickle has only operations that files of arrays have, and no more of them."""
    tuples, before, kept = 0, "", dict[int, str]()
    for number, (operation, argument, _) in enumerate(pickletools.genops(data)):
        name = operation.name
        tuples += name in _TUPLES
        if number >= OPERATIONS or tuples > TUPLES:
            raise ValueError("it has more operations than a file of arrays")
        if name not in _OPERATIONS:
            raise ValueError(f"it has the operation {name}, which no file of arrays needs")
        if name in _PUT:
            place = len(kept) if argument is None else int(argument)
            if place > number:  # the unpickler would make a list of that length
                raise ValueError("it numbers its values as no file of arrays does")
            kept[place] = before
            continue
        if name in _GET and kept.get(int(argument or 0), "") not in _SHARED:
            raise ValueError("it holds a value within others many times")
        before = name


def read_pickled_arrays(data: bytes, where: str) -> dict[str, Any]:
    """The dictionary in a pickle, arrays and byte strings in it; InputError for anything else."""
    try:
        _check_operations(data)
        content = _Unpickler(io.BytesIO(data), encoding="bytes").load()
    except (pickle.UnpicklingError, ValueError, LookupError, TypeError, AttributeError, EOFError, ArithmeticError, MemoryError,
            RecursionError) as error:  # fmt: skip
        reason = printable(" ".join(str(error).split()))[:120] or type(error).__name__
        raise InputError(f"{printable(where)} is not a file of the CIFAR archive and was refused: {reason}") from None
    if not isinstance(content, dict):
        raise InputError(f"{printable(where)} is not a file of the CIFAR archive: it holds no dictionary")
    return {text_of(key): value.value if isinstance(value, _Array) else value for key, value in content.items()}


def text_of(value: Any) -> str:
    """A byte string or a text as text; anything else is none."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value if isinstance(value, str) else ""


def _read_members(where: Path, classes: int, read: Callable[[str], bytes | None]) -> tuple[Table, Table]:
    """Train and test table from the archive's members, rows in the published order."""
    _, _, train_members, test_member = _LAYOUT[classes]
    label_key, meta_member, names_key = _KEYS[classes]

    def load(name: str) -> dict[str, Any]:
        data = read(name)
        if data is None:
            raise InputError(f"{printable(str(where))} has only a part of CIFAR-{classes}: {name} is missing")
        return read_pickled_arrays(data, f"{where}: {name}")

    meta = load(meta_member).get(names_key)
    if not isinstance(meta, list) or len(meta) != classes:
        raise InputError(f"{printable(str(where))}: {meta_member} does not name {classes} classes")
    names = tuple(printable(text_of(name)) for name in meta)

    def table(members: tuple[str, ...]) -> Table:
        images: list[np.ndarray] = []
        labels: list[np.ndarray] = []
        files: list[str] = []
        for name in members:
            content = load(name)
            pixels, ids = content.get("data"), _ids(content.get(label_key))
            if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (3072,):
                raise InputError(f"{printable(str(where))}: {name} holds no images of 32 x 32 pixels")
            if ids.shape != (len(pixels),) or not ((ids >= 0) & (ids < classes)).all():
                raise InputError(f"{printable(str(where))}: {name} does not hold one label of {classes} for each image")
            given = content.get("filenames")
            if not isinstance(given, list) or len(given) != len(pixels):
                given = [f"row {len(files) + i}" for i in range(len(pixels))]
            images.append(pixels)
            labels.append(ids)
            files += [text_of(file) for file in given]
        # The archive keeps the three colour planes one after the other; a picture has them per pixel.
        pictures = np.concatenate(images).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        shown = tuple(printable(name) for name in files)
        return Table(np.concatenate(labels), names, shown, images=pictures, source=printable(str(where)))

    return table(train_members), table((test_member,))


def _ids(values: Any) -> np.ndarray:
    """Class ids as they stand in the file, a list or an array; none if they are anything else."""
    if isinstance(values, list) and all(type(value) is int and abs(value) < 2**31 for value in values):
        return np.array(values, dtype=np.int64)
    return values if isinstance(values, np.ndarray) else np.empty(0, dtype=np.int64)
