"""Run the cells of some items, then write what each of them is about."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rowssl.bench.cell import open_sample
from rowssl.bench.engine import Failure, run_cells
from rowssl.bench.grid import Cell
from rowssl.bench.results import Row, to_csv
from rowssl.core.console import err
from rowssl.core.errors import InputError
from rowssl.core.files import write_text
from rowssl.paper.figures import pictures, write_pictures
from rowssl.paper.page import claims_page, latex_page, results_page
from rowssl.paper.plan import Planned, Settings, class_number, missing_data, planned
from rowssl.paper.spec import Item
from rowssl.paper.verdicts import (
    Finished,
    PaperNumbers,
    Verdict,
    comparison_csv,
    curve_of,
    finished,
    item_rows,
    judge,
    summary,
)


@dataclass(frozen=True)
class Reproduced:
    """What came of an item."""

    item: Item
    folder: Path
    rows: list[Row]
    verdicts: list[Verdict]
    missing: list[str]


def reproduce(
    items: Sequence[Item], settings: Settings, *, workers: int | None = None, on: str = "local"
) -> tuple[list[Reproduced], list[Failure]]:
    """Run what is not finished of all items, each cell once, and write the folder of every item.

    Parameters
    ----------
    items : of the catalogue.
    settings : the options that all of them share.
    workers, on : where the cells run, as in `rowssl.bench.engine.run_cells`.
    """
    plans = {item.name: planned(item, settings, estimate=True, on=on) for item in items}
    cells = _ordered([plan for found in plans.values() for plan in found])
    failures = run_cells(cells, settings.runs, workers=workers, on=on).failures if cells else []
    made = []
    for item in items:
        done = finished(plans[item.name], settings.runs)
        if lacks := LACKS.get(item.kind):
            done, more = _again(item, done, lacks, settings, workers, on)
            failures += more
        made.append(write_item(item, plans[item.name], done, settings, failures))
    return made, failures


def _ordered(plans: Sequence[Planned]) -> list[Cell]:
    """Seed by seed, so that an unfinished grid holds whole tables of its first seeds."""
    return [plan.cell for plan in sorted(plans, key=lambda plan: plan.seed) if plan.cell is not None]


def _no_features(one: Finished) -> bool:
    """A run of an older version, which kept none, or whose `cell.json` holds no hashes, so that damage is found only here."""
    try:
        return open_sample(one.folder) is None
    except InputError as error:
        err.print(f"{error} Its cell is run again.", markup=False, soft_wrap=True)
        return True


def _rarely_measured(one: Finished) -> bool:
    """The run of another item, which measured phi less often; how often is no part of a run's name."""
    assert one.plan.cell is not None
    every, measured = one.plan.cell.config.train.evaluate_every, curve_of(one.folder)
    return any(epoch not in measured for epoch in range(every, max(measured, default=every) + 1, every))


LACKS: dict[str, Callable[[Finished], bool]] = {"tsne": _no_features, "phi": _rarely_measured}


def _again(
    item: Item,
    done: Sequence[Finished],
    lacks: Callable[[Finished], bool],
    settings: Settings,
    workers: int | None,
    on: str,
) -> tuple[list[Finished], list[Failure]]:
    """Runs that lack what a figure shows are run once more, in a folder of their own."""
    runs = settings.out / item.name / "runs"
    bare = [one for one in done if lacks(one)]
    cells = [one.plan.cell for one in bare if one.plan.cell is not None]
    failures = run_cells(cells, runs, workers=workers, on=on).failures if cells else []
    fresh = {one.folder.name: one for one in finished([one.plan for one in bare], runs)}
    return [fresh.get(one.folder.name, one) for one in done], failures


def write_item(
    item: Item, plans: Sequence[Planned], done: Sequence[Finished], settings: Settings, failures: Sequence[Failure] = ()
) -> Reproduced:
    """OUT/NAME: results.csv, comparison.csv, results.md, results.tex, claims.md and pictures."""
    folder = settings.out / item.name
    rows, numbers = item_rows(item, done, settings), PaperNumbers(item)
    classes = class_number(item.blocks[0].data, settings) if item.claims else 0
    verdicts = [judge(claim, rows, classes=classes, paper_of=numbers.where) for claim in item.claims]
    reasons = {failure.cell.hash: failure.reason for failure in failures}
    there = {one.folder.name for one in done}
    missing = [
        f"{plan.like.name if plan.cell is None else plan.cell.name}: "
        f"{reasons.get(plan.cell.hash if plan.cell else '', 'not run yet')}"
        for plan in plans
        if plan.cell is None or plan.cell.name not in there
    ]
    if item.kind == "profiles":
        missing += [text for _, text in missing_data([item], settings).values() if text]
    names = write_pictures(pictures(item, rows, numbers, done, settings), folder)
    if item.kind != "profiles":
        write_text(folder / "results.csv", to_csv(rows))
        write_text(folder / "comparison.csv", comparison_csv(rows, numbers))
        write_text(folder / "results.tex", latex_page(item, rows, numbers))
        write_text(folder / "claims.md", claims_page(item, verdicts, settings))
    write_text(folder / "results.md", results_page(item, rows, numbers, verdicts, names, missing, done, settings))
    return Reproduced(item, folder, rows, verdicts, missing)


def write_index(made: Sequence[Reproduced], settings: Settings) -> Path:
    """OUT/reproduce.md: what is in this folder, and how many of the paper's claims held; other names keep their lines."""
    path = settings.out / "reproduce.md"
    before = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    lines = {line.split("]")[0].removeprefix("| ["): line for line in before if line.startswith("| [")}
    for one in made:
        item = one.item
        claims = summary(one.verdicts) + (" (a small subset, which says nothing about them)" if settings.small else "")
        lines[item.name] = f"| [{item.name}]({item.name}/results.md) | {item.title} | {item.source} | {claims} |"
    head = ["# Reproduced", "", "| name | what | paper | claims |", "| --- | --- | --- | --- |"]
    write_text(path, "\n".join([*head, *lines.values(), ""]))
    return path
