"""The readers behind `read_table` for pictures: folders, CSV files and parquet files."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rowssl.core.errors import InputError
from rowssl.core.memory import available_memory
from rowssl.core.text import printable
from rowssl.data.images import REFUSED_SUFFIXES, SUFFIXES, ImageColumn, Skipped, unreadable
from rowssl.data.labels import LABEL_COLUMNS, PATH_COLUMNS, encode_labels, labels_from_csv, read_csv
from rowssl.data.table import ROW_BYTES, ImageSubset, Table, stamp

_UNLABELLED_FOLDERS = ("unlabelled", "unlabeled")
_IMAGE_FIRST = ("image", "img", *PATH_COLUMNS)


def read_folder(folder: Path, labels: Path | None, *, label_column: str | None, check_images: bool) -> Table:
    """A folder of images with a CSV of labels, or with a subfolder for each class, or without labels."""
    relative, skipped = _walk(folder)
    names = [printable(path) for path in relative]
    if not relative:
        if skipped:
            raise InputError(f"{printable(str(folder))} holds no images: {skipped[0].name}: {skipped[0].reason}")
        raise InputError(f"folder {printable(str(folder))} holds no images (.jpg, .png, .webp, .tif, ...)")
    values: Sequence[object] = [None] * len(relative)
    if labels is not None:
        # A name that is not UTF-8 cannot stand in a CSV file as it is: its printable form is accepted, too.
        by_printed: dict[str, list[int]] = {}
        for row, (name, path) in enumerate(zip(names, relative, strict=True)):
            if name != path:
                by_printed.setdefault(name, []).append(row)
        by_name = {path: row for row, path in enumerate(relative)}
        values = labels_from_csv(
            labels, len(names), by_name=by_name, by_printed=by_printed, folder=folder, label_column=label_column
        )
    elif all("/" in path for path in relative):
        classes = [path.split("/", 1)[0] for path in relative]
        values = [None if name.lower() in _UNLABELLED_FOLDERS else printable(name) for name in classes]
    root = Path(os.path.abspath(folder))
    return _image_table(
        names, values, paths=[root / path for path in relative], skipped=skipped, check=check_images, source=folder
    )


def _walk(root: Path) -> tuple[list[str], list[Skipped]]:
    """Relative paths of all images below `root`, sorted, and the folders that may not be read; hidden names apart."""
    found: list[str] = []
    skipped: list[Skipped] = []
    seen: set[tuple[int, int]] = set()
    pending = deque([""])
    while pending:
        prefix = pending.popleft()
        try:
            status = os.stat(root / prefix)
            entries = sorted(os.scandir(root / prefix), key=lambda entry: entry.name)
        except OSError as error:
            skipped.append(Skipped(printable(prefix or str(root)), f"the folder cannot be read ({error.strerror})"))
            continue
        if (status.st_dev, status.st_ino) in seen:
            continue  # links may form a circle
        seen.add((status.st_dev, status.st_ino))
        for entry in entries:
            if entry.name.startswith(".") or entry.name == "__MACOSX":
                continue
            if entry.is_dir(follow_symlinks=False):
                pending.appendleft(f"{prefix}{entry.name}/")
            elif entry.is_symlink() and os.path.isdir(entry.path):
                pending.append(f"{prefix}{entry.name}/")  # after all real folders, whose names are the right ones
            elif os.path.splitext(entry.name)[1].lower() in SUFFIXES | REFUSED_SUFFIXES:
                found.append(prefix + entry.name)
    return sorted(found), skipped


def read_image_csv(
    path: Path, labels: Path | None, *, image_column: str | None, label_column: str | None, check_images: bool
) -> Table:
    """A CSV file with a path, and perhaps a label, in each row; paths are relative to the file's folder."""
    table = read_csv(path)
    key = table.need(image_column, PATH_COLUMNS)
    # With a separate file of labels, `label_column` is a column of that file.
    label = None if labels is not None else table.find(label_column, LABEL_COLUMNS)
    for number, cells in table.rows:
        if not cells[key].strip():
            raise InputError(f"{table} row {number} has no path in column {table.columns[key]!r}")
    texts = [cells[key] for _, cells in table.rows]
    values: Sequence[object] = [None if label is None else cells[label] for _, cells in table.rows]
    if labels is not None:
        values = _labels_beside(labels, texts, label_column)
    names = [printable(text) for text in texts]
    return _image_table(names, values, paths=_beside(path, texts), check=check_images, source=path)


