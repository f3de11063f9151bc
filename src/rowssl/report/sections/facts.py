"""What was run: method, encoder, data, versions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from markupsafe import Markup

from rowssl.report.templating import draw

if TYPE_CHECKING:
    from rowssl.report.page import ReportData
    from rowssl.report.thumbnails import Pictures

TITLE, LEAD, ORDER = "What was run", "", 80


def render(data: ReportData, pictures: Pictures) -> Markup:
    """Names and values."""
    return draw("sections/facts.html", facts=data.facts) if data.facts else Markup()
