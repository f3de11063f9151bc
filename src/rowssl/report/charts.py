"""Charts as inline SVG, coloured by the page's own style so that they follow light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rowssl.report.markup import compact, escape, finite

CURVE_AXES = ("epoch", "step")
NOT_A_CURVE = {"epoch", "step", "seconds", "time", "eta", "elapsed"}
CURVES = 24
LABELLED_CLASSES = 40  # axis labels are readable up to here
COUNTED_CLASSES = 15  # and counts inside the cells up to here
TITLED_CLASSES = 120  # and hover titles are worth their bytes up to here


def flatten(row: dict[str, Any]) -> dict[str, Any]:
    """One level of nesting becomes `outer · inner`."""
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, dict):
            flat.update({f"{key} · {inner}": deeper for inner, deeper in value.items()})
        else:
            flat[str(key)] = value
    return flat


def training_curves(rows: Sequence[dict[str, Any]] | None) -> str:
    """One small chart for each number that was logged at least twice."""
    table = [flatten(row) for row in rows or ()]
    axis = next((key for key in CURVE_AXES if any(key in row for row in table)), "")
    keys = [key for key in dict.fromkeys(key for row in table for key in row) if key not in NOT_A_CURVE]
    charts = []
    for key in keys:
        points = [(finite(row.get(axis, i + 1)), finite(row.get(key))) for i, row in enumerate(table)]
        known = [(x, y) for x, y in points if x is not None and y is not None]
        if len(known) > 1:
            charts.append(curve(key, known, axis or "row"))
    return f'<div class="curves">{"".join(charts[:CURVES])}</div>' if charts else ""


def curve(name: str, points: list[tuple[float, float]], axis: str) -> str:
    """A line over time: title and last value above, the range on the left."""
    width, height, left, top, bottom = 300, 150, 46, 12, 24
    xs, ys = [p[0] for p in points], [p[1] for p in points]
    low, high = min(ys), max(ys)
    if high == low:
        low, high = low - 0.5, high + 0.5
    span = (max(xs) - min(xs)) or 1.0

    def at(x: float, y: float) -> tuple[float, float]:
        across = left + (x - min(xs)) / span * (width - left - 8)
        return across, top + (high - y) / (high - low) * (height - top - bottom)

    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in (at(*p) for p in points))
    end_x, end_y = at(*points[-1])
    levels = [(high, top), ((low + high) / 2, (top + height - bottom) / 2), (low, height - bottom)]
    grid = "".join(
        f'<path class="grid" d="M{left} {y}H{width - 8}"/><text x="{left - 8}" y="{y + 4}" text-anchor="end">'
        f"{compact(value)}</text>"
        for value, y in levels
    )
    title = escape(name)
    return (
        f'<figure class="chart"><figcaption><b>{title}</b><span>{compact(ys[-1])}</span></figcaption>'
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{title}: from {compact(ys[0])} to '
        f'{compact(ys[-1])}">{grid}<path class="line" d="{path}"/><circle cx="{end_x:.1f}" cy="{end_y:.1f}" r="3"/>'
        f'<text x="{left}" y="{height - 6}">{escape(axis)} {compact(xs[0])}</text>'
        f'<text x="{width - 8}" y="{height - 6}" text-anchor="end">{compact(xs[-1])}</text></svg></figure>'
    )


def confusion_map(counts: np.ndarray, names: Sequence[str], known: set[str]) -> str:
    """Heat-map of counts (C, C+1): a true class per line, the class it was given per column, the last one unmatched."""
    lines, columns = counts.shape
    labelled, counted = lines <= LABELLED_CLASSES, lines <= COUNTED_CLASSES
    cell = 36 if counted else 20 if labelled else max(3, 640 // lines)
    heads = [*names, *["unmatched"] * (columns - lines)]
    cut = [name if len(name) <= 14 else name[:13] + "…" for name in heads]
    margin = 14 + (7 * max((len(name) for name in cut), default=0) if labelled else 0)
    top = 26 + (margin if labelled else 0)
    left = 26 + (margin if labelled else 0)
    width, height = left + columns * cell + 4, top + lines * cell + 4
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    parts = []
    for i, j in zip(*np.nonzero(counts), strict=True):
        x, y, share = left + j * cell, top + i * cell, shares[i, j]
        text = f"{names[i]} → {heads[j]}: {counts[i, j]:,} ({100 * share:.0f} %)"
        title = f"<title>{escape(text)}</title>" if lines <= TITLED_CLASSES else ""
        size = cell - (1 if cell > 8 else 0)
        kind = "hit" if i == j else "miss"
        parts.append(
            f'<rect class="{kind}" x="{x}" y="{y}" width="{size}" height="{size}" opacity="{0.08 + 0.92 * share:.2f}">'
            f"{title}</rect>"
        )
        if counted:
            strong = ' class="on"' if share > 0.85 else ' class="mid"' if share > 0.6 else ""
            parts.append(
                f'<text{strong} x="{x + size / 2}" y="{y + size / 2 + 4}" text-anchor="middle" '
                f'pointer-events="none">{counts[i, j]:,}</text>'
            )
    if labelled:
        for i, name in enumerate(cut[:lines]):
            kind = "known" if names[i] in known else "novel"
            y = top + i * cell + cell / 2 + 4
            parts.append(f'<text class="{kind}" x="{left - 10}" y="{y}" text-anchor="end">{escape(name)}</text>')
        for j, name in enumerate(cut):
            kind = "" if j >= lines else "known" if names[j] in known else "novel"
            x, y = left + j * cell + cell / 2 + 4, top - 10
            parts.append(f'<text class="{kind}" transform="translate({x} {y}) rotate(-90)">{escape(name)}</text>')
    middle_x, middle_y = left + columns * cell / 2, top + lines * cell / 2
    parts.append(f'<text class="axis" x="{middle_x}" y="14" text-anchor="middle">assigned class</text>')
    turned = f'transform="translate(14 {middle_y}) rotate(-90)"'
    parts.append(f'<text class="axis" {turned} text-anchor="middle">true class</text>')
    frame = f'<rect class="frame" x="{left}" y="{top}" width="{columns * cell}" height="{lines * cell}"/>'
    correct = 100 * np.trace(counts[:, :lines]) / max(counts.sum(), 1)
    return (
        f'<div class="scroll"><svg class="confusion" viewBox="0 0 {width} {height}" style="width:{width}px" role="img" '
        f'aria-label="Confusion of true and assigned classes; {correct:.0f} % lie on the diagonal">'
        f"{frame}{''.join(parts)}</svg></div>"
    )
