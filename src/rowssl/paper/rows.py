"""Numbers of an item's runs in the paper's words, one a row, and the paper's own beside them."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rowssl.bench.grid import Result, epoch_rows, read_result
from rowssl.bench.published import METHODS, paper_values
from rowssl.bench.results import Row, result_rows
from rowssl.paper.plan import Planned, Settings
from rowssl.paper.spec import Item, Line, Where

STRATEGIES = {
    "Tr-bACC": "train",
    "In-bACC (recluster+rematch)": "test recluster+rematch",
    "In-bACC (rematch)": "test rematch",
    "In-bACC": "test inductive",
}
SMALL = " (small)"  # behind a data set's name: the numbers are of a subset
COMPARED = (
    "table",
    "dataset",
    "gamma",
    "prior",
    "variant",
    "method",
    "metric",
    "group",
    "ours",
    "std",
    "seeds",
    "paper",
    "difference",
)


@dataclass(frozen=True)
class Finished:
    """A planned run and its result."""

    plan: Planned
    result: Result
    folder: Path


def finished(plans: Sequence[Planned], runs: Path) -> list[Finished]:
    """The runs that are done, in the order of the plan."""
    found = []
    for plan in plans:
        result = None if plan.cell is None else read_result(plan.cell, runs)
        if plan.cell is not None and result is not None:
            found.append(Finished(plan, result, plan.cell.folder(runs)))
    return found


def shown_method(line: Line) -> str:
    """The paper's word for the method of a line."""
    return line.shown or METHODS.get(line.method, line.method)


def item_rows(item: Item, done: Sequence[Finished], settings: Settings) -> list[Row]:
    """Every number that belongs to the item, under the names of the paper's table."""
    rows = []
    for one in done:
        data, line = one.plan.block.data, one.plan.line
        words = {
            "table": item.name, "dataset": data.dataset + (SMALL if settings.small else ""), "gamma": data.gamma,
            "prior": data.prior, "variant": line.variant, "method": shown_method(line),
        }  # fmt: skip
        for row in result_rows(one.result):
            made = _number({**row, **words}, item, one)
            if made is not None:
                rows.append(made)
        if item.kind == "phi":
            rows += _phi_rows(one, {**result_rows(one.result)[0], **words})
        if item.kind == "tsne":
            from rowssl.paper.embedding import silhouettes

            about = {**result_rows(one.result)[0], **words, "metric": "silhouette"}
            rows += [
                {**about, "group": part, "value": f"{value:.4f}"} for part, value in silhouettes(one.folder).items()
            ]
    return rows


def _number(row: Row, item: Item, one: Finished) -> Row | None:
    """A number under the item's names, or nothing if it does not belong to its table."""
    if item.kind == "strategies":
        if row["metric"] not in STRATEGIES or row["group"] != "All":
            return None
        return {**row, "variant": f"{row['variant']}, {STRATEGIES[row['metric']]}", "metric": "bACC"}
    if (row["metric"], row["group"]) not in item.columns:
        return None
    if row["metric"] == "C_hat" and one.plan.line.classes == "search":  # the search's own number
        return {**row, "value": f"{one.result.metrics['classes']['heads']:.4f}"}
    return row


def curve_of(folder: Path) -> dict[int, dict[str, float]]:
    """phi by epoch and group, from metrics.jsonl; DamagedError if a line of it is not whole."""
    return {row["epoch"]: row["phi"] for row in epoch_rows(folder) if row.get("phi")}


def _phi_rows(one: Finished, about: Row) -> list[Row]:
    """phi of every epoch it was measured at; of the last one also under a name without its number."""
    measured = curve_of(one.folder)
    rows = []
    for epoch, groups in measured.items():
        names = [f"phi, epoch {epoch}"] + (["phi, last epoch"] if epoch == max(measured) else [])
        rows += [
            {**about, "metric": name, "group": group, "value": f"{value:.4f}"}
            for name in names
            for group, value in groups.items()
        ]
    return rows


class PaperNumbers:
    """The paper's numbers of one item: those of its own table first, then what single lines point to."""

    def __init__(self, item: Item) -> None:
        self.item = item
        self.elsewhere = {line.variant: line.paper for block in item.blocks for line in block.lines if line.paper}

    def of(self, row: Row | dict[str, str]) -> float | None:
        """Beside one of our rows."""
        table, variant = self.elsewhere.get(row["variant"]) or (self.item.name, row["variant"])
        dataset = row["dataset"].removesuffix(SMALL)
        key = (dataset, row["gamma"], row["prior"], variant, row["method"], row["metric"], row["group"])
        return paper_values(table).get(key)

    def where(self, where: Where) -> float | None:
        """Of a pick of a claim, if all lines it could mean are one."""
        wanted = dict(where)
        found = set()
        for block in self.item.blocks:
            for line in block.lines:
                row = {
                    "dataset": block.data.dataset, "gamma": block.data.gamma, "prior": block.data.prior,
                    "variant": wanted.get("variant", line.variant) if self.item.kind == "strategies" else line.variant,
                    "method": shown_method(line), "metric": wanted.get("metric", ""), "group": wanted.get("group", ""),
                }  # fmt: skip
                if all(row[key] == value for key, value in wanted.items()):
                    found.add(self.of(row))
        found.discard(None)
        return found.pop() if len(found) == 1 else None


def comparison_csv(rows: Sequence[Row], numbers: PaperNumbers) -> str:
    """Ours (mean over seeds), the paper's and the difference, one number a row."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in COMPARED[:8]), []).append(row)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COMPARED)
    for key, same in groups.items():
        values = [float(row["value"]) for row in same]
        mean, stated = statistics.fmean(values), numbers.of(same[0])
        spread = f"{statistics.stdev(values):.4f}" if len(values) > 1 else ""
        beside = ["", ""] if stated is None else [f"{stated:g}", f"{mean - stated:.4f}"]
        writer.writerow([*key, f"{mean:.4f}", spread, len(values), *beside])
    return text.getvalue()
