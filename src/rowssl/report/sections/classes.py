"""What was found: the long tail of class sizes, and a line for each class that opens to its pictures."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from markupsafe import Markup

from rowssl.report.format import finite, percent
from rowssl.report.templating import draw
from rowssl.report.thumbnails import STRIP, Pictures, galleries

if TYPE_CHECKING:
    from rowssl.report.page import ClassCard, ReportData

TITLE, LEAD, ORDER = "Classes", "", 10
GALLERIES = (
    ("Most typical", "Closest to the centre of the class."),
    ("Most uncertain", "In this class, with the least confidence."),
    ("Nearest to other classes", "Where two classes may touch or be one."),
)


def render(data: ReportData, pictures: Pictures) -> Markup:
    """Largest class first."""
    return draw(
        "sections/classes.html",
        data=data,
        pictures=pictures,
        order=data.by_size(),
        largest=max((card.size for card in data.classes), default=0) or 1,
        kinds=[kind for kind in ("known", "novel") if any(card.kind == kind for card in data.classes)],
        tailed=any(card.tailedness is not None for card in data.classes),
        strip=STRIP,
        share=partial(share, rows=max(len(data.row_names), 1)),
        confidence=lambda card: finite(card.confidence) or 0.0,
        galleries=partial(shown, data),
    )


def share(card: ClassCard, rows: int) -> str:
    """The part of all rows that a class holds."""
    part = card.size / rows
    return percent(part, 1) if part >= 0.001 else "under " + percent(0.001, 1)


def shown(data: ReportData, card: ClassCard) -> list[tuple[str, str, tuple[int, ...]]]:
    """Title, meaning and rows of the galleries that have any."""
    three = zip(GALLERIES, galleries(data, card), strict=True)
    return [(title, why, rows) for (title, why), rows in three if rows]
