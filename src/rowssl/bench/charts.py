"""Grouped bars of a grid as one self-contained SVG: a group for each method, whiskers for the spread over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rowssl.bench.results import Column, Section, Stat
from rowssl.bench.tables import Entries, present, shown
from rowssl.report.markup import clean, escape

WIDTH, LEFT, RIGHT, TOP, PANEL = 960, 58, 16, 74, 260
# All in grey, known classes in blue, novel ones in orange, as in the report; frequent classes darker than rare ones.
COLOURS = {
    "All": "#5f6b76", "Old": "#2d6ba9", "New": "#c0611c",
    "KMany": "#1d4b7a", "KMed": "#4f8bc4", "KFew": "#a3c6e6", "UMany": "#8a4210", "UMed": "#d27a3a", "UFew": "#efbd97",
    "train": "#5f6b76", "test recluster+rematch": "#e0b36a", "test rematch": "#8fb8a0", "test inductive": "#2f7d55",
    "Many": "#3a434b", "Med": "#77838e", "Few": "#b4bdc5",
}  # fmt: skip
HOVER_PAPER = "the paper's"


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
    stats = [stat for numbers in entries.values() for column, stat in numbers.items() if column in columns]
    highest = max(max(s.mean + (s.std or 0), (s.paper or 0) if paper else 0) for s in stats)
    top = min(100, 10 * math.ceil(highest / 10 + 0.05)) if highest > 0 else 10
    base, slot = TOP + PANEL, (WIDTH - LEFT - RIGHT) / len(entries)
    bar = min(46.0, 0.8 * slot / len(columns))
    turned = any(7.2 * len(entry.title) > slot for entry in entries)
    fitting = [_fitting(entry.title, LEFT + (place + 0.5) * slot) for place, entry in enumerate(entries)]
    height = base + (36 + round(3.2 * max(map(len, fitting))) if turned else 36)
    metric = columns[0][0]
    with_paper = paper and any(stat.paper is not None for stat in stats)
    groups = [group for _, group in columns]
    where = f"{section.title} ({section.encoder})"
    title = f"{of}: {metric}" if of else f"{metric} of {where}"
    beside = f'<tspan font-weight="400" font-size="12" fill="#666" dx="8">{_text(where)}</tspan>' if of else ""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" role="img" font-family="system-ui, sans-serif" font-size="13" fill="#333">',
        f"<title>{_text(title)}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="{LEFT}" y="24" font-size="15" font-weight="600">{_text(title)}{beside}</text>',
        *_legend(groups, with_paper),
        *_grid(top, base),
    ]
    for place, (entry, numbers) in enumerate(entries.items()):
        middle = LEFT + (place + 0.5) * slot
        for number, column in enumerate(columns):
            stat = numbers.get(column)
            if stat is not None:
                x = middle + (number - len(columns) / 2) * bar
                parts += _bar(x, bar, base, PANEL / top, stat, column[1], f"{entry.title}, {column[1]}", with_paper)
        parts.append(_name(fitting[place] if turned else entry.title, middle, base, turned))
    parts.append(f'<path d="M{LEFT} {base}H{WIDTH - RIGHT}" stroke="#555"/>')
    return "\n".join([*parts, "</svg>", ""])


def _text(text: str) -> str:
    """Printable and escaped: control characters are not XML."""
    return escape(clean("".join(c for c in text if c.isprintable())))


def _legend(groups: Sequence[str], with_paper: bool) -> list[str]:
    parts, x = [], float(LEFT)
    for group in groups:
        parts.append(f'<rect x="{x:g}" y="40" width="13" height="13" rx="2" fill="{COLOURS.get(group, "#888")}"/>')
        parts.append(f'<text x="{x + 19:g}" y="51">{_text(group)}</text>')
        x += 36 + 8 * len(group)
    if with_paper:
        parts.append(f'<path d="M{x:g} 46.5h16" stroke="#000" stroke-width="2.5"/>')
        parts.append(f'<text x="{x + 22:g}" y="51">{_text(HOVER_PAPER)}</text>')
    return parts


def _grid(top: float, base: float) -> list[str]:
    parts = []
    for value in range(0, int(top) + 1, 10 if top <= 60 else 20):
        y = base - PANEL * value / top
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#e4e4e4"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" font-size="12">{value}</text>')
    turned = f'transform="translate(18 {base - PANEL / 2:g}) rotate(-90)"'
    return [*parts, f'<text {turned} text-anchor="middle" fill="#666">percent</text>']


def _bar(
    x: float, width: float, base: float, scale: float, stat: Stat, group: str, who: str, with_paper: bool
) -> list[str]:
    """A bar with its whisker and the paper's number."""
    height = max(stat.mean, 0) * scale
    spread = "" if stat.std is None else f" ± {shown(stat.std)}"
    beside = "" if stat.paper is None else f" ({HOVER_PAPER} {shown(stat.paper)})"
    tip = _text(f"{who}: {shown(stat.mean)}{spread}{beside}")
    inner = 0.88 * width
    parts = [
        f'<rect x="{x:.2f}" y="{base - height:.2f}" width="{inner:.2f}" height="{height:.2f}" '
        f'fill="{COLOURS.get(group, "#888")}"><title>{tip}</title></rect>'
    ]
    middle = x + inner / 2
    if stat.std:
        low, high = base - max(stat.mean - stat.std, 0) * scale, base - (stat.mean + stat.std) * scale
        cap = min(4.0, inner / 3)
        parts.append(
            f'<path d="M{middle:.2f} {low:.2f}V{high:.2f}M{middle - cap:.2f} {high:.2f}h{2 * cap:.2f}'
            f'M{middle - cap:.2f} {low:.2f}h{2 * cap:.2f}" stroke="#333" fill="none"/>'
        )
    if with_paper and stat.paper is not None:
        y = base - stat.paper * scale
        parts.append(f'<path d="M{x - 1:.2f} {y:.2f}h{inner + 2:.2f}" stroke="#000" stroke-width="2.5"/>')
    return parts


def _fitting(title: str, middle: float) -> str:
    """As much of a name as there is room for to the left of its group, turned."""
    most = min(36, int(middle / 5.8))
    return title if len(title) <= most else title[: most - 1] + "…"


def _name(title: str, middle: float, base: float, turned: bool) -> str:
    """Under its group."""
    if not turned:
        return f'<text x="{middle:.1f}" y="{base + 20:g}" text-anchor="middle">{_text(title)}</text>'
    place = f'transform="translate({middle + 4:.1f} {base + 16:g}) rotate(-28)"'
    return f'<text {place} text-anchor="end" font-size="12">{_text(title)}</text>'
