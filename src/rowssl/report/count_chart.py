"""The picture of a count: all estimates on one axis, then each search with its choice and its interval.

SVG written by hand, on white, in the colours of the report: known classes blue, what was estimated orange.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from rowssl.core.errors import InputError
from rowssl.core.files import write_text
from rowssl.counting.base import AUTO, CountEstimate
from rowssl.counting.table import PICTURES, Counts
from rowssl.report.markup import compact, count, escape

WIDTH, SIDE, GAP = 960, 20, 36
NAMES = 130  # pixels for the estimators' names
LINE = 34  # height of one estimate
PANEL = 172  # height of one search, without its title
TITLE = 50
KNOWN, NOVEL, SOFT, GRID, MUTED = "#2d6ba9", "#c0611c", "#f5e3d3", "#e4e4e4", "#666"
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
STYLE = (
    "body{margin:2rem auto;max-width:980px;padding:0 16px;font:15px/1.5 system-ui,sans-serif;color:#20262b;background:#fff}"
    "svg{width:100%;height:auto}table{border-collapse:collapse;margin:1rem 0}"
    "th,td{text-align:right;padding:4px 18px 4px 0;border-bottom:1px solid #e3e0da}"
    "th:first-child,td:first-child,td:last-child{text-align:left}p{color:#5d6870}.used{font-weight:650}"
)


def count_svg(estimates: Sequence[CountEstimate], *, n_old: int, rows: int, labelled: int) -> str:
    """One self-contained `<svg>` element.

    Parameters
    ----------
    estimates
        The one that is used first.
    n_old, rows, labelled
        Known classes, all rows and labelled rows, for the line of known classes and the title.
    """
    searches = [one for one in estimates if len(one.scores) > 1]
    lines = math.ceil(len(searches) / 2)
    top = 80 + LINE * len(estimates) + 46
    height = top + lines * (TITLE + PANEL + GAP)
    summary = "; ".join(f"{one.name} {one.best} ({one.low} to {one.high})" for one in estimates)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'role="img" font-family="system-ui, sans-serif" font-size="13" fill="#333">',
        f"<title>How many classes: {escape(summary)}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="{SIDE}" y="26" font-size="16" font-weight="600">How many classes: {estimates[0].best} '
        f"({estimates[0].low} to {estimates[0].high})</text>",
        f'<text x="{SIDE}" y="46" fill="{MUTED}">{rows:,} rows, {labelled:,} of them labelled in '
        f"{count(n_old, 'known class', 'known classes')}</text>",
        *_overview(estimates, n_old),
    ]
    width = (WIDTH - 2 * SIDE - GAP) / 2
    for place, one in enumerate(searches):
        left = SIDE + (place % 2) * (width + GAP)
        parts += _panel(one, left, top + (place // 2) * (TITLE + PANEL + GAP), width)
    return "\n".join([*parts, "</svg>", ""])


def _overview(estimates: Sequence[CountEstimate], n_old: int) -> list[str]:
    """Every estimate as a dot with its interval, on one axis of numbers of classes."""
    left, right, top = SIDE + NAMES, WIDTH - SIDE - 60, 84
    bottom = top + LINE * len(estimates)
    ticks = round_ticks(0, max([n_old, *(one.high for one in estimates)]) * 1.05, 8)
    at = _scale(0, max(ticks[-1], max(one.high for one in estimates)), left, right)
    parts = []
    for tick in ticks:
        parts.append(_line(at(tick), top, at(tick), bottom, GRID))
        parts.append(f'<text x="{at(tick):.1f}" y="{bottom + 16}" text-anchor="middle" font-size="12">{tick:g}</text>')
    if n_old:
        parts.append(_line(at(n_old), top - 6, at(n_old), bottom, KNOWN, ' stroke-dasharray="4 4"'))
        parts.append(
            f'<text x="{at(n_old):.1f}" y="{top - 10}" text-anchor="middle" fill="{KNOWN}">{n_old} known</text>'
        )
    for place, one in enumerate(estimates):
        y = top + LINE * (place + 0.5)
        used = one.name == AUTO
        weight = ' font-weight="600"' if used else ""
        colour = NOVEL if used else MUTED
        tip = f"{one.name}: {one.best}, between {one.low} and {one.high}"
        parts += [
            f'<text x="{SIDE}" y="{y + 4:.1f}"{weight}>{escape(one.name)}{" (used)" if used else ""}</text>',
            f"<g><title>{escape(tip)}</title>{_line(at(one.low), y, at(one.high), y, colour, _THICK)}"
            f'<circle cx="{at(one.best):.1f}" cy="{y:.1f}" r="6" fill="{colour}"/></g>',
            f'<text x="{max(at(one.high), at(one.best)) + 12:.1f}" y="{y + 4:.1f}"{weight}>{one.best:,}</text>',
        ]
    return parts


_THICK = ' stroke-width="4" stroke-linecap="round" stroke-opacity="0.35"'


def _panel(one: CountEstimate, left: float, top: float, width: float) -> list[str]:
    """The search of one estimator: a line through what was tried; the choice; the interval where the axis is classes."""
    xs, ys = list(one.scores), list(one.scores.values())
    marked = one.best if one.marked is None else one.marked
    # Only where the axis counts classes does the interval belong on it; a granularity is another thing.
    banded = one.axis != "granularity: number of clusters"
    reach = [*xs, one.low, one.high] if banded else [*xs, marked]
    inner, right, base, head = left + 46, left + width, top + TITLE + PANEL - 36, top + TITLE
    low, high = min(ys), max(ys)
    spare = 0.08 * ((high - low) or 1.0)
    ticks = round_ticks(min(reach), max(reach), 6)
    across = _scale(min(reach), max(reach), inner, right - 6)
    up = _scale(low - spare, high + spare, base, head)
    parts = [
        f'<text x="{left:.1f}" y="{top + 14:.1f}" font-weight="600">{escape(one.name)}: {one.best:,} '
        f'<tspan font-weight="400" fill="{MUTED}">({one.low:,} to {one.high:,})</tspan></text>',
        f'<text x="{left:.1f}" y="{top + 33:.1f}" fill="{MUTED}" font-size="12">{escape(one.value)}</text>',
    ]
    if banded:
        begin, end = across(one.low), across(one.high)
        parts.append(
            f'<rect x="{begin:.1f}" y="{head:.1f}" width="{max(2.0, end - begin):.1f}" height="{base - head:.1f}" '
            f'fill="{SOFT}"><title>interval: {one.low} to {one.high}</title></rect>'
        )
    for level in (low, (low + high) / 2, high):
        y = up(level)
        parts.append(_line(inner, y, right, y, GRID))
        parts.append(
            f'<text x="{inner - 8:.1f}" y="{y + 4:.1f}" text-anchor="end" font-size="12">{compact(level)}</text>'
        )
    for tick in ticks:
        x = across(tick)
        parts.append(_line(x, base, x, base + 4, "#555"))
        parts.append(f'<text x="{x:.1f}" y="{base + 18:.1f}" text-anchor="middle" font-size="12">{tick:g}</text>')
    parts.append(_line(inner, base, right, base, "#555"))
    points = [(across(x), up(y)) for x, y in zip(xs, ys, strict=True)]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    parts.append(f'<path d="{path}" fill="none" stroke="{KNOWN}" stroke-width="1.8" stroke-linejoin="round"/>')
    if len(points) <= 80:
        parts += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{KNOWN}"><title>{key}: {compact(value)}</title></circle>'
            for (x, y), key, value in zip(points, xs, ys, strict=True)
        ]
    chosen = across(marked)
    parts.append(_line(chosen, head - 4, chosen, base, NOVEL, ' stroke-width="1.8"'))
    end = chosen > (inner + right) / 2
    parts.append(
        f'<text x="{chosen + (-6 if end else 6):.1f}" y="{head + 8:.1f}" fill="{NOVEL}" '
        f'text-anchor="{"end" if end else "start"}">{marked:,}</text>'
    )
    middle = (inner + right) / 2
    parts.append(
        f'<text x="{middle:.1f}" y="{base + 35:.1f}" text-anchor="middle" fill="{MUTED}" font-size="12">'
        f"{escape(one.axis)}</text>"
    )
    return parts


def round_ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers within a range, at most about `most` of them, whole ones."""
    rough = max((high - low) / most, 1.0)
    power = 10 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    first = math.ceil(low / step)
    return [step * i for i in range(first, math.floor(high / step) + 1)] or [math.ceil(low)]


