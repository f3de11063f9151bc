"""The picture of a count: all estimates on one axis, then each search with its choice and its interval."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from rowssl.core.errors import InputError
from rowssl.core.files import write_text
from rowssl.counting.base import AUTO, CountEstimate
from rowssl.counting.table import PICTURES, Counts
from rowssl.report.charts import Interval, intervals
from rowssl.report.format import count

CLUSTERS = "granularity: number of clusters"  # an axis of something else than classes


def count_svg(estimates: Sequence[CountEstimate], *, n_old: int, rows: int, labelled: int) -> Markup:
    """One self-contained `<svg>` element.

    Parameters
    ----------
    estimates
        The one that is used first.
    n_old, rows, labelled
        Known classes, all rows and labelled rows, for the line of known classes and the title.
    """
    first = estimates[0]
    return intervals(
        f"How many classes: {first.best} ({first.low} to {first.high})",
        f"{rows:,} rows, {labelled:,} of them labelled in {count(n_old, 'known class', 'known classes')}",
        [
            Interval(
                one.name, one.best, one.low, one.high, used=one.name == AUTO, search=one.scores,
                marked=one.best if one.marked is None else one.marked, across=one.axis, up=one.value,
                banded=one.axis != CLUSTERS,
            )
            for one in estimates
        ],
        (n_old, f"{n_old} known") if n_old else None,
    )  # fmt: skip


def count_page(estimates: Sequence[CountEstimate], *, n_old: int, rows: int, labelled: int) -> Markup:
    """The picture and the numbers as one HTML page that asks nothing of the network."""
    from rowssl.report.templating import draw

    picture = count_svg(estimates, n_old=n_old, rows=rows, labelled=labelled)
    return draw("count.html", picture=picture, estimates=estimates, auto=AUTO)


def check_picture(path: Path | None) -> None:
    """Refuse a picture of another kind before the work starts."""
    if path is not None and path.suffix.lower() not in PICTURES:
        raise InputError(f"--out {path} must end in .html or .svg.")


def write_picture(path: Path, counts: Counts) -> None:
    """The search as an SVG file, or as an HTML page with the table."""
    draw = count_svg if path.suffix.lower() == ".svg" else count_page
    write_text(path, draw(counts.estimates, n_old=counts.n_old, rows=counts.rows, labelled=counts.labelled))
