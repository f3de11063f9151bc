"""Pictures of reproduced figures as self-contained SVG, in the style of the bars of `rowssl bench`: lines and clouds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rowssl.report.markup import clean, compact, escape

WIDTH, LEFT, RIGHT, TOP, PANEL = 960, 64, 24, 74, 270
COLOURS = ("#5f6b76", "#2d6ba9", "#c0611c", "#3c8d5a", "#8a5aa8", "#a8893a")
KNOWN = ("#123b63", "#1d4b7a", "#2d6ba9", "#3f7cb8", "#4f8bc4", "#6a9fd0", "#86b2db", "#a3c6e6", "#2a8ca0", "#57aebc")
NOVEL = ("#6b320b", "#8a4210", "#a8521a", "#c0611c", "#d27a3a", "#de9560", "#e8ab7f", "#efbd97", "#a8893a", "#c7ab5c")


@dataclass(frozen=True)
class Curve:
    """A line: x, mean, spread over seeds (None where there is one seed); `dashed` for the second of a pair."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    spread: tuple[float | None, ...] = ()
    colour: str = ""
    dashed: bool = False


def text_of(text: str) -> str:
    """Printable and escaped: control characters are not XML."""
    return escape(clean("".join(c for c in text if c.isprintable())))


def start_svg(title: str, width: int, height: int) -> list[str]:
    """The first lines of a picture: its size, a white ground and a title."""
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'role="img" font-family="system-ui, sans-serif" font-size="13" fill="#333">',
        f"<title>{text_of(title)}</title>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text x="{LEFT}" y="24" font-size="15" font-weight="600">{text_of(title)}</text>',
    ]


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round values between low and high."""
    rough = (high - low) / max(about, 1) or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(step * i, 10) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def lines_svg(
    title: str, curves: Sequence[Curve], *, across: str, up: str, even: bool = False, level: tuple[float, str] | None = None,
    marked: float | None = None, at_least: float | None = None,
) -> str:  # fmt: skip
    """Draw curves over one axis; empty if there is nothing to draw.

    Parameters
    ----------
    across, up : what the axes are.
    even : place the x values evenly, as names; otherwise by their size.
    level : a horizontal line and what it is.
    marked : an x value with a dotted upright line: the value that is used elsewhere.
    at_least : a value the y axis has to show.
    """
    places = sorted({x for curve in curves for x in curve.x})
    if not places:
        return ""
    spreads = [(y, s or 0.0) for c in curves for y, s in zip(c.y, c.spread or (None,) * len(c.y), strict=True)]
    shown = [level[0]] if level else []
    shown += [at_least] if at_least is not None else []
    low, high = min([y - s for y, s in spreads] + shown), max([y + s for y, s in spreads] + shown)
    margin = 0.08 * ((high - low) or abs(high) or 1.0)
    low, high = low - margin, high + margin
    base, inner = TOP + PANEL, WIDTH - LEFT - RIGHT
    pad = 40 if even or len(places) < 3 else 12

    def at(x: float) -> float:
        share = (
            places.index(x) / max(len(places) - 1, 1) if even else (x - places[0]) / ((places[-1] - places[0]) or 1.0)
        )
        return LEFT + pad + (inner - 2 * pad) * (share if len(places) > 1 else 0.5)

    def height(y: float) -> float:
        return base - PANEL * (y - low) / (high - low)

    named = [*curves, Curve(level[1], (), (), colour="#000")] if level else curves
    parts = [*start_svg(title, WIDTH, base + 62), *_names(named)]
    for value in ticks(low, high):
        parts.append(f'<path d="M{LEFT} {height(value):.1f}H{WIDTH - RIGHT}" stroke="#e4e4e4"/>')
        parts.append(
            f'<text x="{LEFT - 8}" y="{height(value) + 4:.1f}" text-anchor="end" font-size="12">{compact(value)}</text>'
        )
    for value in places if even or len(places) <= 12 else ticks(places[0], places[-1], 8):
        x = (
            at(value)
            if value in places
            else LEFT + pad + (inner - 2 * pad) * (value - places[0]) / (places[-1] - places[0])
        )
        parts.append(f'<path d="M{x:.1f} {base}v5" stroke="#555"/>')
        parts.append(f'<text x="{x:.1f}" y="{base + 20}" text-anchor="middle" font-size="12">{value:g}</text>')
    parts.append(
        f'<text x="{LEFT + inner / 2:g}" y="{base + 46}" text-anchor="middle" fill="#666">{text_of(across)}</text>'
    )
    turned = f'transform="translate(18 {base - PANEL / 2:g}) rotate(-90)"'
    parts.append(f'<text {turned} text-anchor="middle" fill="#666">{text_of(up)}</text>')
    if marked is not None and marked in places:
        parts.append(f'<path d="M{at(marked):.1f} {TOP}V{base}" stroke="#999" stroke-dasharray="2 4"/>')
    if level is not None:
        y = height(level[0])
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#000" stroke-width="1.5"/>')
    for number, curve in enumerate(curves):
        aside = 3.0 * (number - (len(curves) - 1) / 2)  # so that whiskers of one place do not cover each other
        parts += _curve(curve, curve.colour or COLOURS[number % len(COLOURS)], at, height, aside)
    parts.append(f'<path d="M{LEFT} {base}H{WIDTH - RIGHT}" stroke="#555"/>')
    return "\n".join([*parts, "</svg>", ""])


def _names(curves: Sequence[Curve]) -> list[str]:
    parts, x = [], float(LEFT)
    for number, curve in enumerate(curves):
        colour = curve.colour or COLOURS[number % len(COLOURS)]
        dash = ' stroke-dasharray="6 4"' if curve.dashed else ""
        parts.append(f'<path d="M{x:g} 46.5h22" stroke="{colour}" stroke-width="2.5"{dash}/>')
        parts.append(f'<text x="{x + 28:g}" y="51">{text_of(curve.name)}</text>')
        x += 42 + 6.9 * len(curve.name)
    return parts


def _curve(
    curve: Curve, colour: str, at: Callable[[float], float], height: Callable[[float], float], aside: float
) -> list[str]:
    points = [(at(x) + aside, height(y)) for x, y in zip(curve.x, curve.y, strict=True)]
    dash = ' stroke-dasharray="6 4"' if curve.dashed else ""
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    parts = [f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>']
    spreads = curve.spread or (None,) * len(points)
    for (x, y), value, place, spread in zip(points, curve.y, curve.x, spreads, strict=True):
        said = f"{curve.name}, {place:g}: {value:.2f}" + ("" if spread is None else f" ± {spread:.2f}")
        if spread:
            high, low = height(value + spread), height(value - spread)
            caps = f"M{x - 4:.1f} {high:.1f}h8M{x - 4:.1f} {low:.1f}h8"
            parts.append(f'<path d="M{x:.1f} {low:.1f}V{high:.1f}{caps}" stroke="{colour}" fill="none"/>')
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"><title>{text_of(said)}</title></circle>'
        )
    return parts


@dataclass(frozen=True)
class Cloud:
    """Points (n, 2) of one panel, their classes (n,), and which classes are known (below `n_old`)."""

    name: str
    points: np.ndarray
    truth: np.ndarray
    n_old: int


def clouds_svg(title: str, rows: Sequence[tuple[str, Sequence[Cloud]]], note: str = "") -> str:
    """Panels in rows, known classes in blues and novel ones in oranges; empty if there is nothing to draw."""
    rows = [(name, clouds) for name, clouds in rows if clouds]
    if not rows:
        return ""
    across = max(len(clouds) for _, clouds in rows)
    gap, left = 14, 34
    side = (WIDTH - left - 16 - (across - 1) * gap) / across
    parts = start_svg(title, WIDTH, round(64 + len(rows) * (side + 46)))
    for x, colour, word in ((LEFT, KNOWN[2], "known classes"), (LEFT + 140, NOVEL[3], "novel classes")):
        parts.append(f'<circle cx="{x + 6}" cy="46" r="5" fill="{colour}"/><text x="{x + 18}" y="51">{word}</text>')
    parts.append(f'<text x="{LEFT + 290}" y="51" fill="#666">one shade for each class{text_of(note)}</text>')
    for number, (name, clouds) in enumerate(rows):
        y = 86 + number * (side + 46)
        turned = f'transform="translate(22 {y + side / 2:.1f}) rotate(-90)"'
        parts.append(f'<text {turned} text-anchor="middle" fill="#666">{text_of(name)}</text>')
        for place, cloud in enumerate(clouds):
            parts += _cloud(cloud, left + place * (side + gap), y, side)
    return "\n".join([*parts, "</svg>", ""])


def _cloud(cloud: Cloud, x: float, y: float, side: float) -> list[str]:
    low, high = cloud.points.min(0), cloud.points.max(0)
    scale = (side - 16) / max(float((high - low).max()), 1e-9)
    placed = (cloud.points - (low + high) / 2) * scale + side / 2
    order = {
        c: i
        for part in (cloud.truth < cloud.n_old, cloud.truth >= cloud.n_old)
        for i, c in enumerate(np.unique(cloud.truth[part]))
    }
    shades = {c: (KNOWN if c < cloud.n_old else NOVEL)[i % len(KNOWN)] for c, i in order.items()}
    parts = [
        f'<text x="{x + side / 2:.1f}" y="{y - 7:.1f}" text-anchor="middle" font-weight="600">{text_of(cloud.name)}</text>',
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{side:.1f}" height="{side:.1f}" fill="none" stroke="#ccc"/>',
    ]
    for c in np.unique(cloud.truth):
        dots = "".join(
            f"M{x + px:.1f} {y + py:.1f}h0" for px, py in placed[cloud.truth == c]
        )  # round caps make dots of empty strokes, one path for each class
        parts.append(
            f'<path d="{dots}" stroke="{shades[int(c)]}" stroke-width="4" stroke-linecap="round" opacity="0.8"/>'
        )
    return parts
