"""Every picture of the package, drawn as SVG from numbers: lines, bars, histograms, heat maps, scatter, reliability.

On a page a picture takes the colours of the page and follows light and dark; in a file of its own it is on white.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup, escape

from rowssl.report.format import compact, count

# The one palette: name, on a light ground, on a dark one. Pages use it as CSS variables, files take the light column.
PALETTE = {
    "back": ("#faf9f7", "#14171a"), "panel": ("#ffffff", "#1b1f23"), "soft": ("#f1efeb", "#242a2f"),
    "line": ("#e3e0da", "#2e353b"), "muted": ("#5d6870", "#9ba6ae"), "ink": ("#20262b", "#e7eaec"),
    "on": ("#ffffff", "#14171a"), "mid": ("#20262b", "#14171a"), "wrong": ("#b3261e", "#ff8a80"),
    "known": ("#2d6ba9", "#6ba8e2"), "known-deep": ("#1c4a7a", "#b4d5f5"), "known-mid": ("#4f8bc4", "#4f8bc4"),
    "known-pale": ("#8fb8de", "#3d6f9f"),
    "novel": ("#b75a17", "#e8954c"), "novel-deep": ("#8a420e", "#ffd0a3"), "novel-mid": ("#d27a3a", "#d27a3a"),
    "novel-pale": ("#efbd97", "#8f5526"),
    "grey": ("#5f6b76", "#9ba6ae"), "grey-deep": ("#3a434b", "#d3d9de"), "grey-mid": ("#77838e", "#77838e"),
    "grey-pale": ("#b4bdc5", "#4b555d"),
    "green": ("#2f7d55", "#63b98c"), "green-pale": ("#8fb8a0", "#4a7a60"), "sand": ("#a8893a", "#cdb061"),
    "sand-pale": ("#e0b36a", "#8f7440"), "violet": ("#8a5aa8", "#b78fd1"),
}  # fmt: skip
SERIES = ("grey", "known", "novel", "green", "violet", "sand")  # of lines that have no colour of their own
# One shade for each class of a cloud, repeated beyond ten.
SHADES = {
    True: ("#123b63", "#1d4b7a", "#2d6ba9", "#3f7cb8", "#4f8bc4", "#6a9fd0", "#86b2db", "#a3c6e6", "#2a8ca0", "#57aebc"),
    False: ("#6b320b", "#8a4210", "#a8521a", "#b75a17", "#d27a3a", "#de9560", "#e8ab7f", "#efbd97", "#a8893a", "#c7ab5c"),
}  # fmt: skip
# For the map, which the page's script draws: the largest classes, other classes or none, and low to high.
CLASSES = ("#4a7fb5", "#d98032", "#5a9e6f", "#c75b5b", "#8b73b3", "#a0785a", "#cf7fb0", "#b3a43a", "#45a5b5", "#6f7f3f")
NO_CLASS = "#8a9099"
RAMP = ("#c2410c", "#dd8f3d", "#b9ac86", "#6f9fb5", "#3b6fc4")

WIDTH, RIGHT, TOP, LETTER = 960, 24, 74, 7.1  # of a picture in a file; LETTER is the usual width of one
LOG_FROM = 20  # ratio of largest to smallest class beyond which a linear axis would hide the small ones
LABELLED_CLASSES = 40  # of a heat map: names beside it are readable up to here
COUNTED_CLASSES = 15  # and counts inside the cells up to here
TITLED_CLASSES = 120  # and hover titles are worth their bytes up to here


def palette_css() -> str:
    """The palette as CSS variables, light and dark."""
    light, dark = ("".join(f"--{name}:{both[i]};" for name, both in PALETTE.items()) for i in (0, 1))
    return f":root{{{light}}}\n@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"


def plain(text: object) -> str:
    """Text that XML can hold: control characters and lone surrogates are left out."""
    return "".join(c if c.isprintable() else " " for c in str(text) if c.isprintable() or c.isspace()).strip()


def number(value: float) -> str:
    """A coordinate in as few characters as two decimals need."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def ticks(low: float, high: float, about: int = 5, *, whole: bool = False) -> list[float]:
    """Round values between low and high, about so many of them; `whole` ones, and at least one, where they count things."""
    rough = (high - low) / max(about, 1) or 1.0
    rough = max(rough, 1.0) if whole else rough
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(
        power * factor for factor in ((1, 2, 5, 10) if whole else (1, 2, 2.5, 5, 10)) if power * factor >= rough * 0.999
    )
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(step * i, 10) for i in range(first, last + 1)] or ([math.ceil(low)] if whole else [])


