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

from rowssl.core.errors import InputError
from rowssl.core.memory import available_memory
from rowssl.core.text import printable

PATH_COLUMNS = ("path", "file", "filename", "file_name", "filepath", "image", "img", "image_path")
LABEL_COLUMNS = ("label", "labels", "fine_label", "class", "target", "category")
ROW_COLUMNS = ("row", "index")
# Written where there is no label. "none" and "unknown" may be real classes: `check` mentions them instead.
UNLABELLED = frozenset({"", "-1", "-1.0", "nan", "null", "<na>"})
_READING = 6  # bytes for each byte of a CSV file: itself, its text, and four a character in the hands of its reader
_ROW_BYTES, _CELL_BYTES = 192, 64  # that a row takes besides its cells, and a cell besides its characters
_UNASKED = 2**26  # bytes that are taken anyway: a container counts what it has read of files as memory that is taken
_INTEGER = re.compile(r"\s*[+-]?[0-9]{1,18}\s*")
_WHOLE = re.compile(r"([+-]?[0-9]{1,18})(\.0+)?")


@dataclass(frozen=True)
class CsvFile:
    """A CSV file in memory. Rows are numbered as a spreadsheet shows them: the header is row 1."""

    path: Path
    columns: list[str]
    rows: list[tuple[int, list[str]]]
    blank: int = 0  # empty lines at the end of a file of one column, which may be rows without a label

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
        _require_memory(_READING * path.stat().st_size, name)
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
    _require_memory(_size_of_rows(text, delimiter), name)
    columns: list[str] = []
    rows: list[tuple[int, list[str]]] = []
    number = blank = 0
    try:
        for number, cells in enumerate(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True), 1):
            if number == 1:
                columns = [cell.strip() for cell in cells]
                if not any(columns):
                    break
            elif not cells:
                blank += 1
            elif len(cells) != len(columns):
                raise InputError(f"{name} row {number} has {len(cells)} cells, but its first row names {len(columns)}")
            else:
                if len(columns) == 1:  # an empty line is an empty cell
                    rows.extend((empty, [""]) for empty in range(number - blank, number))
                rows.append((number, cells))
                blank = 0
    except csv.Error as error:
        raise InputError(
            f"{name} is not a well-formed CSV file near row {number + 1}: {printable(str(error))}"
        ) from None
    if not any(columns):
        raise InputError(f"{name} has no first row that names the columns")
    return CsvFile(path, columns, rows, blank if len(columns) == 1 else 0)


def _size_of_rows(text: str, delimiter: str) -> int:
    """How many bytes the rows of a CSV file take at most: hundreds for a line of one character."""
    end = len(text.rstrip("\r\n"))  # empty lines at the end are counted, not kept
    lines = text.count("\n", 0, end) + text.count("\r", 0, end) - text.count("\r\n", 0, end) + 1
    cells = lines + text.count(delimiter, 0, end)
    return lines * _ROW_BYTES + cells * _CELL_BYTES + _READING * len(text)


def _require_memory(needed: int, name: str) -> None:
    """An InputError when the memory for a file is not there."""
    free = available_memory()
    if needed > _UNASKED and free and needed > free:
        raise InputError(f"{name} needs {needed / 1e9:.1f} GB to be read, more than the memory that is free")


def labels_from_csv(
    path: Path,
    count: int,
    *,
    by_name: Mapping[str, int] | None,
    folder: Path | None,
    label_column: str | None,
    by_printed: Mapping[str, Sequence[int]] | None = None,
    names: Sequence[str] | None = None,
) -> list[str | None]:
    """One label (or None) for each of `count` rows.

    The file names rows by a path column (looked up in `by_name`, then in `by_printed`, where files may share a name), by a
    `row` column (from 0), or, where the order of the rows is certain (`folder` is None), by having exactly one label for
    each row. With `names`, those of all rows, a path labels every row of that name.
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
            row = _row_of_path(table, number, cells[key], by_name or {}, by_printed or {}, folder)
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
    if names is None or by_name is None or by_number is not None:
        return result
    return [result[by_name[name]] for name in names]


def _in_order(table: CsvFile, count: int) -> list[str | None]:
    values = [cells[0] for _, cells in table.rows]
    values += [""] * min(table.blank, max(0, count - len(values)))
    while len(values) > count and not values[-1]:
        values.pop()  # empty cells at the end of the file
    if len(values) != count:
        raise InputError(f"{table} has {len(values)} labels for {count} rows; add a 'row' column to label only some")
    return [label_text(value) for value in values]


def _row_number(table: CsvFile, number: int, text: str, count: int) -> int:
    if not _INTEGER.fullmatch(text) or not 0 <= int(text) < count:
        raise InputError(f"{table} row {number} names row {text!r}, but rows are numbered from 0 to {count - 1}")
    return int(text)


def _row_of_path(
    table: CsvFile,
    number: int,
    text: str,
    by_name: Mapping[str, int],
    by_printed: Mapping[str, Sequence[int]],
    folder: Path | None,
) -> int:
    if not text.strip():
        raise InputError(f"{table} row {number} has no path")
    spellings = (text, relative_to(text, folder))
    for candidate in spellings:
        if candidate in by_name:
            return by_name[candidate]
    # No file of just that name: backslashes may be meant as slashes, or as the escapes of a name that cannot be written.
    slashed = text.replace("\\", "/")
    possible = [by_name[name] for name in (slashed, relative_to(slashed, folder)) if name in by_name][:1]
    possible += [row for name in spellings for row in by_printed.get(name, ())]
    if len(set(possible)) > 1:
        raise InputError(f"{table} row {number} names {printable(text)!r}, which may mean {len(set(possible))} files")
    if possible:
        return possible[0]
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