def _scale(low: float, high: float, begin: float, end: float) -> Callable[[float], float]:
    """From a value to a place in pixels."""
    span = (high - low) or 1.0
    return lambda value: begin + (value - low) / span * (end - begin)


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, more: str = "") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"{more}/>'


def count_page(estimates: Sequence[CountEstimate], *, n_old: int, rows: int, labelled: int) -> str:
    """The picture and the numbers as one HTML page that asks nothing of the network."""
    lines = "".join(
        f"<tr{' class=used' if one.name == AUTO else ''}><td>{escape(one.name)}</td><td>{one.best:,}</td>"
        f"<td>{one.low:,} to {one.high:,}</td><td>{one.seconds:.1f}</td><td>{escape(one.note)}</td></tr>"
        for one in estimates
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><title>How many classes</title>'
        f"<style>{STYLE}</style></head><body>{count_svg(estimates, n_old=n_old, rows=rows, labelled=labelled)}"
        "<table><tr><th>estimator</th><th>classes</th><th>interval</th><th>seconds</th><th></th></tr>"
        f"{lines}</table><p>The first is what --classes auto uses.</p></body></html>\n"
    )


def check_picture(path: Path | None) -> None:
    """Refuse a picture of another kind before the work starts."""
    if path is not None and path.suffix.lower() not in PICTURES:
        raise InputError(f"--out {path} must end in .html or .svg.")


def write_picture(path: Path, counts: Counts) -> None:
    """The search as an SVG file, or as an HTML page with the table."""
    draw = count_svg if path.suffix.lower() == ".svg" else count_page
    write_text(path, draw(counts.estimates, n_old=counts.n_old, rows=counts.rows, labelled=counts.labelled))
