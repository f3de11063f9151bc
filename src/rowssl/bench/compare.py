"""Methods side by side from Python: a grid of runs on one data set, as a table."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rowssl.api import method_name, settings_of
from rowssl.bench.engine import Failure, run_cells
from rowssl.bench.grid import grid
from rowssl.bench.results import MAIN, Column, Row, present, result_rows, summarise
from rowssl.core.errors import InputError
from rowssl.core.frame import Frame, need_pandas

if TYPE_CHECKING:
    from rowssl.methods.base import Method


class Comparison:
    """What came of a grid.

    Attributes
    ----------
    rows : tidy, one number a row, as results.csv of `rowssl bench` has them.
    failures : runs that have no result, and why.
    """

    def __init__(self, rows: Sequence[Row], failures: Sequence[Failure] = ()) -> None:
        self.rows, self.failures = list(rows), list(failures)

    def table(self, columns: Sequence[Column] = MAIN) -> Frame:
        """Means over the seeds in percent, a line for each method; `columns` are (metric, group)."""
        entries = next(iter(summarise(self.rows).values()))
        there = present(entries, columns)
        seeds = max(stat.seeds for numbers in entries.values() for stat in numbers.values())
        spread = [(column, sign) for column in there for sign in (("", "\u00b1") if seeds > 1 else ("",))]
        names = [" ".join([*column, sign]).strip() for column, sign in spread]
        lines = []
        for entry, numbers in entries.items():
            stats = [(numbers.get(column), sign) for column, sign in spread]
            lines.append((entry.title, *(None if s is None else s.std if sign else s.mean for s, sign in stats)))
        return Frame(("method", *names), lines)

    def to_pandas(self) -> Any:
        """The tidy rows as a pandas DataFrame."""
        frame = need_pandas().DataFrame(self.rows)
        return frame.assign(value=frame["value"].astype(float), seed=frame["seed"].astype(int))

    def __repr__(self) -> str:
        return repr(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def compare(
    methods: Iterable[str | type[Method]],
    data: str | os.PathLike[str],
    *,
    seeds: Iterable[int] = (0,),
    labels: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    workers: int | None = 0,
    **settings: Any,
) -> Comparison:
    """Train several methods on one data set whose truth is known, and compare what they found.

    Parameters
    ----------
    methods
        Names, or classes of your own.
    data, labels, settings
        As for `fit`; the data must hold the true classes.
    seeds
        Of the runs; their numbers become means.
    out
        Folder of the runs: what is finished there stays. By default they are kept nowhere.
    workers
        Processes at a time; 0 runs one after the other in this process, as methods of your own need it.
    """
    content, problem = settings_of(data, labels, settings)
    if problem is not None:
        raise InputError("compare takes a benchmark or a file that holds the true classes, not an array.")
    own = list(methods)
    names = [method_name(method) for method in own]
    if workers != 0 and not all(isinstance(method, str) for method in own):
        raise InputError("A method of your own is known in this process alone: compare(..., workers=0).")
    cells = grid(content, methods=names, seeds=[int(seed) for seed in seeds])
    with tempfile.TemporaryDirectory() if out is None else nullcontext(os.fspath(out)) as folder:
        outcome = run_cells(cells, Path(folder) / "runs", workers=workers)
    if not outcome.results:
        why = (
            f"{outcome.failures[0].cell.name}: {outcome.failures[0].reason}"
            if outcome.failures
            else "nothing was asked"
        )
        raise InputError(f"There is no result to compare ({why}).")
    return Comparison([row for result in outcome.results for row in result_rows(result)], outcome.failures)
