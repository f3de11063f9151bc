"""Files that could not be read, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from markupsafe import Markup

from rowssl.report.templating import draw

if TYPE_CHECKING:
    from rowssl.report.page import ReportData
    from rowssl.report.thumbnails import Pictures

TITLE, LEAD, ORDER = "Unreadable files", "Left out of everything above.", 90
OPEN = 10


def render(data: ReportData, pictures: Pictures) -> Markup:
    """All of them, behind one click where they are many."""
    return draw("sections/unreadable.html", skipped=data.skipped, open=OPEN) if data.skipped else Markup()
