"""One self-contained HTML file that shows a person what was found. It makes no network request of any kind."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from rowssl.core.files import write_text
from rowssl.report import charts, classes, metrics, scatter, thumbnails, trust
from rowssl.report.markup import clean, count, escape, json_for_script, section

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
REPORT_BYTES = 14_500_000  # the aim for the whole file; see `pictures` for what gives way
PLACE_BYTES = 130  # markup of one place that shows a picture, without the name of the row
SKIPPED_OPEN = 10


@dataclass(frozen=True)
class ClassCard:
    """One class as the report shows it.

    Parameters
    ----------
    id : stable identifier: the label of a known class, `novel-07` for a novel one.
    name : what to show; may be the name a person gave.
    known : whether the class had labels.
    size : unlabelled rows assigned to it plus labelled rows.
    labelled : labelled rows alone.
    confidence : mean over its unlabelled rows, 0 to 1; nan where all have labels.
    tailedness : None when the method has none.
    typical, uncertain, nearest : row numbers: most typical, most uncertain, nearest to other classes.
    recall, matched_to : with known truth, the recall (0 to 1) and the true class it stands for: a known one for itself.
    """

    id: str
    name: str
    known: bool
    size: int
    labelled: int
    confidence: float
    tailedness: float | None
    typical: tuple[int, ...]
    uncertain: tuple[int, ...]
    nearest: tuple[int, ...]
    recall: float | None = None
    matched_to: str | None = None


@dataclass(frozen=True)
class ReportData:
    """Everything the report shows; parts that are None or empty are left out of the page.

    Parameters
    ----------
    title : heading of the page.
    facts : what was run: method, encoder, seed, versions, data fingerprint, split, seconds.
    classes : one card per class; `row_class` counts in this order.
    row_names, row_class, row_known_label, row_confidence, row_tailedness : one entry per row.
    row_issue : for each row the class that its picture speaks for against its label, counted as `row_class`, or None.
    positions : (N, 2) map coordinates.
    thumbnail : row to the data URI (base64 png, jpeg, webp or gif) of a thumbnail, or None.
    review : rows a person should look at, most doubtful first.
    metrics : evaluation in percent, as `rowssl.evaluation` names it.
    curves : rows of metrics.jsonl.
    confusion : (C, C+1) counts, truth by assigned; the last column is what was assigned to no true class.
    class_names_truth : names of the lines of `confusion`.
    skipped : unreadable files and the reason.
    profile_svg : picture of the class sizes, a complete SVG document.
    trust : what metrics.json says of the answer itself: `tried`, `expected`, `reliability`, `problem`.
    """

    title: str
    facts: dict[str, str]
    classes: tuple[ClassCard, ...]
    row_names: Sequence[str]
    row_class: Sequence[int]
    row_known_label: Sequence[bool]
    row_confidence: Sequence[float]
    row_tailedness: Sequence[float] | None
    positions: np.ndarray | None
    thumbnail: Callable[[int], str | None]
    review: tuple[int, ...]
    metrics: dict[str, Any] | None
    curves: Sequence[dict[str, Any]] | None
    confusion: np.ndarray | None
    class_names_truth: Sequence[str] | None
    skipped: Sequence[tuple[str, str]] = ()
    profile_svg: str | None = None
    trust: dict[str, Any] | None = None
    row_issue: Sequence[int | None] | None = None


def write_report(data: ReportData, path: Path) -> Path:
    """Write the report as one HTML file.

    The file appears whole or not at all: it is written beside its place under a temporary name and then renamed.

    Parameters
    ----------
    data : what to show.
    path : the file to write; its folder is made when it does not exist.

    Returns
    -------
    Path
        `path`.

    Raises
    ------
    ValueError
        The columns that describe the rows differ in length.
    """
    check(data)
    text = clean(render(data))
    path = Path(path)
    write_text(path, text)
    return path


def check(data: ReportData) -> None:
    """Refuse columns of different lengths before anything is drawn from them."""
    rows = len(data.row_names)
    columns = {name: getattr(data, name) for name in ("row_class", "row_known_label", "row_confidence")}
    columns |= {"row_tailedness": data.row_tailedness, "positions": data.positions, "row_issue": data.row_issue}
    for name, column in columns.items():
        if column is not None and len(column) != rows:
            raise ValueError(f"the report has {rows} row names but {len(column)} entries in {name}")


def render(data: ReportData) -> str:
    """The whole page as text: first without pictures, to learn how many bytes are left for them."""
    bare = assemble(data, thumbnails.Pictures())
    places = sum(thumbnails.STRIP + sum(map(len, thumbnails.galleries(data, card))) for card in data.classes)
    places += len(data.review[: thumbnails.REVIEW_ROWS]) + len(data.row_names) // 20  # and the numbers of the tiles
    name = sum(len(str(name)) for name in data.row_names) // max(len(data.row_names), 1)
    budget = REPORT_BYTES - len(bare.encode("utf-8", "replace")) - (PLACE_BYTES + name) * places
    shown = thumbnails.collect(data, max(budget, 0))
    return assemble(data, shown) if shown else bare


def assemble(data: ReportData, shown: thumbnails.Pictures) -> str:
    """The page around these pictures."""
    assets = files("rowssl.report")
    style, script = (assets.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    parts = [
        section("classes", "Classes", classes.long_tail(data) + classes.class_table(data, shown)),
        section("map", "Map", scatter.map_section(data, shown), "Neighbours on the map look alike to the model."),
        section("review", "To review", classes.review(data, shown), "Most doubtful first: a look at these helps most."),
        section("metrics", "Against the truth", metrics.metrics_section(data)),
        section("trust", "How sure", trust.trust_section(data.trust, classes.noun(shown))),
        section("training", "Training", charts.training_curves(data.curves)),
        section("sizes", "Class sizes", profile(data.profile_svg)),
        section("run", "What was run", facts(data.facts)),
        section("unreadable", "Unreadable files", skipped(data.skipped), "Left out of everything above."),
    ]
    anchors = ("classes", "map", "review", "metrics", "trust", "training", "sizes", "run", "unreadable")
    links = "".join(
        f'<a href="#{anchor}">{"How sure" if anchor == "trust" else anchor.capitalize()}</a>'
        for anchor, part in zip(anchors, parts, strict=True)
        if part
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n'
        f"<title>{escape(data.title)}</title>\n<style>\n{style}</style>\n<style>\n{shown.css()}\n</style>\n</head>\n"
        f"<body>\n<header><h1>{escape(data.title)}</h1>"
        f'<p class="summary">{escape(classes.summary(data, shown))}</p>{classes.warning(data)}'
        f"{classes.headline(data, shown)}</header>\n"
        f'<nav aria-label="Parts of this page"><div>{links}</div></nav>\n<main>\n{"".join(parts)}</main>\n'
        "<footer>Made by rowssl. This file is complete in itself: it loads nothing from the network.</footer>\n"
        f'<script type="application/json" id="data">{json_for_script(scatter.map_data(data, shown))}</script>\n'
        f"<script>\n{script}</script>\n</body>\n</html>\n"
    )


def profile(svg: str | None) -> str:
    """The picture of class sizes as an image: nothing inside it can run, and it cannot reach the network."""
    if not svg:
        return ""
    if "xmlns=" not in svg:
        svg = svg.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
    encoded = base64.b64encode(clean(svg).encode("utf-8")).decode("ascii")
    return f'<img class="profile" alt="Class sizes, known and novel" src="data:image/svg+xml;base64,{encoded}">'


def facts(entries: dict[str, str]) -> str:
    """Names and values of the run."""
    lines = "".join(f"<div><dt>{escape(key)}</dt><dd>{escape(value)}</dd></div>" for key, value in entries.items())
    return f'<dl class="facts">{lines}</dl>' if lines else ""


def skipped(entries: Sequence[tuple[str, str]]) -> str:
    """Files that could not be read, and why."""
    if not entries:
        return ""
    lines = "".join(f"<li><code>{escape(name)}</code><span>{escape(reason)}</span></li>" for name, reason in entries)
    body = f'<ul class="skipped">{lines}</ul>'
    if len(entries) > SKIPPED_OPEN:
        body = f'<details class="more"><summary>{count(len(entries), "file")}</summary>{body}</details>'
    return body
