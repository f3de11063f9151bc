"""Labels as people write them: CSV files, text, numbers and holes -> class ids."""

from __future__ import annotations

import csv
import io
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import InputError
from .images import printable

PATH_COLUMNS = ("path", "file", "filename", "file_name", "filepath", "image", "img", "image_path")
LABEL_COLUMNS = ("label", "labels", "fine_label", "class", "target", "category")
ROW_COLUMNS = ("row", "index")
# Written where there is no label. "none" and "unknown" may be real classes: `check` mentions them instead.
UNLABELLED = frozenset({"", "-1", "-1.0", "nan", "null", "<na>"})
_INTEGER = re.compile(r"\s*[+-]?[0-9]{1,18}\s*")
_WHOLE = re.compile(r"([+-]?[0-9]{1,18})(\.0+)?")


@dataclass(frozen=True)
class CsvFile:
    """A CSV file in memory. Rows are numbered as a spreadsheet shows them: the header is row 1."""

    path: Path
    columns: list[str]
    rows: list[tuple[int, list[str]]]

    def find(self, wanted: str | None, known: Sequence[str]) -> int | None:
        """Position of the column `wanted`, else of the first of `known` that exists, whatever its case."""
        if wanted is not None:
            if wanted not in self.columns:
                raise InputError(f"{self} has no column {wanted!r}; {self.listing()}")
            return self.columns.index(wanted)
        lower = [column.lower() for column in self.columns]
        return next((lower.index(name) for name in known if name in lower), None)

    def need(self, wanted: str | None, known: Sequence[str]) -> int:
        """As `find`, but a missing column is the user's mistake."""
        position = self.find(wanted, known)
        if position is None:
            raise InputError(f"{self} has no column named {' or '.join(known[:4])}; {self.listing()}")
        return position

    def listing(self) -> str:
        """The columns there are, for an error message."""
        return f"its first row names the columns {', '.join(repr(column) for column in self.columns)}"

    def __str__(self) -> str:
        return printable(str(self.path))


def read_csv(path: Path) -> CsvFile:
    """Read a CSV file (UTF-8, separated by commas, semicolons or tabs) whose first row names the columns."""
    name = printable(str(path))
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror or error}") from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        row = data[: error.start].count(b"\n") + 1
        raise InputError(f"{name} is not UTF-8 text (row {row}); save it again as 'CSV UTF-8'") from None
    first = text.split("\n", 1)[0]
    delimiter = max(",;\t", key=first.count)
    records: list[list[str]] = []
    try:
        records.extend(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True))
    except csv.Error as error:
        raise InputError(
            f"{name} is not a well-formed CSV file near row {len(records) + 1}: {printable(str(error))}"
        ) from None
    if not records or not any(cell.strip() for cell in records[0]):
        raise InputError(f"{name} has no first row that names the columns")
    columns = [cell.strip() for cell in records[0]]
    rows = []
    for number, cells in enumerate(records[1:], start=2):
        if not cells and len(columns) > 1:
            continue  # an empty line; in a file of one column it is an empty cell
        cells = cells or [""]
        if len(cells) != len(columns):
            raise InputError(f"{name} row {number} has {len(cells)} cells, but its first row names {len(columns)}")
        rows.append((number, cells))
    return CsvFile(path, columns, rows)


def labels_from_csv(
    path: Path, count: int, *, by_name: Mapping[str, int] | None, folder: Path | None, label_column: str | None
) -> list[str | None]:
    """One label (or None) for each of `count` rows.

    The file names rows by a path column (looked up in `by_name`), by a `row` column (from 0), or, where the order of
    the rows is certain (`folder` is None), by having exactly one label for each row.
    """
    table = read_csv(path)
    label = table.need(label_column, LABEL_COLUMNS)
    key = table.find(None, PATH_COLUMNS) if by_name is not None else None
    by_number = None
    if key is None and folder is None:
        key = by_number = table.find(None, ROW_COLUMNS)
    if key is None and folder is None and len(table.columns) == 1:
        return _in_order(table, count)
    if key is None:
        known = PATH_COLUMNS[:4] if folder is not None else ROW_COLUMNS
        raise InputError(f"{table} has no column named {' or '.join(known)}; {table.listing()}")
    result: list[str | None] = [None] * count
    given_by: dict[int, int] = {}
    for number, cells in table.rows:
        if by_number is not None:
            row = _row_number(table, number, cells[key], count)
        else:
            row = _row_of_path(table, number, cells[key], by_name or {}, folder)
        text = label_text(cells[label])
        if text is None:
            continue
        if result[row] is not None and result[row] != text:
            raise InputError(
                f"{table} row {number} labels {printable(cells[key])!r} as {text!r}, "
                f"but row {given_by[row]} labels it as {result[row]!r}"
            )
        result[row] = text
        given_by[row] = number
    return result


