"""Numbers of a grid: tidy rows, tables in Markdown and LaTeX, and the files of a finished grid.

One number a row, the paper's columns first, then what made it. Tables have the best in bold and the second best underlined, as the
paper marks them.
"""

from __future__ import annotations

import csv
import io
import statistics
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rowssl.bench import published as paper
from rowssl.bench.engine import Outcome
from rowssl.bench.grid import Result
from rowssl.bench.published import SOURCE
from rowssl.core.files import write_text
from rowssl.evaluation import GROUPS, NAMES
from rowssl.methods import METHODS

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
        "method": METHODS.entry(cell.config.method.name).label,
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


MAIN: tuple[Column, ...] = tuple(
    (metric, group) for metric in ("Tr-ACC", "Tr-bACC", "In-bACC") for group in ("All", "Old", "New")
)
FREQUENCY: tuple[Column, ...] = tuple(
    ("In-bACC", side + word) for side in ("K", "U", "") for word in ("Many", "Med", "Few")
)
STRATEGIES: tuple[Column, ...] = tuple(
    (metric, group)
    for metric in ("In-bACC (rematch)", "In-bACC (recluster+rematch)")
    for group in ("All", "Old", "New")
)
Entries = Mapping[Entry, Mapping[Column, Stat]]
MISSING = "–"


def shown(value: float) -> str:
    """One digit after the point, as in the paper."""
    return f"{value:.1f}"


def marks(values: Sequence[float | None]) -> list[str]:
    """`best`, `second` or nothing for each value. Numbers that read the same are the same."""
    levels = sorted({float(shown(value)) for value in values if value is not None}, reverse=True)
    words = dict(zip(levels, ("best", "second"), strict=False)) if len(levels) > 1 else {}
    return ["" if value is None else words.get(float(shown(value)), "") for value in values]


def column_marks(
    entries: Entries, columns: Sequence[Column], unmarked: Container[Entry] = ()
) -> dict[Column, dict[Entry, str]]:
    """Marks of every column of a table; those of `unmarked` do not take part."""
    result = {}
    for column in columns:
        stats = [None if entry in unmarked else numbers.get(column) for entry, numbers in entries.items()]
        words = marks([None if stat is None else stat.mean for stat in stats])
        result[column] = dict(zip(entries, words, strict=True))
    return result


def markdown_table(
    entries: Entries, columns: Sequence[Column], *, mark: bool = True, unmarked: Container[Entry] = ()
) -> str:
    """A line for each entry; empty if none of them has one of the columns.

    Without `mark` the numbers are no percentages: none of them is best, and three digits are shown whatever their size.
    """
    columns = present(entries, columns)
    if not columns:
        return ""
    number = shown if mark else "{:.3g}".format
    marked = column_marks(entries, columns, unmarked if mark else entries)

    def cell(entry: Entry, column: Column) -> str:
        stat = entries[entry].get(column)
        if stat is None:
            return MISSING
        mean = {"best": "**{}**", "second": "<u>{}</u>"}.get(marked[column][entry], "{}").format(number(stat.mean))
        return mean if stat.std is None else f"{mean} ± {number(stat.std)}"

    lines = [[entry.title, *(cell(entry, column) for column in columns)] for entry in entries]
    return _markdown(["method", *(" ".join(column) for column in columns)], lines)


def comparison_table(entries: Entries, columns: Sequence[Column]) -> str:
    """Ours, the paper's and the difference, for the numbers that the paper states; empty if there are none."""
    stated = [c for c in columns if any(c in n and n[c].paper is not None for n in entries.values())]
    if not stated:
        return ""

    def cell(stat: Stat | None) -> str:
        if stat is None or stat.paper is None:
            return MISSING
        return f"{shown(stat.mean)} / {shown(stat.paper)} / {stat.mean - stat.paper:+.1f}"

    lines = [[entry.title, *(cell(numbers.get(column)) for column in stated)] for entry, numbers in entries.items()]
    return _markdown(["method", *(" ".join(column) for column in stated)], lines)


def present(entries: Entries, columns: Sequence[Column]) -> list[Column]:
    """The columns for which there is a number."""
    return [column for column in columns if any(column in numbers for numbers in entries.values())]


def _markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "".join(
        "| " + " | ".join(text.replace("|", "\\|") for text in line) + " |\n" for line in (head, rule, *lines)
    )


