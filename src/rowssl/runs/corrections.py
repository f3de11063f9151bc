"""Labels that a person corrects: the rows and the classes that are meant, and what that changes in a run."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rowssl.core.errors import InputError
from rowssl.data.labels import LABEL_COLUMNS, PATH_COLUMNS, ROW_COLUMNS, label_text, read_csv
from rowssl.data.table import Table
from rowssl.runs.edits import Edits

SEARCHED = 5000  # names looked through for a near one


class RowNames:
    """Training rows by the ways people write their names."""

    def __init__(self, table: Table, folder: Path | None) -> None:
        self.names, self.folder = list(table.names), folder
        self.place = {name: row for row, name in enumerate(self.names)}
        self.by_path = {} if table.paths is None else dict(zip(map(str, table.paths), self.names, strict=True))
        self.by_base: dict[str, list[str]] = {}
        for name in self.names:
            self.by_base.setdefault(name.rsplit("/", 1)[-1], []).append(name)

    def find(self, text: str) -> str:
        """The name of the row as predictions.csv has it; InputError says what is near."""
        for name in (text, os.path.normpath(text).replace("\\", "/"), f"row {text.strip()}"):
            if name in self.place:
                return name
        for path in (text, os.path.abspath(text)):
            if path in self.by_path:
                return self.by_path[path]
        same = self.by_base.get(text.rsplit("/", 1)[-1], [])
        if len(same) == 1 and "/" not in text:
            return same[0]
        hint = f": did you mean {' or '.join(same[:3])}" if same else self._near(text)
        raise InputError(f"{text} is not among the training images of {self.folder or 'this run'}{hint}.")

    def _near(self, text: str) -> str:
        near = difflib.get_close_matches(text, self.names[:SEARCHED], 2, 0.6)
        if near:
            return f": did you mean {' or '.join(near)}"
        return f" (see the file column of {self.folder}/predictions.csv)" if self.folder else ""


@dataclass(frozen=True)
class Corrections:
    """What a table of corrections says of a run.

    Attributes
    ----------
    rows
        Name of a row -> the class it belongs to.
    new
        Labels that no class had -> the class each may have been meant for, else an empty text.
    corrected, confirmed
        Rows whose class is another one now, and rows that were in that class already: it is a label from now on.
    """

    rows: dict[str, str]
    new: dict[str, str]
    corrected: int
    confirmed: int


def read_corrections(
    corrections: Mapping[str, str] | str | Path, edits: Edits, names: RowNames, current: list[str]
) -> Corrections:
    """Compare corrections with the class that each row is in; InputError for what cannot be meant.

    Parameters
    ----------
    corrections
        Labels by the name of the row, or a CSV file with a file (or row) and a label column. A label is a class id, a name a
        person gave, or a new label. In an edited copy of predictions.csv only rows whose class was changed count.
    current
        Id of the class of every row.
    """
    rows: dict[str, str] = {}
    lines: dict[str, str] = {}
    new: dict[str, str] = {}
    confirmed = 0
    source = "" if isinstance(corrections, Mapping) else f"{corrections} "
    for line, key, text, copied in _lines(corrections):
        try:
            name = names.find(key)
        except InputError as error:
            raise InputError(f"{source}{line}: {error}") from None
        target, missing = _class_of(edits, text.strip())
        same = target == current[names.place[name]]
        if same and copied:
            continue
        if rows.get(name, target) != target:
            raise InputError(f"{source}{line} labels {name} as {target}, but {lines[name]} as {rows[name]}")
        if missing is not None:
            new[target] = missing
        confirmed += same and name not in rows
        rows[name], lines[name] = target, line
    if not rows:
        where = source.strip() or "The table"
        raise InputError(f"{where} holds no correction: every label is empty or what the run says already")
    return Corrections(rows, new, len(rows) - confirmed, confirmed)


def _lines(corrections: Mapping[str, str] | str | Path) -> Iterator[tuple[str, str, str, bool]]:
    """Where it stands in the table, the row, the label, and whether a label that changes nothing is no correction."""
    if isinstance(corrections, Mapping):
        for key, label in corrections.items():
            yield f"row {key}", str(key), str(label), False
        return
    table = read_csv(Path(corrections))
    copied = "needs_review" in table.columns  # of predictions.csv: a class that was not changed is the model's answer
    column = table.need("class" if copied else None, LABEL_COLUMNS)
    where = table.find(None, (*PATH_COLUMNS, *ROW_COLUMNS))
    if where is None:
        raise InputError(f"{table} has no column named file or row; {table.listing()}")
    for number, cells in table.rows:
        text = label_text(cells[column])
        if text is not None:
            yield f"row {number}", cells[where], text, copied


def _class_of(edits: Edits, text: str) -> tuple[str, str | None]:
    """The class a label means; for a label no class has, the label itself and a hint which class it is near to."""
    try:
        return edits.find(text), None
    except InputError:
        if text in edits.state.divided:
            raise
        if not text.isprintable() or len(text) > 200:
            raise InputError(f"A label is 1 to 200 printable characters on one line, not {text[:40]!r}.") from None
        hint = edits.suggestion(text)
        return text, hint.removeprefix(": ") if "did you mean" in hint else ""
