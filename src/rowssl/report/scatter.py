"""The map of all rows: its frame as HTML, and its points as the small numbers from which `page.js` draws it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rowssl.report.classes import by_size, noun
from rowssl.report.markup import compact, count, finite
from rowssl.report.thumbnails import GRID, Pictures
from rowssl.runs.layout import drawn

if TYPE_CHECKING:
    from rowssl.report.page import ReportData

UNITS = 10_000  # positions are whole numbers from 0 to this along the longer side


def map_section(data: ReportData, pictures: Pictures) -> str:
    """The frame of the map; the script draws it."""
    if data.positions is None or not len(data.row_names):
        return ""
    modes = [("class", "Class"), ("known", "Known or novel"), ("confidence", "Confidence")]
    modes += [("tailedness", "Tailedness")] if data.row_tailedness is not None else []
    radios = "".join(
        f'<label><input type="radio" name="colour" value="{key}"{" checked" if key == "class" else ""}>'
        f"<span>{title}</span></label>"
        for key, title in modes
    )
    switch = '<label class="switch"><input type="checkbox" id="pictures"> Pictures</label>' if pictures.tile else ""
    points = len(drawn(len(data.row_names)))
    chosen = f"{points:,} of " if points < len(data.row_names) else ""
    label = f"Map of {chosen}{count(len(data.row_names), noun(pictures))}; arrow keys move it, plus and minus zoom."
    return (
        f'<div class="toolbar js" hidden><fieldset class="segments"><legend>Colour by</legend>{radios}</fieldset>'
        f'<div class="tools">{switch}<span class="zoom">'
        '<button type="button" data-zoom="0.625" aria-label="Zoom out">−</button>'
        '<button type="button" data-zoom="1.6" aria-label="Zoom in">+</button>'
        '<button type="button" data-zoom="0">Reset</button></span></div></div>'
        f'<div class="map js" hidden><canvas id="map-canvas" tabindex="0" role="img" aria-label="{label}"></canvas>'
        '<div id="tip" role="status" hidden></div></div><div id="map-legend" class="js" hidden></div>'
        "<noscript><p>The map needs JavaScript; everything else on this page works without it.</p></noscript>"
    )


def map_data(data: ReportData, pictures: Pictures) -> dict[str, Any]:
    """What the script needs to draw the map; nothing when there is no map."""
    if data.positions is None or not len(data.row_names):
        return {}
    rows = drawn(len(data.row_names))
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
        "order": [position for position, _ in by_size(data)],
    }


def scale(values: list[float | None]) -> tuple[list[int | None], list[str]]:
    """Numbers as whole percent between their least and largest, and these two for the legend."""
    present = [value for value in values if value is not None]
    low, high = (min(present), max(present)) if present else (0.0, 1.0)
    width = (high - low) or 1.0
    return [None if v is None else round(100 * (v - low) / width) for v in values], [compact(low), compact(high)]