def _in_order(table: CsvFile, count: int) -> list[str | None]:
    values = [cells[0] for _, cells in table.rows]
    while len(values) > count and not values[-1]:
        values.pop()  # empty lines at the end of the file
    if len(values) != count:
        raise InputError(f"{table} has {len(values)} labels for {count} rows; add a 'row' column to label only some")
    return [label_text(value) for value in values]


def _row_number(table: CsvFile, number: int, text: str, count: int) -> int:
    if not _INTEGER.fullmatch(text) or not 0 <= int(text) < count:
        raise InputError(f"{table} row {number} names row {text!r}, but rows are numbered from 0 to {count - 1}")
    return int(text)


def _row_of_path(table: CsvFile, number: int, text: str, by_name: Mapping[str, int], folder: Path | None) -> int:
    if not text.strip():
        raise InputError(f"{table} row {number} has no path")
    for spelling in (text, text.replace("\\", "/")):
        for candidate in (spelling, relative_to(spelling, folder)):
            if candidate in by_name:
                return by_name[candidate]
    where = "among the images" if folder is None else f"in {printable(str(folder))}"
    if folder is not None and os.path.exists(folder / text):
        raise InputError(f"{table} row {number} names {printable(text)!r}, which is {where} but is not an image file")
    raise InputError(f"{table} row {number} names {printable(text)!r}, which is not {where}")


def relative_to(text: str, folder: Path | None) -> str:
    """A path as written in a CSV -> relative to `folder`, with forward slashes and without `./`."""
    if folder is not None and os.path.isabs(text):
        text = os.path.relpath(text, os.path.abspath(folder))
    return os.path.normpath(text).replace(os.sep, "/")


def label_text(value: object) -> str | None:
    """One label as text on one line, None for what means unlabelled."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, float):
        value = None if math.isnan(value) else str(int(value)) if value.is_integer() else str(value)
    text = "" if value is None else str(value)
    return None if text.strip().lower() in UNLABELLED else printable(text)


def encode_labels(values: Iterable[object], *, where: str = "labels") -> tuple[np.ndarray, tuple[str, ...]]:
    """Labels as text, numbers or holes -> int64 ids (N,) with -1 for unlabelled, and the class names in order.

    Names are sorted as numbers when all of them are whole numbers, else as text. `3.0` means `3` when all are whole:
    spreadsheets and data frames write it so as soon as one label is missing.
    """
    texts: list[str | None] = []
    for row, value in enumerate(values):
        if isinstance(value, int | float) and value == value and (value < -1 or value % 1):
            raise InputError(f"{where}: the label of row {row} is {value}; a label is text or a whole number from 0 on")
        texts.append(label_text(value))
    present = {text for text in texts if text is not None}
    matches = {text: _WHOLE.fullmatch(text) for text in present}
    whole = {text: match[1] for text, match in matches.items() if match}
    if len(whole) == len(present):
        texts = [None if text is None else whole[text] for text in texts]
        present = set(whole.values())
    names = sort_names(present)
    ids = {name: i for i, name in enumerate(names)}
    return np.array([-1 if text is None else ids[text] for text in texts], dtype=np.int64), names


def sort_names(names: Iterable[str]) -> tuple[str, ...]:
    """Class names in order: as numbers when all are whole numbers, else as text."""
    names = list(names)
    if all(_INTEGER.fullmatch(name) for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))
