"""One small chart for each number that was logged at least twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from rowssl.report import charts
from rowssl.report.format import finite
from rowssl.report.templating import draw

if TYPE_CHECKING:
    from rowssl.report.page import ReportData
    from rowssl.report.thumbnails import Pictures

TITLE, LEAD, ORDER = "Training", "", 60
AXES = ("epoch", "step")
NOT_A_CURVE = {"epoch", "step", "seconds", "time", "eta", "elapsed"}
CURVES = 24


def render(data: ReportData, pictures: Pictures) -> Markup:
    """Curves over the epochs, or over the rows of the log where it names none."""
    table = [flatten(row) for row in data.curves or ()]
    axis = next((key for key in AXES if any(key in row for row in table)), "")
    keys = [key for key in dict.fromkeys(key for row in table for key in row) if key not in NOT_A_CURVE]
    drawn = []
    for key in keys:
        points = [(finite(row.get(axis, i + 1)), finite(row.get(key))) for i, row in enumerate(table)]
        known = [(x, y) for x, y in points if x is not None and y is not None]
        if len(known) > 1:
            drawn.append((key, known[-1][1], charts.curve(key, known, axis or "row")))
    return draw("sections/training.html", curves=drawn[:CURVES]) if drawn else Markup()


def flatten(row: dict[str, Any]) -> dict[str, Any]:
    """One level of nesting becomes `outer · inner`."""
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, dict):
            flat.update({f"{key} · {inner}": deeper for inner, deeper in value.items()})
        else:
            flat[str(key)] = value
    return flat
