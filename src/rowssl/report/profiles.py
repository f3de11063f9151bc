"""The picture of a split: how many images each class has, labelled and unlabelled, known and novel.

As an SVG written by hand, two panels over the same classes and the same axis, so that a mismatch of the two priors is
seen as two slopes; and as a few lines of blocks and a table for the terminal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rowssl.data.split_file import Split
from rowssl.report.markup import clean, count, escape

if TYPE_CHECKING:
    from rich.console import Console

WIDTH, HEIGHT = 960, 424
LEFT, RIGHT, TOP, PANEL, GAP = 74, 20, 62, 138, 34
COLOURS = {"labelled": "#2d6ba9", "known": "#8fb8de", "novel": "#c0611c"}  # the page's known and novel
BLOCKS, ASCII_BLOCKS = " ▁▂▃▄▅▆▇█", " .:-=+*#@"
_LOG_FROM = 20  # ratio of largest to smallest class beyond which a linear axis would hide the tail


def class_sizes(split: Split, train_labels: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Labelled and unlabelled images per target, each int64 (n_known + n_novel,)."""
    targets = split.targets(train_labels)
    n = len(split.classes)
    labelled, unlabelled = targets[split.labelled], targets[split.unlabelled]
    return np.bincount(labelled[labelled >= 0], minlength=n), np.bincount(unlabelled[unlabelled >= 0], minlength=n)


class _Axis:
    """From a count to a height in pixels, linear or logarithmic, with round tick values."""

    def __init__(self, counts: np.ndarray) -> None:
        present = counts[counts > 0]
        top = int(present.max()) if len(present) else 1
        self.log = len(present) > 0 and top / int(present.min()) > _LOG_FROM
        if self.log:
            self.ticks = [10**k for k in range(math.floor(math.log10(top)) + 1)]
            if top / self.ticks[-1] > 2:
                self.ticks.append(top if top / self.ticks[-1] < 5 else 5 * self.ticks[-1])
            self.low, self.high = math.log10(0.7), math.log10(top * 1.08)  # a class of one image keeps a visible bar
        else:
            rough = top / 3
            step = 10 ** math.floor(math.log10(rough)) if rough >= 1 else 1
            step = int(next(step * f for f in (1, 2, 5, 10) if step * f >= rough))
            self.ticks = list(range(0, top + 1, step))
            self.low, self.high = 0.0, top * 1.05

    def height(self, value: float) -> float:
        if value <= 0:
            return 0.0
        place = math.log10(value) if self.log else value
        return PANEL * (place - self.low) / (self.high - self.low)


def profile_svg(split: Split, train_labels: Sequence[int] | np.ndarray, class_names: Sequence[str]) -> str:
    """Draw the class sizes of a split.

    Parameters
    ----------
    split : Split
    train_labels : array of int
        Labels of the whole train table.
    class_names : sequence of str
        Names by class id of the table; any text, it is escaped.

    Returns
    -------
    str
        One self-contained `<svg>` element, 960 x 424 on white, with the numbers of each class as tooltips.
    """
    labelled, unlabelled = class_sizes(split, train_labels)
    n, n_known = len(split.classes), len(split.known_classes)
    order, is_sorted = _order(labelled, unlabelled, n_known)
    labelled, unlabelled = labelled[order], unlabelled[order]
    axis = _Axis(np.concatenate([labelled, unlabelled]))
    slot = (WIDTH - LEFT - RIGHT) / max(n, 1)
    names = [_name(class_names, split.classes[i]) for i in order]
    kinds = {
        "labelled": ("labelled", int(labelled.sum())),
        "known": ("unlabelled, known classes", int(unlabelled[:n_known].sum())),
        "novel": ("unlabelled, novel classes", int(unlabelled[n_known:].sum())),
    }
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'role="img" font-family="system-ui, sans-serif" font-size="13" fill="#333">',
        f"<title>Class sizes: {'; '.join(f'{text} {total:,} images' for text, total in kinds.values())}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        *_legend(kinds),
        *_halves(n_known, n - n_known, slot),
    ]
    for panel, (word, sizes) in enumerate((("labelled", labelled), ("unlabelled", unlabelled))):
        base = TOP + PANEL + panel * (PANEL + GAP)
        parts += _grid(axis, base, word)
        parts += [
            _bar(
                slot,
                i,
                base,
                axis.height(size),
                _colour(panel, i < n_known),
                f"{names[i]}: {count(size, word + ' image')}",
            )
            for i, size in enumerate(sizes.tolist())
            if size
        ]
        parts += [
            f'<text x="{LEFT + (start + end) / 2 * slot:g}" y="{base - PANEL / 2:g}" text-anchor="middle" '
            f'fill="#999">no {word} images</text>'
            for start, end in ((0, n_known), (n_known, n))
            if start < end and not sizes[start:end].any()
        ]
        parts.append(_line(LEFT, base, WIDTH - RIGHT, base, "#555"))
    parts += _class_axis(names, slot, TOP + 2 * PANEL + GAP, is_sorted)
    return "\n".join([*parts, "</svg>", ""])