def read_parquet(
    path: Path, labels: Path | None, *, image_column: str | None, label_column: str | None, check_images: bool
) -> Table:
    """A parquet file with an image column: Hugging Face structs, bytes, or paths. Nothing is decoded here."""
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise InputError(f"reading {path.name} needs pyarrow: pip install 'rowssl[data]'") from None
    try:
        schema = parquet.read_schema(path, memory_map=True)
        key, label = _parquet_columns(path, schema, image_column, None if labels is not None else label_column)
        columns = [key] if label is None or labels is not None else [key, label]
        table = _columns_of(path, columns)
        return _parquet_table(path, labels, table, schema, key, label, label_column, check_images)
    except InputError:
        raise
    except Exception as error:  # of a damaged file the library may make anything at all (found by Atheris)
        reason = printable(str(error).split("\n")[0])[:100] or type(error).__name__
        raise InputError(f"{printable(str(path))} is not a readable parquet file: {reason}") from None


def _columns_of(path: Path, columns: list[str]) -> Any:
    """Some columns as an Arrow table; a small file may unpack to any number of bytes, so they are counted on the way."""
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    with parquet.ParquetFile(path, memory_map=True) as file:
        free, taken, batches = available_memory(), 0, []
        for batch in file.iter_batches(4096, columns=list(dict.fromkeys(columns))):
            taken += batch.nbytes + ROW_BYTES * batch.num_rows
            if free and taken > free:
                raise InputError(f"{printable(str(path))} unpacks to more than the memory that is free")
            batches.append(batch)
        schema = arrow.schema([file.schema_arrow.field(name) for name in dict.fromkeys(columns)])
    return arrow.Table.from_batches(batches, schema=batches[0].schema if batches else schema)


def _parquet_table(
    path: Path, labels: Path | None, table: Any, schema: Any, key: str, label: str | None, label_column: str | None,
    check_images: bool,
) -> Table:  # fmt: skip
    """Rows from the columns of a parquet file."""
    import pyarrow as arrow

    names = [f"row {row}" for row in range(table.num_rows)]
    images: ImageColumn | None = None
    paths: list[Path] | None = None
    kind, column = schema.field(key).type, table.column(key)
    if arrow.types.is_struct(kind):
        texts = _struct_field(column, "path")
        if texts is not None:
            texts = texts.to_pylist()
            names = [printable(text) if text else name for text, name in zip(texts, names, strict=True)]
        column = _struct_field(column, "bytes")
        if texts is not None and all(texts) and (column is None or column.null_count == len(column)):
            paths = _beside(path, texts)
        elif column is not None:
            images = _ArrowImages(column)
    elif arrow.types.is_binary(kind) or arrow.types.is_large_binary(kind):
        images = _ArrowImages(column)
    elif (arrow.types.is_string(kind) or arrow.types.is_large_string(kind)) and not column.null_count:
        names = [printable(text) for text in column.to_pylist()]
        paths = _beside(path, column.to_pylist())
    if images is None and paths is None:
        raise InputError(f"column {key!r} of {printable(str(path))} holds neither images nor paths but {kind}")
    if labels is not None:
        return _image_table(
            names,
            _labels_beside(labels, names, label_column),
            paths=paths,
            images=images,
            check=check_images,
            source=path,
        )
    values = [None] * len(names) if label is None else table.column(label).to_pylist()
    classes = _class_names(schema, label)
    return _image_table(names, values, paths=paths, images=images, class_names=classes, check=check_images, source=path)