def latex_table(
    section: Section, entries: Entries, columns: Sequence[Column], label: str, *, caption: str | None = None, mark: bool = True,
    signed: bool = False, unmarked: Container[Entry] = (),
) -> str:  # fmt: skip
    """A table for the packages booktabs and multirow; empty if there is no number.

    Without `mark` none of the numbers is best; `signed` ones are differences.
    """
    columns = present(entries, columns)
    if not columns:
        return ""
    marked = column_marks(entries, columns, unmarked if mark else entries)

    def cell(entry: Entry, column: Column) -> str:
        stat = entries[entry].get(column)
        if stat is None:
            return "--"
        mean = {"best": r"\textbf{%s}", "second": r"\underline{%s}"}.get(marked[column][entry], "%s") % (
            f"${stat.mean:+.1f}$" if signed else shown(stat.mean)
        )
        return mean if stat.std is None else rf"{mean}\,{{\scriptsize$\pm${shown(stat.std)}}}"

    metrics = list(dict.fromkeys(metric for metric, _ in columns))
    spans, rules, first = [], [], 2
    for metric in metrics:
        width = sum(name == metric for name, _ in columns)
        spans.append(rf"\multicolumn{{{width}}}{{c}}{{{escape(metric)}}}")
        rules.append(rf"\cmidrule(lr){{{first}-{first + width - 1}}}")
        first += width
    if caption is None:
        caption = f"{section.title}. Protocol {section.protocol or 'none'}, encoder {section.encoder}. "
        caption += "Mean and standard deviation over seeds; best in bold, second best underlined."
    lines = [
        r"\begin{table}[t]",
        r"\centering",
        rf"\caption{{{escape(caption)}}}",
        rf"\label{{tab:{label}}}",
        rf"\begin{{tabular}}{{l{'c' * len(columns)}}}",
        r"\toprule",
        " & " + " & ".join(spans) + r" \\",
        " ".join(rules),
        "Method & " + " & ".join(escape(group) for _, group in columns) + r" \\",
        r"\midrule",
        *(" & ".join([escape(e.title), *(cell(e, column) for column in columns)]) + r" \\" for e in entries),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
        "",
    ]
    return "\n".join(lines)


def escape(text: str) -> str:
    """Text for LaTeX."""
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--"}
    return "".join(special.get(c, f"\\{c}" if c in "&%$#_{}" else c) for c in text)


def markdown_page(rows: Sequence[Row], pictures: Mapping[Section, Sequence[str]], missing: Sequence[str]) -> str:
    """results.md: every section with its tables, its pictures, and the paper's numbers beside ours."""
    commits = sorted({row["commit"] for row in rows})
    seconds = sum(float(s) for _, s in {(row["config"], row["seconds"]) for row in rows})
    parts = [
        "# Results\n\nIn percent, mean ± standard deviation over seeds. **Best**, <u>second best</u>. Tr: unlabelled training "
        "images, In: test images one at a time, under the matching of the training images. K: known, U: novel classes; "
        "Many, Med and Few by their training images.\n",
        f"{len({row['config'] for row in rows})} runs, {seconds / 60:.1f} minutes together; commit {', '.join(commits)}"
        + ("; **not all runs are of one commit**" if len(commits) > 1 else "")
        + ".\n",
    ]
    if missing:
        parts.append("**Missing:**\n\n" + "".join(f"- {line}\n" for line in missing))
    for section, entries in summarise(rows).items():
        seeds = sorted({int(row["seed"]) for row in rows if Section.of(row) == section})
        protocol = f"Protocol {section.protocol}, encoder" if section.protocol else "Encoder"
        parts.append(f"## {section.title}\n\n{protocol} {section.encoder}, seeds {', '.join(map(str, seeds))}.\n")
        parts += [markdown_table(entries, columns) for columns in (MAIN, FREQUENCY, STRATEGIES)]
        parts += [f"![{name}]({name})\n" for name in pictures.get(section, ())]
        beside = [comparison_table(entries, columns) for columns in (MAIN, FREQUENCY)]
        if any(beside):
            parts.append(f"Ours / the paper's ({SOURCE}, with its own encoder) / difference:\n")
            parts += beside
    return "\n".join(part for part in parts if part)


def latex_page(summary: Summary) -> str:
    """results.tex: one table of the main numbers and one of Many, Med and Few for each section."""
    parts = []
    for place, (section, entries) in enumerate(summary.items(), start=1):
        parts += [latex_table(section, entries, MAIN, f"main-{place}")]
        parts += [latex_table(section, entries, FREQUENCY, f"frequency-{place}")]
    return "\n".join(part for part in parts if part)


PICTURES = (("in_bacc", MAIN[6:]), ("frequency", FREQUENCY[:6]), ("tr_bacc", MAIN[3:6]))


def write_results(outcome: Outcome, out: Path) -> list[Row]:
    """Write what there is, and say what is missing; the rows of results.csv."""
    rows = [row for result in outcome.results for row in result_rows(result)]
    missing = [f"{failure.cell.name}: {failure.reason}" for failure in outcome.failures]
    write_text(out / "results.csv", to_csv(rows))
    pictures = write_pictures(rows, out)
    write_text(out / "results.md", markdown_page(rows, pictures, missing))
    write_text(out / "results.tex", latex_page(summarise(rows)))
    return rows


def write_pictures(rows: Sequence[Row], out: Path) -> dict[Section, list[str]]:
    """Bars of each section; the names of the files."""
    from rowssl.bench.charts import bars_svg  # which draws what this module holds

    written: dict[Section, list[str]] = {}
    for section, entries in summarise(rows).items():
        words = "-".join(word for word in section if word and word != "bench")
        slug = "".join(c if c.isalnum() or c in "-." else "_" for c in words)
        for name, columns in PICTURES:
            picture = bars_svg(section, entries, columns)
            if picture:
                write_text(out / f"{name}-{slug}.svg", picture)
                written.setdefault(section, []).append(f"{name}-{slug}.svg")
    return written