def _order(labelled: np.ndarray, unlabelled: np.ndarray, n_known: int) -> tuple[np.ndarray, bool]:
    """Targets in drawing order: their own if it is a profile already, otherwise each half from large to small."""
    order = np.arange(len(labelled))
    halves = ((slice(0, n_known), labelled), (slice(n_known, None), unlabelled))
    steps = [np.diff(sizes[half]) for half, sizes in halves]
    if all((step <= 0).all() or (step >= 0).all() for step in steps):
        return order, False
    for half, sizes in halves:
        order[half] = order[half][np.argsort(-sizes[half], kind="stable")]
    return order, True


def _name(class_names: Sequence[str], class_id: int) -> str:
    text = class_names[class_id] if class_id < len(class_names) else f"class {class_id}"
    return clean("".join(c for c in text if c.isprintable()))  # control characters are not XML


def _colour(panel: int, known: bool) -> str:
    return COLOURS["labelled" if panel == 0 else "known" if known else "novel"]


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, more: str = "") -> str:
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{colour}"{more}/>'


def _bar(slot: float, i: int, base: float, height: float, colour: str, tip: str) -> str:
    space = min(0.22 * slot, 6) if slot > 3 else -0.4  # many classes: the bars overlap and form one shape
    x, width = LEFT + i * slot + space / 2, slot - space
    shape = f'x="{x:.2f}" y="{base - height:.2f}" width="{width:.2f}" height="{height:.2f}"'
    return f'<rect {shape} fill="{colour}"><title>{escape(tip)}</title></rect>'


def _legend(kinds: dict[str, tuple[str, int]]) -> list[str]:
    parts, x = [], float(LEFT)
    for kind, (text, total) in kinds.items():
        shown = f"{text} · {total:,}"
        parts.append(f'<rect x="{x:g}" y="14" width="13" height="13" rx="2" fill="{COLOURS[kind]}"/>')
        parts.append(f'<text x="{x + 19:g}" y="25">{shown}</text>')
        x += 45 + 7.1 * len(shown)
    return parts


def _halves(n_known: int, n_novel: int, slot: float) -> list[str]:
    """Names of the known and the novel half, and the border between them through both panels."""
    border = LEFT + n_known * slot
    parts = []
    for number, word, start, width in (
        (n_known, "known", LEFT, n_known * slot),
        (n_novel, "novel", border, n_novel * slot),
    ):
        if number:
            text = count(number, f"{word} class", f"{word} classes")
            parts.append(
                f'<text x="{start + width / 2:g}" y="{TOP - 10}" text-anchor="middle" fill="#666">{text}</text>'
            )
    if n_known and n_novel:
        parts.append(_line(border, TOP - 22, border, TOP + 2 * PANEL + GAP, "#999", ' stroke-dasharray="4 4"'))
    return parts


def _grid(axis: _Axis, base: float, word: str) -> list[str]:
    middle = base - PANEL / 2
    scale = ", log scale" if axis.log else ""
    parts = [
        f'<text transform="translate(20 {middle:g}) rotate(-90)" text-anchor="middle" fill="#666">{word} images'
        f'<tspan x="0" dy="14" font-size="11">per class{scale}</tspan></text>'
    ]
    for tick in axis.ticks:
        y = base - axis.height(tick)
        if tick:
            parts.append(_line(LEFT, y, WIDTH - RIGHT, y, "#e4e4e4"))
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" font-size="12">{tick:,}</text>')
    return parts


