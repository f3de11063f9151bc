"""`rowssl reproduce --list`: what there is, how many runs each needs, what is finished, and what the rest costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rowssl.bench.cost import plan as price
from rowssl.bench.grid import Cell, Result, read_result, read_results
from rowssl.core.errors import InputError
from rowssl.paper.plan import Planned, Settings, planned
from rowssl.paper.spec import Item

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