class _ArrowImages:
    """Encoded images in an Arrow column of binaries; a hole is an empty image."""

    def __init__(self, column: Any) -> None:
        self.column = column

    def __len__(self) -> int:
        return len(self.column)

    def __getitem__(self, index: int) -> bytes:
        return self.column[index].as_py() or b""


def _struct_field(column: Any, name: str) -> Any:
    """One field of a struct column with the holes of the struct, None if there is no such field."""
    import pyarrow.compute as compute

    return compute.struct_field(column, name) if column.type.get_field_index(name) >= 0 else None


def _parquet_columns(path: Path, schema: Any, image: str | None, label: str | None) -> tuple[str, str | None]:
    names: list[str] = schema.names
    lower = {name.lower(): name for name in reversed(names)}
    for given in (image, label):
        if given is not None and given not in names:
            raise InputError(f"{printable(str(path))} has no column {given!r}; it has {', '.join(names)}")
    image = image or next((lower[name] for name in _IMAGE_FIRST if name in lower), None)
    if image is None:
        raise InputError(f"{printable(str(path))} has no column named image, img or path; it has {', '.join(names)}")
    return image, label or next((lower[name] for name in LABEL_COLUMNS if name in lower), None)


def _class_names(schema: Any, label: str | None) -> tuple[str, ...] | None:
    """Names of a Hugging Face ClassLabel column; label i is then names[i]."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        names = tuple(printable(str(name)) for name in features[label]["names"])
        return names if len(set(names)) == len(names) else None
    except (KeyError, TypeError, ValueError, RecursionError):
        return None


def _beside(path: Path, texts: Iterable[str]) -> list[Path]:
    folder = Path(os.path.abspath(path)).parent
    return [folder / text for text in texts]  # an absolute text stays as it is


def _labels_beside(labels: Path, texts: Sequence[str], label_column: str | None) -> list[str | None]:
    by_name = {text: row for row, text in enumerate(texts)}  # several rows may have one name
    return labels_from_csv(labels, len(texts), by_name=by_name, folder=None, label_column=label_column, names=texts)


def _image_table(
    names: Sequence[str],
    values: Sequence[object],
    *,
    paths: Sequence[Path] | None = None,
    images: ImageColumn | None = None,
    class_names: tuple[str, ...] | None = None,
    skipped: Sequence[Skipped] = (),
    check: bool,
    source: Path,
) -> Table:
    """Leave out what cannot be read, then turn the labels of the rest into class ids."""
    where = printable(str(source))
    if not names:
        raise InputError(f"{where} has no rows")
    pictures = images if paths is None else paths
    stamps = None if paths is None or not check else [stamp(path) for path in paths]  # before they are looked at
    bad = unreadable(pictures) if check and pictures is not None else {}
    for row, path in enumerate(paths or ()):
        if path.suffix.lower() in REFUSED_SUFFIXES:
            bad[row] = f"images of type {path.suffix.lower()} are not supported; convert it to JPEG or PNG"
    skipped = [*skipped, *(Skipped(names[row], bad[row]) for row in sorted(bad))]
    keep = np.array([row for row in range(len(names)) if row not in bad], dtype=np.int64)
    if not len(keep):
        raise InputError(f"{where} has no readable image; the first of {len(names)}, {names[0]}: {bad[0]}")
    values = [values[row] for row in keep]
    if class_names is not None and all(value is None or isinstance(value, int) for value in values):
        ids = np.array([-1 if value is None else value for value in values], dtype=np.int64)
        wrong = np.flatnonzero((ids < -1) | (ids >= len(class_names)))
        if len(wrong):
            raise InputError(f"{where} row {keep[wrong[0]]} has label {ids[wrong[0]]}, beyond its class names")
    else:
        ids, class_names = encode_labels(values, where=where)
    return Table(
        labels=ids,
        class_names=class_names,
        names=tuple(names[row] for row in keep),
        paths=None if paths is None else tuple(paths[row] for row in keep),
        images=images if images is None or not bad else ImageSubset(images, keep),
        skipped=tuple(skipped),
        source=where,
        stamps=None if stamps is None else tuple(stamps[row] for row in keep),
    )