def _class_axis(names: list[str], slot: float, base: float, is_sorted: bool) -> list[str]:
    """Class names where they fit, otherwise the positions 0, 10, 20, ... of the target order."""
    longest = int(slot / 6.8)  # letters that fit under one bar
    parts = []
    if names and len(names) <= 20 and longest >= 1 and (longest >= 5 or max(map(len, names)) <= longest):
        for i, name in enumerate(names):
            shown = name if len(name) <= longest else name[: longest - 1] + "…"
            x = LEFT + (i + 0.5) * slot
            parts.append(
                f'<text x="{x:.1f}" y="{base + 18}" text-anchor="middle" font-size="12">{escape(shown)}</text>'
            )
        title = "class"
    else:
        rough = max(len(names) / 10, 1)
        power = 10 ** math.floor(math.log10(rough))
        step = int(next(power * f for f in (1, 2, 5, 10) if power * f >= rough))
        for i in range(0, len(names), step):
            x = LEFT + (i + 0.5) * slot
            parts.append(_line(x, base, x, base + 4, "#555"))
            parts.append(f'<text x="{x:.1f}" y="{base + 18}" text-anchor="middle" font-size="12">{i}</text>')
        title = "class position: known classes first, then novel ones"
    if is_sorted:
        title += "; known ones by labelled, novel ones by unlabelled images"
    middle = LEFT + (WIDTH - LEFT - RIGHT) / 2
    return [*parts, f'<text x="{middle:g}" y="{base + 42}" text-anchor="middle" fill="#666">{title}</text>']


def print_profiles(split: Split, labels: Sequence[int] | np.ndarray, console: Console) -> None:
    """Show the class sizes in the terminal: one line of blocks for each part (log scale), and a table of counts."""
    from rich.table import Table
    from rich.text import Text

    labelled, unlabelled = class_sizes(split, labels)
    n_known = len(split.known_classes)
    order, is_sorted = _order(labelled, unlabelled, n_known)
    labelled, unlabelled = labelled[order], unlabelled[order]
    rows = [
        ("labelled", labelled[:n_known], "labelled"),
        ("unlabelled, known", unlabelled[:n_known], "known"),
        ("unlabelled, novel", unlabelled[n_known:], "novel"),
    ]
    blocks = BLOCKS if console.encoding.lower().startswith("utf") else ASCII_BLOCKS
    largest = max((int(sizes.max(initial=0)) for _, sizes, _ in rows), default=0)
    width = max(8, min(50, console.width - 56))
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    table.add_column("", no_wrap=True)
    for heading in ("images", "classes", "largest", "smallest"):
        table.add_column(heading, justify="right", no_wrap=True)
    with_blocks = console.width >= 76  # in a narrow window the numbers matter more
    if with_blocks:
        table.add_column("sorted, log scale" if is_sorted else "by class, log scale", no_wrap=True)
    for text, sizes, kind in rows:
        if len(sizes):
            numbers = [f"{int(v):,}" for v in (sizes.sum(), len(sizes), sizes.max(), sizes.min())]
            line = Text(_sparkline(sizes, largest, width, blocks), style=COLOURS[kind])
            table.add_row(text, *numbers, *([line] if with_blocks else []))
    table.add_row("test", f"{len(split.test):,}")
    console.print(table)


def _sparkline(sizes: np.ndarray, largest: int, width: int, blocks: str) -> str:
    """One character for each class, or for the mean of neighbours where there are more classes than characters."""
    groups = np.array_split(sizes, min(width, len(sizes)))
    heights = [math.log1p(float(group.mean())) / math.log1p(max(largest, 1)) for group in groups]
    wide = max(1, min(6, width // max(len(sizes), 1)))
    return "".join(wide * blocks[0] if h == 0 else wide * blocks[max(1, round(h * (len(blocks) - 1)))] for h in heights)