@dataclass(frozen=True)
class Scale:
    """From a value to a place in pixels; `log` takes the logarithm first."""

    low: float
    high: float
    begin: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, value = (math.log10(v) if self.log else v for v in (self.low, self.high, value))
        return self.begin + (value - low) / ((high - low) or 1.0) * (self.end - self.begin)


class Drawing:
    """An SVG while it is drawn: `add` knows the palette and escapes every text."""

    def __init__(self, width: float, height: float, title: str, *, page: str = "") -> None:
        """`page`: the CSS class of a picture that is part of a page; without it the picture is a file of its own."""
        self.page = bool(page)
        size = f'viewBox="0 0 {number(width)} {number(height)}"'
        name = escape(plain(title))
        if page:
            start = f'<svg class="{page}" {size} style="--w:{number(width)}px" role="img" aria-label="{name}" font-size="12">'
            self.parts = [start]
        else:
            self.parts = [
                f'<svg xmlns="http://www.w3.org/2000/svg" {size} width="{number(width)}" height="{number(height)}" role="img" '
                f'font-family="system-ui, sans-serif" font-size="13"><title>{name}</title>'
            ]
            self.add("rect", width=width, height=height, fill="panel")

    def svg(self) -> Markup:
        return Markup(("" if self.page else "\n").join([*self.parts, "</svg>"]) + ("" if self.page else "\n"))

    def colour(self, name: str) -> str:
        """A colour of the palette as this picture writes it; any other as it is."""
        return name if name not in PALETTE else f"var(--{name})" if self.page else PALETTE[name][0]

    def add(self, tag: str, *, tip: str = "", **attributes: Any) -> None:
        """One shape; `tip` shows under the pointer."""
        for key in ("fill", "stroke"):
            if key in attributes:
                attributes[key] = self.colour(attributes[key])
        written = "".join(
            f' {key.replace("_", "-")}="{number(value)}"'
            for key, value in attributes.items()
            if value not in (None, "")
        )
        self.parts.append(
            f"<{tag}{written}><title>{escape(plain(tip))}</title></{tag}>" if tip else f"<{tag}{written}/>"
        )

    def text(
        self, x: float, y: float, words: object, *, anchor: str = "", colour: str = "muted", turn: float = 0, bold: bool = False,
        size: float | None = None, beside: str = "", below: str = "",
    ) -> None:  # fmt: skip
        """Words at a place; `beside` and `below` add smaller ones."""
        place = (
            f'transform="translate({number(x)} {number(y)}) rotate({number(turn)})"'
            if turn
            else f'x="{number(x)}" y="{number(y)}"'
        )
        more = "".join(
            f' {key}="{value}"'
            for key, value in (("text-anchor", anchor), ("font-size", size), ("font-weight", 600 if bold else None))
            if value
        )
        small = f'<tspan font-weight="400" font-size="12" fill="{self.colour("muted")}"'
        inner = escape(plain(words))
        inner += Markup(f'{small} dx="8">{escape(plain(beside))}</tspan>') if beside else ""
        inner += Markup(f'{small} x="0" dy="14">{escape(plain(below))}</tspan>') if below else ""
        self.parts.append(f'<text {place} fill="{self.colour(colour)}"{more}>{inner}</text>')

    def line(self, x1: float, y1: float, x2: float, y2: float, colour: str = "line", **more: Any) -> None:
        """A straight line."""
        self.add("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke=colour, **more)

    def path(self, points: Iterable[tuple[float, float]], colour: str, **more: Any) -> None:
        """A line through points."""
        self.add("path", d="M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points), fill="none", stroke=colour, **more)

    def heading(self, words: str, x: float, beside: str = "") -> None:
        """The title of a file."""
        self.text(x, 24, words, colour="ink", bold=True, size=15, beside=beside)

    def legend(self, x: float, y: float, entries: Iterable[tuple[str, str, str]]) -> None:
        """Words beside their marks in one line: (words, colour, `box`, `dot`, `line` or `dashed`)."""
        for words, colour, mark in entries:
            wide = 22 if mark in ("line", "dashed") else 13
            if mark == "box":
                self.add("rect", x=x, y=y - 11, width=13, height=13, rx=2, fill=colour)
            elif mark == "dot":
                self.add("circle", cx=x + 6, cy=y - 4.5, r=5, fill=colour)
            else:
                dash = "6 4" if mark == "dashed" else None
                self.line(x, y - 4.5, x + wide, y - 4.5, colour, stroke_width=2.5, stroke_dasharray=dash)
            self.text(x + wide + 6, y, words)
            x += wide + 26 + LETTER * len(words)

    def upright(
        self, scale: Scale, values: Iterable[float], left: float, right: float, words: Callable[[float], str] = compact
    ) -> None:
        """The y axis: a line across and a number for each value."""
        for value in values:
            y = scale(value)
            self.line(left, y, right, y)
            self.text(left - 8, y + 4, words(value), anchor="end", size=12)

    def across(
        self, at: Callable[[float], float], values: Iterable[float], base: float, words: Callable[[float], str] = "{:g}".format
    ) -> None:  # fmt: skip
        """The x axis: a mark and a number for each value."""
        for value in values:
            self.line(at(value), base, at(value), base + 5, "muted")
            self.text(at(value), base + 19, words(value), anchor="middle", size=12)

    def whisker(self, x: float, low: float, high: float, colour: str, cap: float = 4.0) -> None:
        """A spread: an upright line with caps."""
        d = f"M{x:.2f} {low:.2f}V{high:.2f}M{x - cap:.2f} {high:.2f}h{2 * cap:.2f}M{x - cap:.2f} {low:.2f}h{2 * cap:.2f}"
        self.add("path", d=d, stroke=colour, fill="none")


# Lines ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curve:
    """A line: x, mean, spread over seeds (None where there is one seed); `dashed` for the second of a pair."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    spread: tuple[float | None, ...] = ()
    colour: str = ""
    dashed: bool = False

    def spreads(self) -> tuple[float | None, ...]:
        return self.spread or (None,) * len(self.y)


def lines(
    title: str, curves: Sequence[Curve], *, across: str, up: str, even: bool = False, level: tuple[float, str] | None = None,
    marked: float | None = None, at_least: float | None = None,
) -> Markup:  # fmt: skip
    """Curves over one axis, as a file; empty if there is nothing to draw.

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
        return Markup()
    ends = [y + sign * (s or 0.0) for c in curves for y, s in zip(c.y, c.spreads(), strict=True) for sign in (-1, 1)]
    ends += [level[0]] if level else []
    ends += [at_least] if at_least is not None else []
    margin = 0.08 * ((max(ends) - min(ends)) or abs(max(ends)) or 1.0)
    left, base, pad = 64, TOP + 270, 40 if even or len(places) < 3 else 12
    height = Scale(min(ends) - margin, max(ends) + margin, base, TOP)
    first, last = (0, len(places) - 1) if even else (places[0], places[-1])
    wide = Scale(first, last, left + pad, WIDTH - RIGHT - pad) if last > first else None

    def at(x: float) -> float:
        return (left + WIDTH - RIGHT) / 2 if wide is None else wide(places.index(x) if even else x)

    coloured = [(curve, curve.colour or SERIES[i % len(SERIES)]) for i, curve in enumerate(curves)]
    drawing = Drawing(WIDTH, base + 62, title)
    drawing.heading(title, left)
    named = [(curve.name, colour, "dashed" if curve.dashed else "line") for curve, colour in coloured]
    drawing.legend(left, 51, [*named, *([(level[1], "ink", "line")] if level else [])])
    drawing.upright(height, ticks(height.low, height.high), left, WIDTH - RIGHT)
    drawing.across(at, places if even or len(places) <= 12 else ticks(first, last, 8), base)
    drawing.text((left + WIDTH - RIGHT) / 2, base + 46, across, anchor="middle")
    drawing.text(18, (TOP + base) / 2, up, anchor="middle", turn=-90)
    if marked is not None and marked in places:
        drawing.line(at(marked), TOP, at(marked), base, "muted", stroke_dasharray="2 4")
    if level is not None:
        drawing.line(left, height(level[0]), WIDTH - RIGHT, height(level[0]), "ink", stroke_width=1.5)
    for i, (curve, colour) in enumerate(coloured):
        aside = 3.0 * (i - (len(curves) - 1) / 2)  # so that whiskers of one place do not cover each other
        points = [(at(x) + aside, height(y)) for x, y in zip(curve.x, curve.y, strict=True)]
        drawing.path(points, colour, stroke_width=2, stroke_dasharray="6 4" if curve.dashed else None)
        for (x, y), place, value, spread in zip(points, curve.x, curve.y, curve.spreads(), strict=True):
            if spread:
                drawing.whisker(x, height(value - spread), height(value + spread), colour)
            said = f"{curve.name}, {place:g}: {value:.2f}" + ("" if spread is None else f" ± {spread:.2f}")
            drawing.add("circle", cx=x, cy=y, r=3.5, fill=colour, tip=said)
    drawing.line(left, base, WIDTH - RIGHT, base, "muted")
    return drawing.svg()


def curve(name: str, points: Sequence[tuple[float, float]], axis: str) -> Markup:
    """A small line over time, for a page: the range on the left, the axis and its ends below."""
    width, height, left, right, top, base = 300, 150, 46, 292, 12, 126
    xs, ys = [x for x, _ in points], [y for _, y in points]
    low, high = (min(ys), max(ys)) if max(ys) > min(ys) else (ys[0] - 0.5, ys[0] + 0.5)
    at, up = Scale(min(xs), max(xs), left, right), Scale(low, high, base, top)
    drawing = Drawing(width, height, f"{name}: from {compact(ys[0])} to {compact(ys[-1])}", page="curve")
    drawing.upright(up, (high, (low + high) / 2, low), left, right)
    drawing.path([(at(x), up(y)) for x, y in points], "known", stroke_width=2, stroke_linejoin="round")
    drawing.add("circle", cx=at(xs[-1]), cy=up(ys[-1]), r=3, fill="known")
    drawing.text(left, height - 6, f"{axis} {compact(xs[0])}")
    drawing.text(right, height - 6, compact(xs[-1]), anchor="end")
    return drawing.svg()


# Bars and histograms ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bar:
    """Its height, its spread over seeds, and a number beside it that is marked by a black line."""

    value: float
    spread: float | None = None
    mark: float | None = None


def bars(
    title: str, groups: Sequence[tuple[str, dict[str, Bar]]], series: dict[str, str], *, beside: str = "", mark: str = ""
) -> Markup:  # fmt: skip
    """Bars of percentages in groups, as a file; empty if there is none.

    Parameters
    ----------
    groups : name of each group and its bars by the name of their series.
    series : name and colour of the series, in order.
    beside : smaller words beside the title.
    mark : what the marks of the bars are.
    """
    every = [bar for _, found in groups for bar in found.values()]
    if not every:
        return Markup()
    highest = max(max(bar.value + (bar.spread or 0), bar.mark or 0) for bar in every)
    top = min(100, 10 * math.ceil(highest / 10 + 0.05)) if highest > 0 else 10
    left, right, base = 58, WIDTH - 16, TOP + 260
    up, slot = Scale(0, top, base, TOP), (right - left) / len(groups)
    wide = min(46.0, 0.8 * slot / len(series))
    middles = [left + (place + 0.5) * slot for place in range(len(groups))]
    turned = any((LETTER + 0.1) * len(name) > slot for name, _ in groups)
    # Turned names end under their group: as much of each as there is room for to the left.
    names = [cut(name, min(36, int(x / 5.8))) if turned else name for (name, _), x in zip(groups, middles, strict=True)]
    drawing = Drawing(WIDTH, base + 36 + (round(3.2 * max(map(len, names))) if turned else 0), title)
    drawing.heading(title, left, beside)
    marks = [(mark, "ink", "line")] if any(bar.mark is not None for bar in every) else []
    drawing.legend(left, 51, [*((name, colour, "box") for name, colour in series.items()), *marks])
    drawing.upright(up, range(0, int(top) + 1, 10 if top <= 60 else 20), left, right, "{:g}".format)
    drawing.text(18, base - 130, "percent", anchor="middle", turn=-90)
    for (name, found), shown, middle in zip(groups, names, middles, strict=True):
        for place, (kind, colour) in enumerate(series.items()):
            if kind in found:
                x = middle + (place - len(series) / 2) * wide
                _bar(drawing, found[kind], x, 0.88 * wide, up, colour, f"{name}, {kind}", mark)
        if turned:
            drawing.text(middle + 4, base + 16, shown, anchor="end", turn=-28, size=12, colour="ink")
        else:
            drawing.text(middle, base + 20, shown, anchor="middle", colour="ink")
    drawing.line(left, base, right, base, "muted")
    return drawing.svg()


def _bar(drawing: Drawing, bar: Bar, x: float, width: float, up: Scale, colour: str, name: str, mark: str) -> None:
    """A bar with its whisker and its mark."""
    said = f"{name}: {bar.value:.1f}" + ("" if bar.spread is None else f" ± {bar.spread:.1f}")
    said += "" if bar.mark is None else f" ({mark} {bar.mark:.1f})"
    y = up(max(bar.value, 0))
    drawing.add("rect", x=x, y=y, width=width, height=up.begin - y, fill=colour, tip=said)
    if bar.spread:
        low, high = up(max(bar.value - bar.spread, 0)), up(bar.value + bar.spread)
        drawing.whisker(x + width / 2, low, high, "ink", min(4.0, width / 3))
    if bar.mark is not None:
        drawing.line(x - 1, up(bar.mark), x + width + 1, up(bar.mark), "#000000", stroke_width=2.5)


def cut(text: str, letters: int) -> str:
    """The beginning of a text that is too long."""
    return text if len(text) <= letters else text[: max(letters - 1, 0)] + "…"


def ranking(title: str, rows: Sequence[tuple[str, int]]) -> Markup:
    """Names and sizes as bars that lie, in the order given, as a file."""
    named = len(rows) <= 60  # names need room; beyond it is the shape that matters
    line, left, top = (18, 190, 34) if named else (4, 20, 34)
    drawing = Drawing(720, top + line * len(rows) + 12, title)
    drawing.text(20, 20, title, colour="ink", size=14)
    scale = Scale(0, max((size for _, size in rows), default=1), left, 650)
    for i, (name, size) in enumerate(rows):
        y, end = top + i * line, scale(size)
        wide, high = max(1.0, end - left), line - (4 if named else 1)
        drawing.add("rect", x=left, y=y, width=wide, height=high, fill="known", tip=f"{name}: {size:,}")
        if named:
            drawing.text(left - 8, y + 11, cut(name, 26), anchor="end", colour="ink", size=12)
            drawing.text(end + 6, y + 11, f"{size:,}", size=12)
    return drawing.svg()


def histogram(
    names: Sequence[str], labelled: np.ndarray, unlabelled: np.ndarray, n_known: int, *, about: str = "", page: bool = False
) -> Markup:  # fmt: skip
    """Images of each class: labelled ones above, unlabelled ones below on the same axis, so that two priors are two slopes.

    Parameters
    ----------
    names, labelled, unlabelled : one entry per class, known classes first.
    about : more about the order of the classes.
    page : part of a page, rather than a file.
    """
    panel, gap, left, right, top = 138, 34, 74, WIDTH - 20, 62
    n, bottom = len(names), top + 2 * panel + gap
    slot = (right - left) / max(n, 1)
    totals = {
        "known": ("labelled", int(labelled.sum())),
        "known-pale": ("unlabelled, known classes", int(unlabelled[:n_known].sum())),
        "novel": ("unlabelled, novel classes", int(unlabelled[n_known:].sum())),
    }
    title = "Class sizes: " + "; ".join(f"{text} {total:,} images" for text, total in totals.values())
    drawing = Drawing(WIDTH, 424, title, page="sizes" if page else "")
    drawing.legend(left, 25, [(f"{text} · {total:,}", colour, "box") for colour, (text, total) in totals.items()])
    border = left + n_known * slot
    for classes, word, start, end in ((n_known, "known", left, border), (n - n_known, "novel", border, right)):
        if classes:
            words = count(classes, f"{word} class", f"{word} classes")
            drawing.text((start + end) / 2, top - 10, words, anchor="middle")
    if 0 < n_known < n:
        drawing.line(border, top - 22, border, bottom, "muted", stroke_dasharray="4 4")
    space = min(0.22 * slot, 6) if slot > 3 else -0.4  # many classes: the bars overlap and form one shape
    scale, values = _size_axis(np.concatenate([labelled, unlabelled]))
    for base, word, sizes in ((top + panel, "labelled", labelled), (bottom, "unlabelled", unlabelled)):
        up = Scale(scale.low, scale.high, base, base - panel, scale.log)
        per_class = "per class, log scale" if up.log else "per class"
        drawing.text(20, base - panel / 2, f"{word} images", anchor="middle", turn=-90, below=per_class)
        drawing.upright(up, values, left, right, "{:,.0f}".format)
        for i in np.flatnonzero(sizes).tolist():
            y, x = up(int(sizes[i])), left + i * slot + space / 2
            colour = "known" if word == "labelled" else "known-pale" if i < n_known else "novel"
            tip = f"{names[i]}: {count(int(sizes[i]), word + ' image')}"
            drawing.add("rect", x=x, y=y, width=slot - space, height=base - y, fill=colour, tip=tip)
        for start, end in ((0, n_known), (n_known, n)):
            if start < end and not sizes[start:end].any():
                middle = left + (start + end) / 2 * slot
                drawing.text(middle, base - panel / 2, f"no {word} images", anchor="middle")
        drawing.line(left, base, right, base, "muted")
    longest = int(slot / LETTER)  # letters that fit under one bar
    named = 0 < n <= 20 and longest >= 1 and (longest >= 5 or max(map(len, names)) <= longest)
    if named:
        for i, name in enumerate(names):
            drawing.text(left + (i + 0.5) * slot, bottom + 19, cut(plain(name), longest), anchor="middle", size=12)
    else:
        drawing.across(lambda i: left + (i + 0.5) * slot, ticks(0, max(n - 1, 0), 10, whole=True), bottom)
    words = ("class" if named else "class position: known classes first, then novel ones") + about
    drawing.text((left + right) / 2, bottom + 42, words, anchor="middle")
    return drawing.svg()


def _size_axis(sizes: np.ndarray) -> tuple[Scale, list[float]]:
    """The scale of class sizes, logarithmic where they differ much, and its ticks."""
    present = sizes[sizes > 0]
    top = int(present.max(initial=1))
    if len(present) and top / int(present.min()) > LOG_FROM:
        powers = [10.0**k for k in range(math.floor(math.log10(top)) + 1)]
        share = top / powers[-1]
        powers += [] if share <= 2 else [top] if share < 5 else [5 * powers[-1]]
        return Scale(0.7, top * 1.08, 0, 1, log=True), powers  # from 0.7: a class of one image keeps a visible bar
    return Scale(0, top * 1.05, 0, 1), ticks(0, top, 3, whole=True)


# Heat maps -------------------------------------------------------------------------------------------------------------


def heat_map(counts: np.ndarray, names: Sequence[str], known: set[str]) -> Markup:
    """Counts (C, C+1) for a page: a true class per line, the class it was given per column, the last one unmatched."""
    rows, columns = counts.shape
    labelled, counted = rows <= LABELLED_CLASSES, rows <= COUNTED_CLASSES
    cell = 36 if counted else 20 if labelled else max(3, 640 // rows)
    heads = [*names, *["unmatched"] * (columns - rows)]
    shown = [cut(name, 14) for name in heads]
    left, top = (26 + (14 + int(LETTER * max(map(len, some))) if labelled else 0) for some in (shown[:rows], shown))
    width, height = left + columns * cell + 4, top + rows * cell + 4
    correct = 100 * np.trace(counts[:, :rows]) / max(counts.sum(), 1)
    title = f"Confusion of true and assigned classes; {correct:.0f} % lie on the diagonal"
    drawing = Drawing(width, height, title, page="confusion")
    drawing.add("rect", x=left, y=top, width=columns * cell, height=rows * cell, fill="none", stroke="line")
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    size = cell - (1 if cell > 8 else 0)
    for i, j in zip(*(axis.tolist() for axis in np.nonzero(counts)), strict=True):
        x, y, share = left + j * cell, top + i * cell, float(shares[i, j])
        tip = f"{names[i]} → {heads[j]}: {counts[i, j]:,} ({100 * share:.0f} %)" if rows <= TITLED_CLASSES else ""
        colour = "known" if i == j else "novel"
        drawing.add("rect", x=x, y=y, width=size, height=size, fill=colour, opacity=0.08 + 0.92 * share, tip=tip)
        if counted:
            strong = "on" if share > 0.85 else "mid" if share > 0.6 else "ink"
            drawing.text(x + size / 2, y + size / 2 + 4, f"{counts[i, j]:,}", anchor="middle", colour=strong)
    if labelled:
        for i, name in enumerate(shown):
            colour = "muted" if i >= rows else "known" if names[i] in known else "novel"
            drawing.text(left + (i + 0.5) * cell + 4, top - 10, name, turn=-90, colour=colour)
            if i < rows:
                drawing.text(left - 10, top + (i + 0.5) * cell + 4, name, anchor="end", colour=colour)
    drawing.text(left + columns * cell / 2, 14, "assigned class", anchor="middle")
    drawing.text(14, top + rows * cell / 2, "true class", anchor="middle", turn=-90)
    return drawing.svg()


# Scatter ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cloud:
    """Points (n, 2) of one panel, their classes (n,), and which classes are known (below `n_old`)."""

    name: str
    points: np.ndarray
    truth: np.ndarray
    n_old: int


def scatter(title: str, rows: Sequence[tuple[str, Sequence[Cloud]]], note: str = "") -> Markup:
    """Panels in rows, known classes in blues and novel ones in oranges, as a file; empty if there is nothing to draw."""
    rows = [(name, clouds) for name, clouds in rows if clouds]
    if not rows:
        return Markup()
    across = max(len(clouds) for _, clouds in rows)
    gap, left = 14, 34
    side = (WIDTH - left - 16 - (across - 1) * gap) / across
    drawing = Drawing(WIDTH, round(64 + len(rows) * (side + 46)), title)
    drawing.heading(title, left)
    drawing.legend(left, 51, [("known classes", "known", "dot"), ("novel classes", "novel", "dot")])
    drawing.text(left + 290, 51, f"one shade for each class{note}")
    for line, (name, clouds) in enumerate(rows):
        y = 86 + line * (side + 46)
        drawing.text(22, y + side / 2, name, anchor="middle", turn=-90)
        for place, cloud in enumerate(clouds):
            _cloud(drawing, cloud, left + place * (side + gap), y, side)
    return drawing.svg()


def _cloud(drawing: Drawing, cloud: Cloud, x: float, y: float, side: float) -> None:
    """One panel of a scatter."""
    low, high = cloud.points.min(0), cloud.points.max(0)
    scale = (side - 16) / max(float((high - low).max()), 1e-9)
    placed = (cloud.points - (low + high) / 2) * scale + side / 2
    drawing.text(x + side / 2, y - 7, cloud.name, anchor="middle", colour="ink", bold=True)
    drawing.add("rect", x=x, y=y, width=side, height=side, fill="none", stroke="line")
    used = {True: 0, False: 0}
    for c in np.unique(cloud.truth):
        known = bool(c < cloud.n_old)
        shade = SHADES[known][used[known] % len(SHADES[known])]
        used[known] += 1
        # Round caps make dots of empty strokes: one path for each class.
        dots = "".join(f"M{x + px:.1f} {y + py:.1f}h0" for px, py in placed[cloud.truth == c])
        drawing.add("path", d=dots, stroke=shade, stroke_width=4, stroke_linecap="round", opacity=0.8)


# Reliability -----------------------------------------------------------------------------------------------------------


def reliability(kind: str, bins: Sequence[tuple[float, float, float]], noun: str) -> Markup:
    """Bins (mean confidence, share right, rows) as dots beside the diagonal, for a page."""
    left, right, top, base = 46, 290, 30, 224
    at, up, most = Scale(0, 1, left, right), Scale(0, 1, base, top), max(n for *_, n in bins)
    error = calibration_error(bins)
    title = f"Reliability of answers that name a {kind} class: off by {error:.0f} points on average"
    drawing = Drawing(300, 258, title, page="reliability")
    for value in (0.0, 0.5, 1.0):
        drawing.line(left, up(value), right, up(value))
        drawing.text(left - 8, up(value) + 4, f"{100 * value:.0f}", anchor="end")
        drawing.text(at(value), base + 16, f"{100 * value:.0f}", anchor="middle")
    drawing.line(left, base, right, top, "muted", stroke_dasharray="3 4")
    for x, y, n in bins:
        tip = f"confidence {100 * x:.0f} %, right {100 * y:.0f} %, {count(int(n), noun)}"
        radius = 2.5 + 7 * (n / most) ** 0.5
        drawing.add("circle", cx=at(x), cy=up(y), r=radius, fill=kind, fill_opacity=0.75, tip=tip)
    drawing.text((left + right) / 2, 256, "confidence, %", anchor="middle")
    drawing.text(4, 12, "right, %")
    return drawing.svg()


def calibration_error(bins: Sequence[tuple[float, float, float]]) -> float:
    """How far confidence and share right are apart in the mean over rows, in points."""
    return 100 * sum(n * abs(x - y) for x, y, n in bins) / sum(n for *_, n in bins)


# Intervals and the searches behind them --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Interval:
    """A number with its bounds; `search` holds what was tried for it, by the value on the axis."""

    name: str
    best: int
    low: int
    high: int
    used: bool = False
    search: Mapping[int, float] | None = None
    marked: float = 0  # the value on the axis that was chosen
    across: str = ""  # what the axis is
    up: str = ""  # what was measured
    banded: bool = True  # the axis counts what the interval counts, which is drawn on it


def intervals(title: str, note: str, found: Sequence[Interval], level: tuple[int, str] | None) -> Markup:
    """All numbers on one axis, then each search with its choice, as a file.

    Parameters
    ----------
    title, note : above the picture.
    level : a number to compare with and what it is.
    """
    searches = [one for one in found if one.search is not None and len(one.search) > 1]
    side, gap, head, panel = 20, 36, 50, 172
    line, left, right, top = 34, side + 130, WIDTH - side - 60, 84
    base = top + line * len(found)
    start = base + 42
    height = start + math.ceil(len(searches) / 2) * (head + panel + gap)
    said = "; ".join(f"{one.name} {one.best} ({one.low} to {one.high})" for one in found)
    drawing = Drawing(WIDTH, height, f"{title.split(':')[0]}: {said}")
    drawing.text(side, 26, title, colour="ink", bold=True, size=16)
    drawing.text(side, 46, note)
    reach = max([level[0] if level else 0, *(one.high for one in found)])
    values = ticks(0, reach * 1.05, 8, whole=True)
    at = Scale(0, max(values[-1], reach), left, right)
    for value in values:
        drawing.line(at(value), top, at(value), base)
        drawing.text(at(value), base + 16, f"{value:g}", anchor="middle", size=12)
    if level:
        drawing.line(at(level[0]), top - 6, at(level[0]), base, "known", stroke_dasharray="4 4")
        drawing.text(at(level[0]), top - 10, level[1], anchor="middle", colour="known")
    for place, one in enumerate(found):
        y, colour = top + line * (place + 0.5), "novel" if one.used else "muted"
        drawing.text(side, y + 4, f"{one.name}{' (used)' if one.used else ''}", colour="ink", bold=one.used)
        tip = f"{one.name}: {one.best}, between {one.low} and {one.high}"
        thick = {"stroke_width": 4, "stroke_linecap": "round", "stroke_opacity": 0.35}
        drawing.line(at(one.low), y, at(one.high), y, colour, tip=tip, **thick)
        drawing.add("circle", cx=at(one.best), cy=y, r=6, fill=colour, tip=tip)
        drawing.text(at(max(one.high, one.best)) + 12, y + 4, f"{one.best:,}", colour="ink", bold=one.used)
    width = (WIDTH - 2 * side - gap) / 2
    for place, one in enumerate(searches):
        x, y = side + (place % 2) * (width + gap), start + (place // 2) * (head + panel + gap)
        _search(drawing, one, x, x + width, y, y + head, y + head + panel - 36)
    return drawing.svg()


def _search(
    drawing: Drawing, one: Interval, left: float, right: float, title: float, top: float, base: float
) -> None:  # fmt: skip
    """A line through what was tried; the choice; the interval as a band where the axis counts the same."""
    assert one.search is not None
    xs, ys = list(one.search), list(one.search.values())
    reach = [*xs, one.low, one.high] if one.banded else [*xs, one.marked]
    inner, low, high = left + 46, min(ys), max(ys)
    spare = 0.08 * ((high - low) or 1.0)
    at, up = Scale(min(reach), max(reach), inner, right - 6), Scale(low - spare, high + spare, base, top)
    drawing.text(
        left, title + 14, f"{one.name}: {one.best:,}", colour="ink", bold=True, beside=f"({one.low:,} to {one.high:,})"
    )
    drawing.text(left, title + 33, one.up, size=12)
    if one.banded:
        begin, end, tip = at(one.low), at(one.high), f"interval: {one.low} to {one.high}"
        wide = max(2.0, end - begin)
        drawing.add("rect", x=begin, y=top, width=wide, height=base - top, fill="novel", fill_opacity=0.16, tip=tip)
    drawing.upright(up, (low, (low + high) / 2, high), inner, right)
    drawing.across(at, ticks(min(reach), max(reach), 6, whole=True), base)
    drawing.line(inner, base, right, base, "muted")
    points = [(at(x), up(y)) for x, y in zip(xs, ys, strict=True)]
    drawing.path(points, "known", stroke_width=1.8, stroke_linejoin="round")
    if len(points) <= 80:
        for (x, y), key, value in zip(points, xs, ys, strict=True):
            drawing.add("circle", cx=x, cy=y, r=2.6, fill="known", tip=f"{key:g}: {compact(value)}")
    chosen = at(one.marked)
    drawing.line(chosen, top - 4, chosen, base, "novel", stroke_width=1.8)
    beyond = chosen > (inner + right) / 2
    drawing.text(
        chosen + (-6 if beyond else 6), top + 8, f"{one.marked:,g}", anchor="end" if beyond else "start", colour="novel"
    )
    drawing.text((inner + right) / 2, base + 36, one.across, anchor="middle", size=12)
