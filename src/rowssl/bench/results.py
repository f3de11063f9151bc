"""Numbers of a grid as tidy rows: one number a row, the paper's columns first, then what made it."""

from __future__ import annotations

import csv
import io
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rowssl.bench import published as paper
from rowssl.bench.grid import Result
from rowssl.evaluation import GROUPS, NAMES

COLUMNS = (*paper.COLUMNS, "seed", "protocol", "encoder", "config", "commit", "seconds", "peak_memory_mb")
SIDES = {"known": "K", "novel": "U", "all": ""}  # KMany is the paper's word for the frequent among the known classes
BASIS = "total"  # the paper counts labelled and unlabelled images of a class
Row = dict[str, str]


def result_rows(result: Result) -> list[Row]:
    """Every number of a finished cell."""
    cell, metrics, facts = result.cell, result.metrics, result.facts
    dataset, gamma = paper.dataset_words(cell.config.data, facts["recipe"])
    encoder = facts["encoder"]
    size = f" {encoder['image_size']} px" if encoder["image_size"] else ""
    about = {
        "table": cell.table,
        "dataset": dataset,
        "gamma": gamma,
        "prior": (cell.config.data.prior or "match") if cell.config.data.name else "",
        "variant": cell.variant,
        "method": paper.METHODS.get(cell.config.method.name, cell.config.method.name),
        "seed": str(cell.config.seed),
        "protocol": cell.config.data.protocol if cell.config.data.name else "",
        "encoder": Path(encoder["name"]).name + size,
        "config": cell.hash,
        "commit": facts["commit"],
        "seconds": f"{result.seconds:.1f}",
        "peak_memory_mb": f"{metrics['peak_memory_mb']:.0f}",
    }
    numbers = [
        {**about, "metric": metric, "group": group, "value": f"{value:.4f}"}
        for metric, group, value in _numbers(metrics)
        if value is not None
    ]
    return [{name: row[name] for name in COLUMNS} for row in numbers]


def _numbers(metrics: dict[str, Any]) -> Iterable[tuple[str, str, float | None]]:
    """(metric, group, value in percent), named as in the paper where it has a name for it."""
    for name, label in NAMES.items():
        for group, value in (metrics.get(name) or {}).items():
            yield label, group.capitalize(), value
    for name in ("in_bacc", "tr_bacc"):
        for basis, sides in (metrics.get(f"{name}_groups") or {}).items():
            # Any other basis than the paper's is another number, so it has another name.
            label = NAMES[name] + ("" if basis == BASIS else f" (groups by {basis})")
            for side, words in sides.items():
                for word in GROUPS:
                    yield label, SIDES[side] + word.capitalize(), words[word]
    yield "C_hat", "", float(metrics["classes"]["estimated"])


def to_csv(rows: Iterable[Row]) -> str:
    """The rows as a CSV file's text."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


class Section(NamedTuple):
    """Rows that may be compared: same data, same split, same encoder."""

    table: str
    dataset: str
    gamma: str
    prior: str
    protocol: str
    encoder: str

    @classmethod
    def of(cls, row: Row) -> Section:
        """Where a row belongs."""
        return cls(*(row[name] for name in cls._fields))

    @property
    def title(self) -> str:
        """In words."""
        ratio = f"imbalance ratio {self.gamma}" if self.gamma not in ("", "natural", "BaCon split") else self.gamma
        prior = f"prior {self.prior}" if self.prior else ""
        return ", ".join(part for part in (self.dataset, ratio, prior) if part)


class Entry(NamedTuple):
    """A line of a table: a method, and what was changed of it."""

    method: str
    variant: str

    @property
    def title(self) -> str:
        return f"{self.method}, {self.variant}" if self.variant else self.method


Column = tuple[str, str]  # metric, group


@dataclass(frozen=True)
class Stat:
    """Mean and sample standard deviation over seeds; one seed has no spread. `paper` is the paper's number, if any."""

    mean: float
    std: float | None
    seeds: int
    paper: float | None = None


Summary = dict[Section, dict[Entry, dict[Column, Stat]]]


def summarise(rows: Sequence[Row], paper_of: Callable[[Row], float | None] = paper.paper_value) -> Summary:
    """Seeds become means; methods stand in the paper's order, variants in that of the rows.

    `paper_of` finds the paper's number beside a row.
    """
    collected: dict[Section, dict[Entry, dict[Column, list[Row]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for row in rows:
        collected[Section.of(row)][Entry(row["method"], row["variant"])][row["metric"], row["group"]].append(row)
    order = {name: place for place, name in enumerate(paper.METHODS.values())}
    return {
        section: {
            entry: {column: _stat(numbers, paper_of) for column, numbers in entries[entry].items()}
            for entry in sorted(entries, key=lambda entry: order.get(entry.method, len(order)))
        }
        for section, entries in collected.items()
    }


def _stat(rows: Sequence[Row], paper_of: Callable[[Row], float | None]) -> Stat:
    values = [float(row["value"]) for row in rows]
    spread = statistics.stdev(values) if len(values) > 1 else None
    return Stat(statistics.fmean(values), spread, len(values), paper_of(rows[0]))
