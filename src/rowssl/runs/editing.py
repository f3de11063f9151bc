"""Edits of a run as a person makes them: each is recorded, and the files people read are written again.

Every function takes the run directory first, returns the edits after the change and what could not be written again, and is
safe while other processes edit the same run. `report=False` leaves report.html as it is, for whoever edits many times in a row;
`terms` are for whoever cannot wait for those other processes as long as they take.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from rowssl.core.errors import InputError, in_a_sentence
from rowssl.data.labels import LABEL_COLUMNS, PATH_COLUMNS, ROW_COLUMNS, label_text, read_csv
from rowssl.runs.edits import Edits, change
from rowssl.runs.files import rewrite
from rowssl.runs.folder import locked, run_folder
from rowssl.runs.run import StoredRun, open_run

SEARCHED = 5000  # names looked through for a near one


@dataclass(frozen=True)
class Changed:
    """The edits after a change, what could not be written again (one sentence each), and whether that includes a table."""

    edits: Edits
    problems: tuple[str, ...]
    failed: bool = False


@dataclass(frozen=True)
class Terms:
    """Of somebody who cannot wait for ever: seconds to wait for other processes, and the last word before an edit is saved."""

    patience: float
    last_word: Callable[[], None]  # raises an InputError if the edit is no longer wanted


def _change(run: str | Path, edit: Callable[[Edits], Edits], report: bool, terms: Terms | None = None) -> Changed:
    folder = run_folder(run)
    problems: list[str] = []
    failures: list[str] = []

    def write_again(edits: Edits) -> None:
        try:
            problems.extend(rewrite(folder, edits, report=report))
        except (InputError, OSError) as error:  # the edit counts: who hears of the error alone would make it again
            reason = str(error) if isinstance(error, InputError) else in_a_sentence(error)
            failures.append(f"The edit is saved, but not everything that shows it could be written: {reason}")

    def edit_unless_given_up(edits: Edits) -> Edits:
        edits = edit(edits)
        if terms is not None:
            terms.last_word()
        return edits

    lock = partial(locked, patience=None if terms is None else terms.patience)
    edits = change(folder, edit_unless_given_up, write_again, lock)
    return Changed(edits, (*problems, *failures), failed=bool(failures))


def rename(run: str | Path, which: str, name: str, *, report: bool = True, terms: Terms | None = None) -> Changed:
    """Call a class something."""
    return _change(run, lambda edits: edits.rename(which, name), report, terms)


def merge(
    run: str | Path, into: str, others: Sequence[str], *, report: bool = True, terms: Terms | None = None
) -> Changed:
    """Make the images of other classes images of `into`; one edit for each."""

    def edit(edits: Edits) -> Edits:
        for other in others:
            edits = edits.merge(into, other)
        return edits

    return _change(run, edit, report, terms)


def split(run: str | Path, which: str, *, parts: int = 2, report: bool = True, terms: Terms | None = None) -> Changed:
    """Divide a class in two (or more) by what its training images look like to the model."""

    def edit(edits: Edits) -> Edits:
        place = edits.place[edits.find(which)]
        answers = open_run(run, edits, images=False).answers
        return edits.split(which, answers.feature[answers.rows_of(place)], parts)

    return _change(run, edit, report, terms)


def move(
    run: str | Path, files: Sequence[str], which: str, *, report: bool = True, terms: Terms | None = None
) -> Changed:
    """Put training images into another class."""

    def edit(edits: Edits) -> Edits:
        rows = RowNames(open_run(run, edits, images=False))
        return edits.move({rows.find(file): which for file in files})

    return _change(run, edit, report, terms)


def undo(run: str | Path, *, report: bool = True, terms: Terms | None = None) -> Changed:
    """Take the last edit back."""
    return _change(run, Edits.undo, report, terms)


class RowNames:
    """Training rows by the ways people write their names."""

    def __init__(self, stored: StoredRun) -> None:
        table = stored.problem.table
        self.names, self.folder = list(table.names), stored.folder
        self.known = set(self.names)
        self.by_path = {} if table.paths is None else dict(zip(map(str, table.paths), self.names, strict=True))
        self.by_base: dict[str, list[str]] = {}
        for name in self.names:
            self.by_base.setdefault(name.rsplit("/", 1)[-1], []).append(name)

    def find(self, text: str) -> str:
        """The name of the row as predictions.csv has it; InputError says what is near."""
        for name in (text, os.path.normpath(text).replace("\\", "/"), f"row {text.strip()}"):
            if name in self.known:
                return name
        for path in (text, os.path.abspath(text)):
            if path in self.by_path:
                return self.by_path[path]
        same = self.by_base.get(text.rsplit("/", 1)[-1], [])
        if len(same) == 1 and "/" not in text:
            return same[0]
        hint = f": did you mean {' or '.join(same[:3])}" if same else self._near(text)
        raise InputError(f"{text} is not among the training images of {self.folder}{hint}.")

    def _near(self, text: str) -> str:
        import difflib

        near = difflib.get_close_matches(text, self.names[:SEARCHED], 2, 0.6)
        return (
            f": did you mean {' or '.join(near)}"
            if near
            else f" (see the file column of {self.folder}/predictions.csv)"
        )


@dataclass(frozen=True)
class Relabelled:
    """What a file of corrections did."""

    edits: Edits
    problems: tuple[str, ...]
    failed: bool  # see `Changed`
    corrected: int  # rows whose class is another one now
    confirmed: int  # rows that were in that class already: a person's word now
    new: tuple[str, ...]  # labels that no class had
    hints: tuple[str, ...]  # for each new label, a class it may have been meant for
    unchanged: int = 0  # rows of an edited predictions.csv whose class was left as it was


def relabel(run: str | Path, corrections: str | Path, *, report: bool = True) -> Relabelled:
    """Record corrections from a CSV file with a file (or row) and a label column.

    A label is a class id, a name a person gave, or a new label. In an edited copy of predictions.csv only rows whose class was
    changed count.
    """
    table = read_csv(Path(corrections))
    copy = "needs_review" in table.columns  # of predictions.csv: what was not touched is still the model's word
    label = table.need("class" if copy else None, LABEL_COLUMNS)
    key = table.find(None, (*PATH_COLUMNS, *ROW_COLUMNS))
    if key is None:
        raise InputError(f"{table} has no column named file or row; {table.listing()}")
    found: list[Relabelled] = []

    def edit(edits: Edits) -> Edits:
        stored = open_run(run, edits, images=False)
        names, place = RowNames(stored), {name: row for row, name in enumerate(stored.problem.table.names)}
        rows: dict[str, str] = {}
        said: dict[str, int] = {}
        new: dict[str, str] = {}
        counts = {"corrected": 0, "confirmed": 0, "unchanged": 0}
        for number, cells in table.rows:
            text = label_text(cells[label])
            if text is None:
                continue
            try:
                name = names.find(cells[key])
            except InputError as error:
                raise InputError(f"{table} row {number}: {error}") from None
            target, missing = _class_of(edits, text.strip())
            current = edits.classes[stored.answers.head[place[name]]].id
            if target == current and copy:
                counts["unchanged"] += 1
                continue
            if rows.get(name, target) != target:
                raise InputError(
                    f"{table} row {number} labels {name} as {target}, but row {said[name]} as {rows[name]}"
                )
            if missing is not None:
                new[target] = missing
            counts["confirmed" if target == current else "corrected"] += name not in rows
            rows[name], said[name] = target, number
        if not rows:
            raise InputError(f"{table} holds no correction: every label is empty or what the run says already")
        after = edits.move(rows, new=list(new))
        found.append(Relabelled(after, (), False, new=tuple(new), hints=tuple(new.values()), **counts))
        return after

    changed = _change(run, edit, report)
    return replace(found[-1], edits=changed.edits, problems=changed.problems, failed=changed.failed)


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


def sizes(stored: StoredRun) -> np.ndarray:
    """Training images of each class of `stored.edits.classes`."""
    return np.bincount(stored.answers.head, minlength=len(stored.names.ids))
