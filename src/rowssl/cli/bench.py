"""`rowssl bench`: a grid of runs, its tables and pictures. Nothing heavy is imported before the command runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from rowssl.cli.options import check_tail, parse_classes, parse_known
from rowssl.core.errors import InputError

if TYPE_CHECKING:
    from rowssl.bench.grid import Cell, Variant
    from rowssl.bench.results import Row

T = TypeVar("T")


def bench(
    data: Annotated[str, typer.Option("--data", help="Benchmark, or a file with embeddings and their truth.")],
    out: Annotated[Path, typer.Option(help="Folder of runs and results; the same command continues what was stopped.")],
    methods: Annotated[str, typer.Option(help="all, or names with commas: kmeans,simgcd,dts.")] = "all",
    data_root: Annotated[
        Path | None, typer.Option("--data-root", help="Folder with the benchmark's files [$ROWSSL_DATA].")
    ] = None,
    prior: Annotated[str | None, typer.Option(help="Unlabelled priors: match,mismatch,uniform [match].")] = None,
    gamma: Annotated[str | None, typer.Option(help="Imbalance ratios: 100 or 10,100 [the benchmark's usual].")] = None,
    seeds: Annotated[str, typer.Option(help="Seeds: 0,1,2.")] = "0",
    encoder: Annotated[
        str | None, typer.Option(help="Name, path, hf:NAME, identity, gradients, pixels or convnet.")
    ] = None,
    protocol: Annotated[str | None, typer.Option(help="rowssl, bacon, gcd or longtail.")] = None,
    known: Annotated[str | None, typer.Option(help="Known classes: a number, a share, or names with commas.")] = None,
    classes: Annotated[str | None, typer.Option(help="Number of classes, auto (estimated) or oracle.")] = None,
    tail: Annotated[str | None, typer.Option(help="auto, blocks:K, stage or adapter[:WIDTH].")] = None,
    image_size: Annotated[int | None, typer.Option(help="Side of the encoder's input in pixels.")] = None,
    views: Annotated[
        int | None, typer.Option(help="Cached views per image, by the epochs if not given; 0: on the fly.")
    ] = None,
    cache: Annotated[Path | None, typer.Option(help="Folder of the trunk cache [$ROWSSL_CACHE].")] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs [200, fewer for large data].")] = None,
    config: Annotated[list[Path] | None, typer.Option(help="YAML file with any of the options (repeatable).")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="Any option of all runs: train.lr=0.05 (repeatable).")
    ] = None,
    vary: Annotated[
        list[str] | None, typer.Option(help="An ablation: method.options.tau_max=0.2,1.0 (repeatable).")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=0, help="Processes at a time [one for each GPU, else for each core]; 0 = none but this one."),
    ] = None,
    on: Annotated[str, typer.Option(help="local, ray or ray://address; ray?gpus=0.25&cpus=2 for a run.")] = "local",
    reports: Annotated[bool, typer.Option(help="Also write report.html and model/ of every run.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "--list", help="Show the cells, what is finished and the cost; run nothing.")
    ] = False,
) -> None:
    """Compare methods: a grid of runs over priors, imbalance ratios and seeds, with tables and the paper's numbers."""
    from rowssl.bench.grid import Variant, grid
    from rowssl.config import lay_over, load_config

    content = load_config(config or [])
    given: dict[str, Any] = {
        **_data_keys(data, prior, gamma, data_root), "data.protocol": protocol, "data.known": parse_known(known),
        "encoder.name": encoder, "encoder.tail": tail, "encoder.image_size": image_size, "encoder.views": views,
        "encoder.cache": cache, "train.epochs": epochs,
        "classes": parse_classes(classes),
    }  # fmt: skip
    lay_over(content, given, overrides or [])
    counted = "" if classes in (None, "oracle") else f"C={classes}"
    cells = grid(
        content,
        methods=_methods(methods),
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


def _data_keys(data: str, prior: str | None, gamma: str | None, root: Path | None) -> dict[str, Any]:
    """A benchmark's name, or a file whose prior and ratio are what they are."""
    from rowssl.data.benchmarks import BENCHMARKS

    if data in BENCHMARKS:
        return {"data.name": data, "data.data_root": root}
    if not os.path.exists(data):
        raise InputError(f"--data {data} is neither a benchmark ({', '.join(BENCHMARKS)}) nor a file or folder.")
    for option, value in (("--prior", prior), ("--gamma", gamma), ("--data-root", root)):
        if value is not None:
            raise InputError(f"{option} goes with a benchmark: {data} is used as it is.")
    return {"data.source": data}


def _methods(text: str) -> list[str]:
    from rowssl.methods import METHODS

    return list(METHODS) if text == "all" else several(text, str, "--methods")


def several(text: str | None, kind: Callable[[str], T], option: str) -> list[T]:
    """Values with commas between them, each once."""
    try:
        return list(dict.fromkeys(kind(part.strip()) for part in (text or "").split(",") if part.strip()))
    except ValueError:
        raise InputError(f"{option} {text} is not a list of numbers with commas between them.") from None


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
