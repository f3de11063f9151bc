"""`rowssl bench`: a grid of runs, its tables and pictures. Nothing heavy is imported before the command runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rowssl.cli import options as o
from rowssl.cli.options import check_tail, content_of, is_benchmark, several, takes
from rowssl.core.errors import InputError

if TYPE_CHECKING:
    from rowssl.bench.grid import Cell, Variant
    from rowssl.bench.results import Row


@takes(
    "data_root",
    "encoder",
    "protocol",
    "known",
    "classes",
    "tail",
    "image_size",
    "views",
    "cache",
    "epochs",
)
def bench(
    given: dict[str, Any],
    data: o.BenchmarkOrTable,
    out: o.NewRuns,
    methods: o.Methods = "all",
    prior: o.Priors = None,
    gamma: o.Gammas = None,
    seeds: o.Seeds = None,
    config: o.Config = None,
    overrides: o.Overrides = None,
    vary: o.Vary = None,
    workers: o.Workers = None,
    on: o.On = "local",
    reports: o.Reports = False,
    dry_run: o.DryRunOrList = False,
) -> None:
    """Compare methods: a grid of runs over priors, imbalance ratios and seeds, with tables and the paper's numbers."""
    from rowssl.bench.grid import Variant, grid
    from rowssl.methods import METHODS

    root, classes = given["data.data_root"], given["classes"]
    if is_benchmark(data):
        given["data.name"] = data
    else:
        given["data.source"] = data
        for option, value in (("--prior", prior), ("--gamma", gamma), ("--data-root", root)):
            if value is not None:
                raise InputError(f"{option} goes with a benchmark: {data} is used as it is.")
    counted = "" if classes in (None, "oracle") else f"C={classes}"
    cells = grid(
        content_of(given, config, overrides),
        methods=list(METHODS) if methods == "all" else several(methods, str, "--methods"),
        priors=several(prior, str, "--prior") or [None],
        gammas=several(gamma, float, "--gamma") or [None],
        seeds=several(seeds, int, "--seeds") or [0],
        variants=[
            Variant(", ".join(filter(None, [counted, variant.name])), variant.overrides)
            for variant in _vary(vary or [])
        ],
    )
    for cell in cells:
        check_tail(cell.config.encoder.tail)
    if dry_run:
        _show_plan(cells, out / "runs", workers)
        return
    from rowssl.bench.engine import run_cells
    from rowssl.bench.results import write_results
    from rowssl.core.console import err
    from rowssl.core.console import out as console
    from rowssl.report.format import count

    outcome = run_cells(cells, out / "runs", workers=workers, on=on, report=reports)
    rows = write_results(outcome, out)
    _show_results(rows)
    console.print(f"written: {out / 'results.csv'}, results.md, results.tex and pictures", markup=False, soft_wrap=True)
    for failure in outcome.failures:
        err.print(f"failed: {failure.cell.name}: {failure.reason}", markup=False, soft_wrap=True)
    if outcome.failures:
        err.print(f"missing: {count(len(outcome.failures), 'cell')}; the same command tries again.", markup=False)
        raise typer.Exit(1)


def _vary(options: Sequence[str]) -> list[Variant]:
    """All combinations of the values of all options, named by what differs."""
    from itertools import product

    from rowssl.bench.grid import Variant
    from rowssl.config import flatten, load_config

    axes = []
    for option in options:
        key, _, values = option.partition("=")
        axes.append([next(iter(flatten(load_config([], [f"{key}={value}"])))) for value in values.split(",")])
    return [
        Variant(
            ", ".join(f"{keys[-1]}={value}" for keys, value in combination),
            {".".join(keys): value for keys, value in combination},
        )
        for combination in product(*axes)
    ]


def _show_plan(cells: Sequence[Cell], runs: Path, workers: int | None) -> None:
    """Cells, their state and their cost."""
    from rich.table import Table

    from rowssl.bench.cost import plan
    from rowssl.bench.engine import check
    from rowssl.bench.runners import at_once
    from rowssl.core.console import clock
    from rowssl.core.console import out as console
    from rowssl.data.problem import load_problem

    check(cells)
    data = {cell.config.data.model_dump_json(): cell.config.data for cell in cells}
    plans = plan(cells, runs, {key: len(load_problem(value).table) for key, value in data.items()})
    table = Table("cell", "state", "about")
    for one in plans:
        table.add_row(one.cell.name, one.state, "" if one.state == "finished" else clock(one.seconds or 0))
    console.print(table)
    left = sum(one.seconds or 0 for one in plans)
    done = sum(one.state == "finished" for one in plans)
    together = at_once(workers)
    console.print(
        f"{len(plans)} cells, {done} finished; about {clock(left / together)} to go with {together} at a time, "
        "and the trunk cache if it is not there yet",
        markup=False,
    )


def _show_results(rows: Sequence[Row]) -> None:
    """Means of All, Old and New in the terminal; the files hold the rest."""
    from rich.table import Table

    from rowssl.bench.results import MAIN, MISSING, shown, summarise
    from rowssl.core.console import out as console

    metrics = list(dict.fromkeys(metric for metric, _ in MAIN))
    for section, entries in summarise(rows).items():
        table = Table("", *(f"{metric} All Old New" for metric in metrics), title=section.title)
        for entry, numbers in entries.items():
            stats = [[numbers.get((metric, group)) for group in ("All", "Old", "New")] for metric in metrics]
            texts = [" ".join(f"{shown(s.mean):>5}" if s else MISSING for s in three) for three in stats]
            table.add_row(entry.title, *texts)
        console.print(table)
