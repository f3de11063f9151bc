"""`rowssl reproduce`: the paper's tables and figures by name. Nothing heavy is imported before the command runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rowssl.cli import options as o
from rowssl.cli.options import several, takes
from rowssl.core.errors import InputError

if TYPE_CHECKING:
    from rowssl.bench.engine import Failure
    from rowssl.paper.plan import Settings
    from rowssl.paper.run import Reproduced
    from rowssl.paper.spec import Item


@takes("data_root", "encoder", "image_size", "tail", "views", "cache", "epochs")
def reproduce(
    given: dict[str, Any],
    names: o.Names = None,
    out: o.NewRuns = Path("reproduced"),
    seeds: o.Seeds = None,
    scale: o.Scale = "full",
    preset: o.Preset = None,
    workers: o.Workers = None,
    on: o.On = "local",
    show: o.ListNames = False,
    dry_run: o.DryRun = False,
) -> None:
    """Regenerate tables and figures of the paper: ours, the paper's, the difference, and which of its claims held."""
    from rowssl.methods.dts import PRESETS
    from rowssl.paper.catalogue import ITEMS
    from rowssl.paper.plan import SCALES, SEEDS, Settings, choose

    for option, value, choices in (("--scale", scale, SCALES), ("--preset", preset, (None, *PRESETS))):
        if value not in choices:
            raise InputError(f"{option} must be one of {', '.join(c for c in choices if c)}, not {value!r}.")
    if not names and not show:
        raise InputError("name what to reproduce, or see what there is with `rowssl reproduce --list`.")
    values: dict[str, Any] = {
        key.rpartition(".")[2]: str(value) if isinstance(value, Path) else value for key, value in given.items()
    }
    values["encoder"] = values.pop("name")
    settings = Settings(
        out=out, seeds=tuple(several(seeds, int, "--seeds")) or SEEDS[scale], scale=scale, preset=preset, **values
    )
    items = choose(names or ["all"], ITEMS)
    if show:
        _show_list(items, settings, workers)
        return
    items = _readable(items, settings, skip="all" in (names or ()))
    if dry_run:
        _show_cells(items, settings, workers)
        return
    from rowssl.paper.run import reproduce as run
    from rowssl.paper.run import write_index

    made, failures = run(items, settings, workers=workers, on=on)
    _tell(made, failures, write_index(made, settings))


def _readable(items: Sequence[Item], settings: Settings, *, skip: bool) -> list[Item]:
    """Items whose data are at hand. One that was asked for by name is an error without them; `all` goes on without it."""
    from rowssl.core.console import err
    from rowssl.paper.plan import missing_data

    absent = missing_data(items, settings)
    kept: list[Item] = []
    left: dict[str, list[str]] = {}
    for item in items:
        reasons = [absent[pair][1] for pair in item.datasets if absent[pair][1]]
        if item.kind == "profiles" and len(reasons) < len(item.datasets):
            reasons = []
        if reasons and not skip:
            raise InputError(f"{item.name}: {reasons[0].rstrip('.')}.")
        if reasons:
            left.setdefault(reasons[0], []).append(item.name)
        else:
            kept.append(item)
    for reason, names in left.items():
        err.print(f"left out: {', '.join(names)}: {reason}", markup=False, soft_wrap=True)
    if not kept:
        raise InputError("no data of the paper are at hand: give --data-root, see `rowssl reproduce --list`.")
    return kept


def _show_list(items: Sequence[Item], settings: Settings, workers: int | None) -> None:
    """One line for each name; a cell that several names need is counted by each, and once in the sum."""
    from rich.table import Table

    from rowssl.bench.runners import at_once
    from rowssl.core.console import clock
    from rowssl.core.console import out as console
    from rowssl.paper.plan import cost, listed, results_of

    found = listed(items, settings)
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    for heading, wrap in (("name", False), ("done", False), ("core time", False), ("data", False), ("what", True)):
        table.add_column(heading, no_wrap=not wrap, justify="right" if heading in ("done", "core time") else "left")
    notes: dict[str, None] = {}
    for one in found:
        data = ", ".join(name for name, _ in one.item.datasets)
        if one.missing:
            notes.update(dict.fromkeys(one.missing.split("; ")))
        if one.item.kind == "profiles":
            data = "what is at hand"
        elif one.missing:
            data += " missing"
        about = "" if one.seconds is None else clock(one.seconds)
        done = f"{one.finished}/{one.cells}"
        table.add_row(one.item.name, done, about, data, f"{one.item.title} ({one.item.source})")
    console.print(table)
    plans = [plan for one in found if not one.missing for plan in one.plans]
    different = {plan.cell.name if plan.cell else f"{plan.like.name} {plan.line.method}" for plan in plans}
    together = at_once(workers)
    left = clock(cost(plans, settings, results_of(plans, settings)) / together)
    text = (
        f"scale {settings.scale}, seeds {', '.join(map(str, settings.seeds))}: {len(different)} different cells whose data "
        f"are at hand, about {left} to go with {together} at a time, and the trunk cache if it is not there "
        "yet; where no such run is finished, priced as for pooled features, which blocks of a transformer exceed by far"
    )
    console.print(text, markup=False, soft_wrap=True)
    for note in notes:
        console.print(f"missing: {note}", markup=False, soft_wrap=True)


def _show_cells(items: Sequence[Item], settings: Settings, workers: int | None) -> None:
    """Every cell once, with its state."""
    from rich.table import Table

    from rowssl.bench.cost import look
    from rowssl.bench.runners import at_once
    from rowssl.core.console import clock
    from rowssl.core.console import out as console
    from rowssl.paper.plan import cost, planned

    plans = [plan for item in items for plan in planned(item, settings, estimate=False)]
    lines: dict[str, tuple[str, list[str]]] = {}
    for plan in plans:
        if plan.cell is None:
            name, state = f"{plan.like.name} (classes by search)", "to run"
        else:
            name, state = plan.cell.name, look(plan.cell, settings.runs)[1]
        users = lines.setdefault(name, (state, []))[1]
        if plan.item.name not in users:
            users.append(plan.item.name)
    table = Table("cell", "state", "for")
    for name, (state, users) in lines.items():
        table.add_row(name, state, ", ".join(users))
    console.print(table)
    done = sum(state == "finished" for state, _ in lines.values())
    together = at_once(workers)
    left = clock(cost(plans, settings) / together)
    console.print(f"{len(lines)} cells, {done} finished; about {left} to go with {together} at a time", markup=False)


def _tell(made: Sequence[Reproduced], failures: Sequence[Failure], index: Path) -> None:
    """What held, where it is written, and what failed."""
    from rowssl.core.console import err
    from rowssl.core.console import out as console
    from rowssl.paper.verdicts import summary
    from rowssl.report.format import count

    for one in made:
        console.print(
            f"{one.item.name}: {summary(one.verdicts)}; {one.folder / 'results.md'}", markup=False, soft_wrap=True
        )
        for verdict in one.verdicts:
            console.print(f"  {verdict.sentence}", markup=False, soft_wrap=True)
    console.print(f"written: {index}", markup=False, soft_wrap=True)
    for failure in failures:
        err.print(f"failed: {failure.cell.name}: {failure.reason}", markup=False, soft_wrap=True)
    if failures:
        err.print(f"missing: {count(len(failures), 'cell')}; the same command tries again.", markup=False)
        raise typer.Exit(1)
