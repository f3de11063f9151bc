"""From an item of the catalogue and the user's options to the cells of a grid, and to a list of what they cost.

Numbers of classes that were searched, by GCD's way, are kept in OUT/estimates.json with a hash of all of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rowssl.bench.cell import DamagedError, read_sealed, write_sealed
from rowssl.bench.cost import plan as price
from rowssl.bench.grid import Cell, Result, Variant, grid, read_result, read_results
from rowssl.config import RunConfig
from rowssl.core.console import err
from rowssl.core.errors import InputError
from rowssl.paper.spec import Block, Data, Item, Line

FILE = "estimates.json"


def searched(config: RunConfig, out: Path, *, estimate: bool, on: str = "local") -> int | None:
    """GCD's estimate of the number of classes, kept in OUT/estimates.json; None if it is not there and not wanted."""
    key, path = _key(config), out / FILE
    try:
        stored = read_estimates(path)
    except DamagedError as error:
        stored = {}
        if estimate:
            err.print(f"{error} What it held is computed again.", markup=False, soft_wrap=True)
    if key not in stored and estimate:
        stored[key] = {
            "classes": _search(config, on),
            "data": config.data.model_dump(mode="json", exclude_none=True),
            "seed": config.seed,
        }
        write_sealed(path, stored)
    return int(stored[key]["classes"]) if key in stored else None


def read_estimates(path: Path) -> dict[str, Any]:
    """By what decides them; none if there is no such file, and a DamagedError if it is not as it was written."""
    return read_sealed(path) if path.exists() else {}


def _key(config: RunConfig) -> str:
    """Of everything that decides an estimate."""
    content = [
        config.data.model_dump(mode="json"),
        config.encoder.deciding().model_dump(mode="json"),
        config.seed,
    ]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _search(config: RunConfig, on: str) -> int:
    from rowssl.core.distributed import device
    from rowssl.counting.base import count_data, run_estimator
    from rowssl.data.problem import load_problem
    from rowssl.training.features import open_features

    problem = load_problem(config.data)
    features = open_features(problem, config, device=device(config.train.device), on=on)
    data = count_data(features.train, features.encoder.tail, problem.targets, problem.n_old, seed=config.seed)
    return run_estimator("gcd", data).best


SCALES = ("full", "small")
SMALL = {"epochs": 20, "views": 2}
SEEDS = {"full": (0, 1, 2), "small": (0,)}
# As in the paper, classifiers begin at random, and with them the whole length of its training.
FROM_RANDOM: dict[str, dict[str, Any]] = {
    "simgcd": {"classifier_init": "random"},
    "dts": {"classifier_init": "random", "u_moves": "anywhere"},
}
TRUE_CLASSES = {"cifar100": 100, "imagenet100": 100, "herbarium19": 683, "cub200": 200}


