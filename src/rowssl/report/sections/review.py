"""Rows a person should look at, most doubtful first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from markupsafe import Markup

from rowssl.report.templating import draw
from rowssl.report.thumbnails import REVIEW_ROWS, Pictures

if TYPE_CHECKING:
    from rowssl.report.page import ReportData

TITLE, LEAD, ORDER = "To review", "Most doubtful first: a look at these helps most.", 30
OPEN = 12  # shown at once, the others behind one click


def render(data: ReportData, pictures: Pictures) -> Markup:
    """The first of them; the page says how many there are."""
    rows = data.review[:REVIEW_ROWS]
    return draw("sections/review.html", data=data, pictures=pictures, rows=rows, open=OPEN) if rows else Markup()
