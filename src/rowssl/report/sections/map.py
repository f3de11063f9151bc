"""The map of all rows: its frame, and its points as the small numbers from which `page.js` draws it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from rowssl.report import charts
from rowssl.report.format import compact, count, finite
from rowssl.report.templating import draw
from rowssl.report.thumbnails import GRID, Pictures
from rowssl.runs import layout

if TYPE_CHECKING:
    from rowssl.report.page import ReportData

TITLE, LEAD, ORDER = "Map", "Neighbours on the map look alike to the model.", 20
UNITS = 10_000  # positions are whole numbers from 0 to this along the longer side


def render(data: ReportData, pictures: Pictures) -> Markup:
    """The frame and the points; nothing without positions."""
    if data.positions is None or not len(data.row_names):
        return Markup()
    modes = [("class", "Class"), ("known", "Known or novel"), ("confidence", "Confidence")]
    modes += [("tailedness", "Tailedness")] if data.row_tailedness is not None else []
    rows = len(data.row_names)
    chosen = f"{layout.MAP_ROWS:,} of " if rows > layout.MAP_ROWS else ""
    label = f"Map of {chosen}{count(rows, pictures.noun)}; arrow keys move it, plus and minus zoom."
    return draw("sections/map.html", modes=modes, pictures=pictures, label=label, points=points(data, pictures))


def points(data: ReportData, pictures: Pictures) -> dict[str, Any]:
    """What the script needs to draw the map."""
    rows = layout.drawn(len(data.row_names))
    place = np.nan_to_num(np.asarray(data.positions, dtype=np.float64)[rows, :2], posinf=0, neginf=0)
    place -= place.min(axis=0)
    place = np.rint(place * (UNITS / max(float(place.max()), 1e-12))).astype(int)
    tail = data.row_tailedness
    tailedness, ends = scale([] if tail is None else [finite(tail[row]) for row in rows])
    confidence = [finite(data.row_confidence[row]) for row in rows]
    return {
        "row": rows.tolist() if len(rows) < len(data.row_names) else [],  # empty: point i is row i
        "x": place[:, 0].tolist(),
        "y": place[:, 1].tolist(),
        "name": [str(data.row_names[row]) for row in rows],
        "class": [int(data.row_class[row]) for row in rows],
        "labelled": [int(data.row_known_label[row]) for row in rows],
        "confidence": [None if value is None else round(100 * value) for value in confidence],
        "tailedness": tailedness,
        "ends": ends,
        "full": sorted(pictures.full),
        "tile": [pictures.tile.get(row, -1) for row in rows.tolist()] if pictures.tile else [],
        "grid": GRID,
        "classes": [{"name": card.name, "known": bool(card.known)} for card in data.classes],
        "order": [position for position, _ in data.by_size()],
        "palette": charts.CLASSES,
        "ramp": charts.RAMP,
        "none": charts.NO_CLASS,
    }


def scale(values: list[float | None]) -> tuple[list[int | None], list[str]]:
    """Numbers as whole percent between their least and largest, and these two for the legend."""
    present = [value for value in values if value is not None]
    low, high = (min(present), max(present)) if present else (0.0, 1.0)
    width = (high - low) or 1.0
    return [None if v is None else round(100 * (v - low) / width) for v in values], [compact(low), compact(high)]