@dataclass(frozen=True)
class Settings:
    """What all items of one command have in common."""

    out: Path
    seeds: tuple[int, ...] = SEEDS["full"]
    scale: str = "full"
    data_root: str | None = None
    encoder: str | None = None
    image_size: int | None = None
    tail: str | None = None
    views: int | None = None
    cache: str | None = None
    epochs: int | None = None
    preset: str | None = None  # of DTS

    @property
    def small(self) -> bool:
        return self.scale == "small"

    @property
    def runs(self) -> Path:
        """All items share their runs."""
        return self.out / "runs"

    def base(self) -> dict[str, Any]:
        """The configuration that all runs start from; only what was given, so that cells are those of `rowssl bench`."""
        views, epochs = self.views, self.epochs
        if self.small:
            views = SMALL["views"] if views is None else views
            epochs = SMALL["epochs"] if epochs is None else epochs
        encoder = {
            "name": self.encoder,
            "image_size": self.image_size,
            "tail": self.tail,
            "views": views,
            "cache": self.cache,
        }
        train: dict[str, Any] = {} if epochs is None else {"epochs": epochs}
        if self.small:
            train["evaluate_every"] = max(1, (epochs or 1) // 10)
        return {"encoder": {key: value for key, value in encoder.items() if value is not None}, "train": train}


@dataclass(frozen=True)
class Planned:
    """One run of an item. Without a cell its number of classes has to be estimated first."""

    item: Item
    block: Block
    line: Line
    seed: int
    cell: Cell | None
    like: Cell  # the same run with the true number of classes: what it costs


def planned(item: Item, settings: Settings, *, estimate: bool, on: str = "local") -> list[Planned]:
    """All runs of an item, seed by seed. With `estimate` numbers of classes are searched where they are not known yet.

    `on` is where a trunk cache that the search lacks is filled.
    """
    found = []
    for seed in settings.seeds:
        for block in item.blocks:
            if not block.lines:
                continue
            content = settings.base()
            content["data"] = data_content(block.data, settings)
            classes = class_number(block.data, settings)
            for line in block.lines:
                like = _cell(item, line, content, seed, settings, classes, None)
                count = {"true": None, "double": 2 * classes, "search": 0}[line.classes]
                if count == 0:
                    count = searched(like.config, settings.out, estimate=estimate, on=on)
                pending = line.classes == "search" and count is None
                cell = None if pending else _cell(item, line, content, seed, settings, classes, count)
                found.append(Planned(item, block, line, seed, cell, like))
    return found


def data_content(data: Data, settings: Settings) -> dict[str, Any]:
    """`data` of a configuration: the split by its protocol, or by a file that is made for it."""
    content: dict[str, Any] = dict(data.options)
    if settings.data_root is not None:
        content["data_root"] = settings.data_root
    if settings.small or data.made:
        from rowssl.paper.splits import split_file

        content["split"] = str(split_file(data, settings.data_root, settings.out / "splits", small=settings.small))
    return content


def class_number(data: Data, settings: Settings) -> int:
    """True classes of a split."""
    if not settings.small:
        return TRUE_CLASSES[data.options["name"]]
    from rowssl.paper.splits import small_classes, tables

    train, _ = tables(data.options["name"], data.options.get("variant"), settings.data_root)
    return len(small_classes(data, train)[0])


def _cell(
    item: Item, line: Line, content: dict[str, Any], seed: int, settings: Settings, classes: int, count: int | None
) -> Cell:
    options = dict(line.options)
    options |= {name: max(1, round(factor * classes)) for name, factor in line.per_class.items()}
    if settings.preset is not None and line.method == "dts":
        options = {"preset": settings.preset, **options}
    else:
        options = {**FROM_RANDOM.get(line.method, {}), **options}
    overrides: dict[str, Any] = {f"method.options.{name}": value for name, value in options.items()}
    if not settings.small:
        overrides |= {f"train.{name}": value for name, value in item.train.items()}
    if count is not None:
        overrides["classes"] = count
    data = content["data"]
    (cell,) = grid(
        content, methods=[line.method], priors=[data.get("prior")], gammas=[data.get("gamma")], seeds=[seed],
        variants=[Variant(line.variant, overrides)], table=item.name,
    )  # fmt: skip
    return cell


def choose(names: Iterable[str], items: dict[str, Item]) -> list[Item]:
    """Items by name; `all` is every one."""
    wanted = list(names)
    for name in wanted:
        if name != "all" and name not in items:
            raise InputError(f"there is no {name!r} to reproduce: choose among all, {', '.join(items)}.")
    return list(items.values()) if "all" in wanted else [items[name] for name in dict.fromkeys(wanted)]


Missing = dict[tuple[str, str | None], tuple[str, str]]


@dataclass(frozen=True)
class Listed:
    """An item, its runs, those finished, the seconds of one core that the rest takes (None: unknown), what is missing."""

    item: Item
    cells: int
    finished: int
    seconds: float | None
    missing: str
    plans: list[Planned]


def missing_data(items: Sequence[Item], settings: Settings) -> Missing:
    """By benchmark and variant: its name, and why it cannot be read; empty if it can."""
    from rowssl.paper.splits import tables

    found: Missing = {}
    for name, variant in dict.fromkeys(pair for item in items for pair in item.datasets):
        try:
            tables(name, variant, settings.data_root)
            found[name, variant] = (name, "")
        except InputError as error:
            found[name, variant] = (name, str(error))
    return found


def listed(items: Sequence[Item], settings: Settings) -> list[Listed]:
    """Every item with its cost. An item whose data are missing is priced all the same at full scale."""
    absent = missing_data(items, settings)
    found: list[Listed] = []
    for item in items:
        missing = "; ".join(absent[pair][1] for pair in item.datasets if absent[pair][1])
        try:
            plans = planned(item, settings, estimate=False)
        except InputError:  # a subset or a split file cannot be made without the data
            try:
                plans = planned(_without_split_files(item), settings, estimate=False)
            except InputError:
                runs = sum(len(block.lines) for block in item.blocks) * len(settings.seeds)
                found.append(Listed(item, runs, 0, None, missing, []))
                continue
        done = sum(plan.cell is not None and read_result(plan.cell, settings.runs) is not None for plan in plans)
        found.append(Listed(item, len(plans), done, None, missing, plans))
    measured = results_of([plan for one in found for plan in one.plans], settings)
    return [replace(one, seconds=cost(one.plans, settings, measured)) if one.plans else one for one in found]


def _without_split_files(item: Item) -> Item:
    """The same number of runs of the same size, cut by a protocol: enough to price them."""
    blocks = (replace(block, data=replace(block.data, made=False)) for block in item.blocks)
    return replace(item, blocks=tuple(blocks))


def results_of(plans: Sequence[Planned], settings: Settings) -> list[Result]:
    """What is finished of all of them, each run once."""
    cells = {plan.cell.name: plan.cell for plan in plans if plan.cell is not None}
    return read_results(cells.values(), settings.runs)


def cost(plans: Sequence[Planned], settings: Settings, measured: Sequence[Result] = ()) -> float:
    """Seconds of one core for what is not finished, each cell once; measured runs of the same kind count before estimates."""
    rows: dict[str, int] = {}
    cells: dict[str, Cell] = {}
    for plan in plans:
        cell = plan.cell or plan.like
        small = 400 if settings.small else plan.block.data.rows
        rows[cell.config.data.model_dump_json()] = small
        cells[cell.name if plan.cell else f"{cell.name} {plan.line.method}"] = cell
    pending = {f"{plan.like.name} {plan.line.method}" for plan in plans if plan.cell is None}
    prices = dict(zip(cells, price(list(cells.values()), settings.runs, rows, measured), strict=True))
    # Of a run whose number of classes is not estimated yet, the one with the true number may be finished: it is not that one.
    known = sum(one.seconds or 0.0 for name, one in prices.items() if name not in pending)
    typical = max((one.seconds or 0.0 for one in prices.values()), default=0.0)
    return known + len(pending) * typical
