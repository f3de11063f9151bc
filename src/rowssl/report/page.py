"""One self-contained HTML file that shows a person what was found. It makes no network request of any kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rowssl.core.files import write_text
from rowssl.data.profiles import ClassSizes
from rowssl.report import sections, thumbnails
from rowssl.report.format import clean, count, finite, percent
from rowssl.report.templating import draw
from rowssl.report.thumbnails import Pictures

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
REPORT_BYTES = 14_500_000  # the aim for the whole file; see `pictures` for what gives way
PLACE_BYTES = 130  # markup of one place that shows a picture, without the name of the row


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

    @property
    def kind(self) -> str:
        """`known` or `novel`, in words and as CSS class."""
        return "known" if self.known else "novel"


@dataclass(frozen=True)
class Member:
    """One row as galleries show it: `card` is its class, `issue` the class that its picture speaks for against its label."""

    name: str
    position: int
    card: ClassCard | None
    labelled: bool
    confidence: float
    issue: ClassCard | None

    @property
    def file(self) -> str:
        """The name without its folders."""
        return self.name.replace("\\", "/").rsplit("/", 1)[-1]


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
    sizes : true class sizes, where the truth is known.
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
    sizes: ClassSizes | None = None
    trust: dict[str, Any] | None = None
    row_issue: Sequence[int | None] | None = None

    def by_size(self) -> list[tuple[int, ClassCard]]:
        """(position, card), largest class first, ties by name so that the order never changes between runs."""
        return sorted(enumerate(self.classes), key=lambda item: (-item[1].size, item[1].name, item[0]))

    def card(self, position: int | None) -> ClassCard | None:
        """The class at a position, if there is one."""
        return self.classes[position] if position is not None and 0 <= position < len(self.classes) else None

    def member(self, row: int) -> Member:
        """A row with what is known of it."""
        position = int(self.row_class[row])
        issue = None if self.row_issue is None else self.row_issue[row]
        labelled = bool(self.row_known_label[row])
        confidence = self.row_confidence[row]
        return Member(str(self.row_names[row]), position, self.card(position), labelled, confidence, self.card(issue))

    @property
    def stated(self) -> dict[str, Any]:
        """What metrics.json says of the answer; it is untrusted input and may be anything."""
        return self.trust if isinstance(self.trust, dict) else {}

    @property
    def expected(self) -> tuple[float, float, float] | None:
        """Lower bound, mean and upper bound of the percentage that is expected to be right."""
        found = self.stated.get("expected")
        found = found if isinstance(found, dict) else {}
        low, middle, high = (finite(found.get(key)) for key in ("low", "expected", "high"))
        return None if low is None or middle is None or high is None else (low, middle, high)


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
    bare = assemble(data, Pictures())
    places = sum(thumbnails.STRIP + sum(map(len, thumbnails.galleries(data, card))) for card in data.classes)
    places += len(data.review[: thumbnails.REVIEW_ROWS]) + len(data.row_names) // 20  # and the numbers of the tiles
    name = sum(len(str(name)) for name in data.row_names) // max(len(data.row_names), 1)
    budget = REPORT_BYTES - len(bare.encode("utf-8", "replace")) - (PLACE_BYTES + name) * places
    shown = thumbnails.collect(data, max(budget, 0))
    return assemble(data, shown) if shown else bare


@dataclass(frozen=True)
class Part:
    """A section that has something to show."""

    name: str
    title: str
    lead: str
    body: str


def assemble(data: ReportData, pictures: Pictures) -> str:
    """The page around these pictures."""
    parts = [
        Part(module.__name__.rpartition(".")[2], module.TITLE, module.LEAD, body)
        for module in sections.found()
        if (body := module.render(data, pictures))
    ]
    problem = data.stated.get("problem")
    return draw(
        "page.html",
        policy=POLICY,
        data=data,
        pictures=pictures,
        parts=parts,
        problem=problem if isinstance(problem, str) else "",
        summary=summary(data, pictures),
        headline=headline(data, pictures),
    )


def summary(data: ReportData, pictures: Pictures) -> str:
    """`10 classes found in 1,234 images: 5 known, 5 novel.`"""
    known = sum(card.known for card in data.classes)
    novel = len(data.classes) - known
    split = "all known" if not novel else "all novel" if not known else f"{known:,} known, {novel:,} novel"
    rows = count(len(data.row_names), pictures.noun)
    return f"{count(len(data.classes), 'class', 'classes')} found in {rows}: {split}."


def headline(data: ReportData, pictures: Pictures) -> list[tuple[str, str, str]]:
    """The few numbers a person looks for first: number, what it is, and more about it in small."""
    known = sum(card.known for card in data.classes)
    sizes = [card.size for card in data.classes if card.size > 0]
    free = [value for value, labelled in zip(data.row_confidence, data.row_known_label, strict=True) if not labelled]
    confidences = [value for value in map(finite, free) if value is not None]
    labelled = sum(map(bool, data.row_known_label))
    images = f"{pictures.noun}s"
    tiles = [
        (f"{len(data.row_names):,}", images, f"{labelled:,} labelled"),
        (f"{len(data.classes):,}", "classes", f"{known:,} known, {len(data.classes) - known:,} novel"),
    ]
    if sizes:
        ratio = f"{max(sizes) / min(sizes):.0f}\u202f:\u202f1"
        tiles.append((ratio, "largest to smallest", f"{max(sizes):,} to {min(sizes):,}"))
    if data.expected is not None:
        low, middle, high = data.expected
        tiles.append((f"{middle:.0f}\u202f%", "expected right", f"{low:.0f} to {high:.0f}\u202f%, from hidden classes"))
    elif confidences:
        mean = percent(sum(confidences) / len(confidences))
        tiles.append((mean, "mean confidence", f"over unlabelled {images}"))
    for key, label, basis in (("in_bacc", "In-bACC", "on unseen images"), ("tr_bacc", "Tr-bACC", "on unlabelled rows")):
        value = finite(((data.metrics or {}).get(key) or {}).get("all"))
        if value is not None:
            tiles.append((f"{value:.1f}\u202f%", label, basis))
            break
    issues = sum(position is not None for position in data.row_issue or ())
    small = f"{count(issues, 'label')} in doubt" if issues else f"most doubtful {images}"
    return [*tiles, (f"{len(data.review):,}", "to review", small)]
