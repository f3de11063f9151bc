"""Grouped bars of a grid: a group for each method, whiskers for the spread over seeds, marks for the paper's numbers."""

from __future__ import annotations

from collections.abc import Sequence

from rowssl.bench.results import Column, Entries, Section, present
from rowssl.report.charts import Bar, bars

# All in grey, known classes in blue, novel ones in orange; frequent classes darker than rare ones.
COLOURS = {
    "All": "grey", "Old": "known", "New": "novel",
    "KMany": "known-deep", "KMed": "known-mid", "KFew": "known-pale",
    "UMany": "novel-deep", "UMed": "novel-mid", "UFew": "novel-pale",
    "Many": "grey-deep", "Med": "grey-mid", "Few": "grey-pale",
    "train": "grey", "test recluster+rematch": "sand-pale", "test rematch": "green-pale", "test inductive": "green",
}  # fmt: skip


def bars_svg(section: Section, entries: Entries, columns: Sequence[Column], *, paper: bool = True, of: str = "") -> str:
    """Draw columns of one metric; empty if there is no number.

    Parameters
    ----------
    entries : lines of the table, each becomes a group of bars.
    columns : of one metric; each becomes a bar of every group.
    paper : mark the paper's number on a bar by a black line, where there is one.
    of : what the picture is about beside the split; the first words of its title.
    """
    columns = present(entries, columns)
    if not columns:
        return ""
    groups = [
        (
            entry.title,
            {
                group: Bar(stat.mean, stat.std, stat.paper if paper else None)
                for column in columns
                for (_, group), stat in [(column, numbers.get(column))]
                if stat is not None
            },
        )
        for entry, numbers in entries.items()
    ]
    metric, where = columns[0][0], f"{section.title} ({section.encoder})"
    title = f"{of}: {metric}" if of else f"{metric} of {where}"
    series = {group: COLOURS.get(group, "grey-mid") for _, group in columns}
    return bars(title, groups, series, beside=where if of else "", mark="the paper's")
