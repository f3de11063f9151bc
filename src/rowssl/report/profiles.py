"""Class sizes of a split, as a picture and as a few lines for the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

from rowssl.core.text import printable
from rowssl.data.check import CheckReport
from rowssl.data.profiles import ClassSizes
from rowssl.data.splits import Split
from rowssl.report.charts import PALETTE, histogram, ranking
from rowssl.report.format import count

if TYPE_CHECKING:
    from rich.console import Console

BLOCKS, ASCII_BLOCKS = " ▁▂▃▄▅▆▇█", " .:-=+*#@"


def class_sizes(split: Split, train_labels: Sequence[int] | np.ndarray, class_names: Sequence[str]) -> ClassSizes:
    """Training images of each class of a split; labels and names are those of the whole table."""
    targets = split.targets(train_labels)
    n = len(split.classes)
    names = tuple(class_names[c] if c < len(class_names) else f"class {c}" for c in split.classes)
    labelled, unlabelled = targets[split.labelled], targets[split.unlabelled]
    return ClassSizes(
        names,
        np.bincount(labelled[labelled >= 0], minlength=n),
        np.bincount(unlabelled[unlabelled >= 0], minlength=n),
        len(split.known_classes),
    )


def size_picture(sizes: ClassSizes, *, page: bool = False) -> Markup:
    """The histogram of class sizes, as an SVG file or as a part of a page."""
    shown, is_sorted = sizes.ordered()
    about = "; known ones by labelled, novel ones by unlabelled images" if is_sorted else ""
    return histogram(shown.names, shown.labelled, shown.unlabelled, shown.n_known, about=about, page=page)


def checked_sizes(report: CheckReport) -> Markup:
    """Labelled rows of each class of a checked data set, the largest first, as an SVG file."""
    title = f"{report.labelled:,} labelled rows in {count(report.classes, 'class', 'classes')}"
    rows = [(printable(name), size) for name, size in report.class_sizes.items()]
    return ranking(title, sorted(rows, key=lambda row: -row[1]))


def print_sizes(sizes: ClassSizes, test: int, console: Console) -> None:
    """Show the class sizes in the terminal: one line of blocks for each part (log scale), and a table of counts."""
    from rich.table import Table
    from rich.text import Text

    shown, is_sorted = sizes.ordered()
    rows = [
        ("labelled", shown.labelled[: sizes.n_known], "known"),
        ("unlabelled, known", shown.unlabelled[: sizes.n_known], "known-pale"),
        ("unlabelled, novel", shown.unlabelled[sizes.n_known :], "novel"),
    ]
    blocks = BLOCKS if console.encoding.lower().startswith("utf") else ASCII_BLOCKS
    largest = max((int(part.max(initial=0)) for _, part, _ in rows), default=0)
    width = max(8, min(50, console.width - 56))
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    table.add_column("", no_wrap=True)
    for heading in ("images", "classes", "largest", "smallest"):
        table.add_column(heading, justify="right", no_wrap=True)
    with_blocks = console.width >= 76  # in a narrow window the numbers matter more
    if with_blocks:
        table.add_column("sorted, log scale" if is_sorted else "by class, log scale", no_wrap=True)
    for text, part, colour in rows:
        if len(part):
            numbers = [f"{int(v):,}" for v in (part.sum(), len(part), part.max(), part.min())]
            line = Text(_sparkline(part, largest, width, blocks), style=PALETTE[colour][0])
            table.add_row(text, *numbers, *([line] if with_blocks else []))
    table.add_row("test", f"{test:,}")
    console.print(table)


def _sparkline(sizes: np.ndarray, largest: int, width: int, blocks: str) -> str:
    """One character for each class, or for the mean of neighbours where there are more classes than characters."""
    groups = np.array_split(sizes, min(width, len(sizes)))
    heights = [math.log1p(float(group.mean())) / math.log1p(max(largest, 1)) for group in groups]
    wide = max(1, min(6, width // max(len(sizes), 1)))
    return "".join(wide * blocks[0] if h == 0 else wide * blocks[max(1, round(h * (len(blocks) - 1)))] for h in heights)
