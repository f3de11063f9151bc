"""How far the answer can be trusted: what was tried, the accuracy to expect, and how well confidence is calibrated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from rowssl.report import charts
from rowssl.report.format import finite
from rowssl.report.templating import draw

if TYPE_CHECKING:
    from rowssl.report.page import ReportData
    from rowssl.report.thumbnails import Pictures

TITLE, LEAD, ORDER = "How sure", "", 50


def render(data: ReportData, pictures: Pictures) -> Markup:
    """What to expect, a table of candidates, a reliability plot for each kind of answer: what there is of them."""
    trust = data.stated
    listed, kinds = trust.get("tried"), trust.get("reliability")
    tried = [candidate(one) for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    plots = list(reliability(kinds if isinstance(kinds, dict) else {}, pictures.noun))
    if "tried" not in trust and not plots:  # a method that does not judge itself
        return Markup()
    return draw(
        "sections/trust.html", judged="tried" in trust, expected=data.expected, tried=tried, plots=plots, noun=pictures.noun,
        tuned=any("tuned" in one["name"] for one in tried),
    )  # fmt: skip


def candidate(one: dict[str, Any]) -> dict[str, Any]:
    """What the table says of a candidate."""
    return {
        "name": str(one.get("candidate", "")).replace("k-means", "k\u2011means"),
        "chosen": bool(one.get("chosen")),
        "right": one.get("hidden_classes"),
        "behind": one.get("behind_best"),
        "error": one.get("standard_error"),
    }


def reliability(kinds: dict[str, Any], noun: str) -> list[tuple[str, float, Markup]]:
    """Kind of answer, points between confidence and share right, and the plot of confidence against the share right."""
    found = []
    for kind in ("known", "novel"):
        bins = usable(kinds.get(kind))
        if bins:
            found.append((kind, charts.calibration_error(bins), charts.reliability(kind, bins, noun)))
    return found


def usable(bins: Any) -> list[tuple[float, float, float]]:
    """Bins of mean confidence, share right and rows; what is none is left out."""
    rows = [one for one in bins if isinstance(one, list) and len(one) == 3] if isinstance(bins, list) else []
    numbers = [tuple(map(finite, one)) for one in rows]
    return [(x, y, n) for x, y, n in numbers if x is not None and y is not None and n is not None and n > 0]
