"""What a grid will cost: from runs of the same kind that are finished, else from the steps and a rough price of one."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rowssl.bench.cell import DamagedError
from rowssl.bench.grid import Cell, Result, epoch_seconds, open_result

# Seconds of one core for a step of 128 pooled features of 256 dimensions and 100 classes; transformer blocks cost far more.
STEP = {"kmeans": 0.0, "gcd": 0.02, "orca": 0.012, "trssl": 0.018, "opencon": 0.023, "promptcal": 0.1, "simgcd": 0.027,
        "bacon": 0.042, "dts": 0.039}  # fmt: skip
START = 15.0  # seconds for the program, the data, the evaluation


@dataclass(frozen=True)
class Plan:
    """A cell, how far it is, and what is left of it in seconds; None if nobody can say."""

    cell: Cell
    state: str
    seconds: float | None


def plan(cells: Sequence[Cell], runs: Path, rows: dict[str, int], measured: Sequence[Result] = ()) -> list[Plan]:
    """State and cost of each cell.

    Parameters
    ----------
    rows : number of training rows by the JSON of `config.data`.
    measured : finished runs of other grids, whose seconds say something about these.
    """
    found = {cell.folder(runs): look(cell, runs) for cell in cells}
    done = [*measured, *(result for result, _ in found.values() if result is not None)]
    plans = []
    for cell in cells:
        result, state = found[cell.folder(runs)]
        left = seconds(cell, done, rows.get(cell.config.data.model_dump_json())) if result is None else 0.0
        plans.append(Plan(cell, state, left))
    return plans


def look(cell: Cell, runs: Path) -> tuple[Result | None, str]:
    """The result of a cell, if it has one, and how far it is in words."""
    folder = cell.folder(runs)
    try:
        result = open_result(cell, runs)
        epochs = len(epoch_seconds(folder))
    except DamagedError as error:
        return None, f"to run, {error.file.relative_to(folder).as_posix()} is damaged"
    unfinished = f"{epochs} epochs done" if epochs else "to run"
    return result, unfinished if result is None else "finished"


def seconds(cell: Cell, done: Sequence[Result], rows: int | None) -> float | None:
    """Of a whole cell: the median of finished ones of its kind (other seeds, other priors), else an estimate.

    An estimate is corrected by what finished runs of the same method on the same encoder took against theirs.
    """
    alike = [result.seconds for result in done if _kind(result.cell) == _kind(cell)]
    if alike:
        return statistics.median(alike)
    if rows is None:
        return None
    same = [result for result in done if _way(result.cell) == _way(cell)]
    factors = [result.seconds / estimate(result.cell, int(result.facts["rows"])) for result in same]
    return estimate(cell, rows) * (statistics.median(factors) if factors else 1.0)


def estimate(cell: Cell, rows: int) -> float:
    """From the number of training rows alone; within a factor of a few."""
    from rowssl.training.plan import schedule

    batch_size, epochs = schedule(cell.config, rows)
    steps = epochs * max(1, rows // batch_size)
    return START + steps * STEP.get(cell.config.method.name, max(STEP.values())) * max(batch_size, 32) / 128


def _way(cell: Cell) -> tuple[str, str]:
    """Method and encoder."""
    return cell.config.method.name, cell.config.encoder.deciding().model_dump_json()


def _kind(cell: Cell) -> str:
    """All that matters for the time."""
    data = cell.config.data.model_copy(update={"prior": None, "data_root": None})
    return cell.config.model_copy(update={"data": data, "seed": 0}).identity()
