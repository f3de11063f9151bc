"""A data set is a table: one row for each picture or embedding, with a label or none."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Sequence, Sized
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rowssl.core.console import track
from rowssl.core.errors import InputError
from rowssl.core.memory import release, require_whole
from rowssl.core.text import printable
from rowssl.data.images import ImageColumn, Skipped, open_image

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["ImageColumn", "ImageSubset", "Skipped", "Table", "read_table", "write_folder"]

_HASH_ROWS = 8192
ROW_BYTES = 150  # that a row takes besides its values: its name, and its label a few times over


class ImageSubset:
    """Some rows of an image column, in the order of `rows`."""

    def __init__(self, column: ImageColumn, rows: np.ndarray) -> None:
        self.column: ImageColumn = column
        self.rows: np.ndarray = rows
        if isinstance(column, ImageSubset):  # a subset of a subset is one look-up, however often one takes
            self.column, self.rows = column.column, column.rows[rows]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> bytes | np.ndarray:
        return self.column[int(self.rows[index])]


@dataclass(frozen=True, eq=False)
class Table:
    """Rows with labels, and pictures or embeddings or both.

    Attributes
    ----------
    labels
        int64 (N,), an index into `class_names`; -1 = unlabelled.
    class_names
        The classes in order. Where the file holds a hidden `truth`, its classes are among them.
    names
        What a person calls row i: a relative path, or "row 17" (from 0). Always printable on one line.
    paths
        The absolute file of row i, where the pictures are files.
    images
        The pictures as a column of bytes or arrays, where they are not files.
    embeddings
        (N, D) float32 or float16, possibly memory-mapped.
    views
        (V, N, D) embeddings of augmented views.
    truth
        int64 (N,) hidden labels, for evaluation alone; -1 = not known.
    test
        A second table for inductive evaluation; its labels are the truth.
    skipped
        The inputs that could not be read and are not among the rows.
    source
        Where the table came from.
    stamps
        Size and time of the files when they were looked at.
    """

    labels: np.ndarray
    class_names: tuple[str, ...]
    names: Sequence[str]
    paths: tuple[Path, ...] | None = None
    images: ImageColumn | None = None
    embeddings: np.ndarray | None = None
    views: np.ndarray | None = None
    truth: np.ndarray | None = None
    test: Table | None = None
    skipped: tuple[Skipped, ...] = ()
    source: str = ""
    stamps: tuple[tuple[int, int], ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", np.asarray(self.labels, dtype=np.int64))
        rows = len(self.labels)
        columns: dict[str, Sized | None] = {
            "names": self.names,
            "paths": self.paths,
            "images": self.images,
            "truth": self.truth,
        }
        columns["stamps"] = self.stamps
        columns["embeddings"] = self.embeddings
        columns["views"] = None if self.views is None else self.views[0]
        for name, column in columns.items():
            if column is not None and len(column) != rows:
                raise ValueError(f"a table of {rows} labels has {len(column)} {name}")
        if rows and not (self.labels.min() >= -1 and self.labels.max() < len(self.class_names)):
            raise ValueError(f"a table of {len(self.class_names)} classes has labels beyond them")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def has_images(self) -> bool:
        """Whether row i can be shown as a picture."""
        return self.paths is not None or self.images is not None

    def image(self, i: int) -> Image.Image:
        """The picture of row `i` as RGB; an `ImageError` names the row."""
        if self.paths is not None:
            return open_image(self.paths[i], name=self.names[i])
        if self.images is not None:
            return open_image(self.images[i], name=self.names[i])
        raise InputError(f"{self.source or 'the table'} holds embeddings and no images")

    def take(self, rows: np.ndarray | Sequence[int]) -> Table:
        """The table of these rows (indices, or a mask), in this order, with the same classes."""
        index = np.arange(len(self))[np.asarray(rows, dtype=None if len(rows) else np.int64)]
        return replace(
            self,
            labels=self.labels[index],
            names=tuple(self.names[i] for i in index),
            paths=None if self.paths is None else tuple(self.paths[i] for i in index),
            images=None if self.images is None else ImageSubset(self.images, index),
            embeddings=None if self.embeddings is None else self.embeddings[index],
            views=None if self.views is None else self.views[:, index],
            truth=None if self.truth is None else self.truth[index],
            stamps=None if self.stamps is None else tuple(self.stamps[i] for i in index),
        )

    def require_unchanged(self) -> None:
        """An InputError that names the first file which is no longer the one that was looked at."""
        for name, path, before in zip(self.names, self.paths or (), self.stamps or (), strict=False):
            if stamp(path) != before:
                raise InputError(f"{name} was changed or removed after it was checked: run the same command again.")

    def fingerprint(self) -> str:
        """sha256 (hex) over classes, names, labels and content: size and time of files, bytes of everything else."""
        digest = hashlib.sha256()
        _hash_text(digest, self.class_names)
        _hash_text(digest, self.names)
        _hash_array(digest, self.labels)
        if self.paths is not None:
            for path in self.paths:
                try:
                    status = path.stat()
                except OSError as error:
                    raise InputError(f"{printable(str(path))} cannot be read: {error.strerror}") from None
                digest.update(b"%d %d;" % (status.st_size, status.st_mtime_ns))
        if self.images is not None:
            for i in range(len(self)):
                item = self.images[i]
                if isinstance(item, np.ndarray):
                    _hash_array(digest, item)
                else:
                    digest.update(b"%d:" % len(item))
                    digest.update(item)
        for array in (self.embeddings, *(() if self.views is None else self.views)):
            if array is not None:
                _hash_array(digest, array)
        return digest.hexdigest()


def read_table(
    source: str | Path,
    *,
    labels: str | Path | None = None,
    image_column: str | None = None,
    label_column: str | None = None,
    check_images: bool = True,
) -> Table:
    """Read a data set of any of the usual shapes.

    Parameters
    ----------
    source
        A folder of images; a folder with one subfolder per class (`unlabelled` for images without); a `.csv` or
        `.parquet` file with an image column (paths beside the file, or the bytes themselves as Hugging Face writes
        them); or embeddings in `.npy`, `.npz` or `.safetensors` under the key `embeddings`, with optional `labels`,
        `views`, `truth`, `test_embeddings` and `test_truth`.
    labels
        A CSV file with some of the labels: `path,label` for images, `row,label` (from 0) or one `label` for each row
        otherwise. It replaces the labels that `source` itself would give.
    image_column, label_column
        The columns to use, where they have unusual names.
    check_images
        Decode every image once; those that cannot be read are left out and listed in `Table.skipped`.

    Returns
    -------
    Table
        An empty label, `-1`, NaN, null and a missing row all mean unlabelled.

    Raises
    ------
    InputError
        One sentence that names the file and the row.
    """
    from rowssl.data import embeddings, readers

    path, name = Path(source), printable(str(source))
    labels_path = None if labels is None else Path(labels)
    try:
        is_folder = path.is_dir()
        if not is_folder:
            path.stat()
    except FileNotFoundError:
        raise InputError(f"{name} does not exist") from None
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror or error}") from None
    if is_folder:
        return readers.read_folder(path, labels_path, label_column=label_column, check_images=check_images)
    suffix = path.suffix.lower()
    if suffix in (".csv", ".tsv", ".parquet"):
        reader = readers.read_parquet if suffix == ".parquet" else readers.read_image_csv
        return reader(
            path, labels_path, image_column=image_column, label_column=label_column, check_images=check_images
        )
    if suffix in (".npy", ".npz", ".safetensors"):
        return embeddings.read_embeddings(path, labels_path, label_column=label_column)
    raise InputError(f"{name} is neither a folder nor a .csv, .tsv, .parquet, .npy, .npz or .safetensors file")


def write_folder(table: Table, folder: str | Path, *, labels_csv: str | Path | None = None) -> Path:
    """Write the pictures of a table as `000000.png`, `000001.png`, ... and, if asked, the labels there are.

    Parameters
    ----------
    table
        A table with pictures.
    folder
        Where to write; made if it does not exist. Files of other names in it are left alone.
    labels_csv
        A CSV file `path,label` to write as well, with one row for each labelled picture.

    Returns
    -------
    Path
        The folder.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for i in track(range(len(table)), "writing images"):
        table.image(i).save(folder / f"{i:06d}.png")
    if labels_csv is not None:
        with open(labels_csv, "w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            writer.writerow(["path", "label"])
            for row, label in enumerate(table.labels):
                if label >= 0:
                    writer.writerow([f"{row:06d}.png", table.class_names[label]])
    return folder


def stamp(path: Path) -> tuple[int, int]:
    """Size and time of a file, (-1, -1) if there is none."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return -1, -1
    return status.st_size, status.st_mtime_ns


def _hash_text(digest: hashlib._Hash, texts: Sequence[str]) -> None:
    """Add texts with their lengths, so that ("ab", "c") and ("a", "bc") differ."""
    digest.update(b"%d;" % len(texts))
    for text in texts:
        data = text.encode("utf-8", "surrogateescape")
        digest.update(b"%d:" % len(data))
        digest.update(data)


def _hash_array(digest: hashlib._Hash, array: np.ndarray) -> None:
    """Add type, shape and content, some rows at a time so that a memory-mapped array stays on disk."""
    digest.update(f"{array.dtype.str}{array.shape};".encode())
    for start in range(0, len(array), _HASH_ROWS):
        require_whole(array)
        digest.update(np.ascontiguousarray(array[start : start + _HASH_ROWS]).tobytes())
        release(array)
