"""A cell of a grid: one configuration, its own folder, and whether it is finished.

The folder's name ends in a hash of the configuration, so grids that share cells (a table and an ablation of its best row) share
their runs. What a cell is called in a table is not part of it.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from rowssl.bench.cell import DamagedError, check_files, read_facts, read_object
from rowssl.config import MethodConfig, RunConfig, build_config, merge
from rowssl.methods import method_options

HASH = 10  # hex digits that name a folder
PATHS = (("data", "source"), ("data", "labels"), ("data", "data_root"), ("data", "split"), ("encoder", "cache"))


@dataclass(frozen=True)
class Cell:
    """One run of a grid.

    Attributes
    ----------
    config : everything that decides its numbers.
    table, variant : where its numbers belong in results, as the paper's columns of these names; no part of its identity.
    """

    config: RunConfig
    table: str = "bench"
    variant: str = ""

    @property
    def hash(self) -> str:
        """Of everything that decides the result, the method's own defaults included: another default is another run."""
        method = self.config.method
        whole = MethodConfig(name=method.name, options=method_options(method.name, method.options))
        return self.config.model_copy(update={"method": whole}).identity()[:HASH]

    @property
    def name(self) -> str:
        """Readable, and different for different configurations: `cifar100-g100-match-dts-s0-1f2e3d4c5b`."""
        data, method = self.config.data, self.config.method
        parts = [data.name or Path(data.source or "data").stem]
        parts += [f"g{data.gamma:g}"] if data.gamma is not None else []
        parts += [data.prior] if data.prior else []
        usual = method_options(method.name, {})
        changed = [f"{key}={value}" for key, value in sorted(method.options.items()) if usual.get(key) != value]
        parts += [method.name, "_".join(changed)[:60]]
        text = "-".join(part for part in [*parts, f"s{self.config.seed}", self.hash] if part)
        return "".join(c if c.isalnum() or c in "-_.=" else "_" for c in text)

    def folder(self, runs: Path) -> Path:
        """Its run directory."""
        return runs / self.name


@dataclass(frozen=True)
class Variant:
    """A named change of options, e.g. `Variant("M=50", {"method.options.n_prototypes": 50})`."""

    name: str = ""
    overrides: Mapping[str, Any] | None = None


def grid(
    base: Mapping[str, Any],
    *,
    methods: Sequence[str],
    priors: Sequence[str | None] = (None,),
    gammas: Sequence[float | None] = (None,),
    seeds: Sequence[int] = (0,),
    variants: Sequence[Variant] = (Variant(),),
    table: str = "bench",
) -> list[Cell]:
    """All combinations, seed by seed, so that an unfinished grid holds whole tables of its first seeds.

    Parameters
    ----------
    base
        Content of a `RunConfig`, as nested keys; what a combination names is laid over it. Paths become absolute.
    variants
        Changes of options, laid over everything else.
    """
    cells = []
    for seed, gamma, prior, variant, method in product(seeds, gammas, priors, variants, methods):
        content = copy.deepcopy(dict(base))
        named = {"seed": seed, "data.gamma": gamma, "data.prior": prior, "method.name": method}
        for key, value in [*named.items(), *(variant.overrides or {}).items()]:
            if value is not None or key not in named:
                merge(content, key.split("."), value)
        cells.append(Cell(build_config(_absolute(content)), table, variant.name))
    return cells


def _absolute(content: dict[str, Any]) -> dict[str, Any]:
    """Paths that mean the same in every folder and process; an encoder's name is a path if there is a file of that name."""
    for group, key in PATHS:
        if (content.get(group) or {}).get(key) is not None:
            content[group][key] = os.path.abspath(os.path.expanduser(str(content[group][key])))
    name = (content.get("encoder") or {}).get("name")
    if name and os.path.exists(os.path.expanduser(name)):
        content["encoder"]["name"] = os.path.abspath(os.path.expanduser(name))
    return content


@dataclass(frozen=True)
class Result:
    """What a finished cell left: `metrics.json` of its run, and the facts of `cell.json`."""

    cell: Cell
    metrics: dict[str, Any]
    facts: dict[str, Any]
    seconds: float


def open_result(cell: Cell, runs: Path) -> Result | None:
    """The result of a cell, or None if it is not finished or belongs to other options than the cell's.

    A DamagedError names a file of a finished cell that is not as it was written.
    """
    folder = cell.folder(runs)
    facts = read_facts(folder)
    if facts is None or facts.get("cell") != cell.hash:
        return None
    check_files(folder, facts)
    metrics = read_object(folder / "metrics.json")
    try:
        if facts["identity"] != metrics["identity"]:
            return None
        # A run that was killed and went on measured its last part alone; its epochs know how long all of them took.
        return Result(cell, metrics, facts, max(float(metrics["seconds"]), sum(epoch_seconds(folder))))
    except (KeyError, TypeError):  # of another version
        return None


def read_result(cell: Cell, runs: Path) -> Result | None:
    """As `open_result`; a damaged cell is one that is not finished, since it can be run again."""
    try:
        return open_result(cell, runs)
    except DamagedError:
        return None


def epoch_rows(folder: Path) -> list[dict[str, Any]]:
    """What metrics.jsonl says of each epoch so far, nothing if there is none; DamagedError if a line is not whole."""
    from rowssl.training.log import read_lines

    log = folder / "metrics.jsonl"
    if not log.exists():
        return []
    try:
        rows, damaged = read_lines(log)
    except OSError as error:
        raise DamagedError(log, error.strerror or str(error)) from error
    if damaged:
        raise DamagedError(log, f"line {', '.join(map(str, damaged))} cannot be trusted")
    return rows


def epoch_seconds(folder: Path) -> list[float]:
    """How long each epoch so far took, from metrics.jsonl."""
    return [float(row.get("seconds", 0.0)) for row in epoch_rows(folder)]


def read_results(cells: Iterable[Cell], runs: Path) -> list[Result]:
    """Of the cells that are finished, in their order."""
    results = (read_result(cell, runs) for cell in cells)
    return [result for result in results if result is not None]
