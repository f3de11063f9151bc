"""True class sizes, where the truth is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from markupsafe import Markup

from rowssl.report.profiles import size_picture

if TYPE_CHECKING:
    from rowssl.report.page import ReportData
    from rowssl.report.thumbnails import Pictures

TITLE, LEAD, ORDER = "Class sizes", "", 70


def render(data: ReportData, pictures: Pictures) -> Markup:
    """Labelled and unlabelled training images of each true class."""
    if data.sizes is None:
        return Markup()
    return Markup('<div class="scroll profile">{}</div>').format(size_picture(data.sizes, page=True))
