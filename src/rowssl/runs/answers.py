"""What a finished method says of every row, and the files that tell it: predictions.csv and classes.csv."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rowssl.core.errors import ImageError
from rowssl.core.files import write_text
from rowssl.core.frame import SHOWN, Frame
from rowssl.data.feed import Source, let_go
from rowssl.data.images import data_uri, thumbnail
from rowssl.data.problem import Problem
from rowssl.methods.base import Method
from rowssl.runs.label_issues import label_issues

PREDICTION_COLUMNS = (
    "file", "class", "name", "kind", "confidence", "second", "labelled", "label", "label_issue", "needs_review"
)  # fmt: skip


@dataclass(frozen=True)
class Answers:
    """One entry per row: class (head), confidence, second choice, unit feature, and tailedness where there is one.

    Where labels are law (see `under_law`) a labelled row is in its class with confidence 1, `second` is what else the model
    would say of it, and `issue` is the class that its picture speaks for against the label, -1 for none.
    """

    head: np.ndarray
    confidence: np.ndarray
    second: np.ndarray
    feature: np.ndarray
    tailedness: np.ndarray | None
    place: np.ndarray | None = None  # (N, 2) on the map of the report
    placed_by: str = ""  # t-SNE or PCA
    issue: np.ndarray | None = None  # (N,)
    doubt: np.ndarray | None = None  # (N,) log of how many times likelier the issue is than the label

    @cached_property
    def _by_class(self) -> tuple[np.ndarray, np.ndarray]:
        """All rows, class after class and in order within each, and where the next class begins."""
        order = np.argsort(self.head, kind="stable")
        return order, np.cumsum(np.bincount(self.head))

    def rows_of(self, head: int) -> np.ndarray:
        """The rows of a class, in order, without a look at all of them for every class."""
        order, ends = self._by_class
        if head >= len(ends):
            return order[:0]
        return order[ends[head - 1] if head else 0 : ends[head]]


@torch.no_grad()
def answer(
    method: Method, source: Source, device: torch.device, chunk: int = 1024, *, tailedness: Tensor | None = None
) -> Answers:
    """Ask the method about the clean view of every row; not about a tailedness (N,) that is known already."""
    method.eval()
    columns: list[np.ndarray] = []
    for number, begin in enumerate(range(0, len(source), chunk)):
        rows = np.arange(begin, min(begin + chunk, len(source)))
        tail: Tensor | None = None if tailedness is None else tailedness[begin : begin + chunk]
        if tailedness is None and method.has_tailedness:  # both of one reading: it may be a pass through the trunk
            x = source.clean(rows).to(device)
            z, tail = method.tail(x), method.tailedness(x)
        else:
            z = method.features_of(source, rows, device)
        probability = method.classifier.probabilities(z)
        top = probability.topk(2, dim=1)
        row = (top.indices[:, 0], top.values[:, 0], top.indices[:, 1], F.normalize(z, dim=1))
        values = [part.cpu().numpy() for part in (row if tail is None else (*row, tail))]
        if not columns:
            columns = [np.empty((len(source), *value.shape[1:]), dtype=value.dtype) for value in values]
        for column, value in zip(columns, values, strict=True):
            column[begin : begin + chunk] = value
        if number % 64 == 0:
            let_go(source)
    let_go(source)
    return Answers(columns[0], columns[1], columns[2], columns[3], columns[4] if len(columns) > 4 else None)


def under_law(answers: Answers, targets: np.ndarray) -> Answers:
    """Every labelled row in its class, whatever the model says: its word comes second. Doing it twice changes nothing."""
    labelled = targets >= 0
    return replace(
        answers,
        head=np.where(labelled, targets, answers.head),
        confidence=np.where(labelled, np.float32(1), answers.confidence),
        second=np.where(labelled & (answers.head != targets), answers.head, answers.second),
    )


def with_issues(answers: Answers, targets: np.ndarray, *, n_old: int, n_classes: int) -> Answers:
    """Answers under the law, with the labels that pictures speak against."""
    answers = under_law(answers, targets)
    issue, doubt = label_issues(answers.feature, answers.head, targets, n_old=n_old, n_classes=n_classes)
    return replace(answers, issue=issue, doubt=doubt)


def mean_confidence(answers: Answers, targets: np.ndarray, n_classes: int) -> np.ndarray:
    """Mean confidence of the unlabelled rows of each class, (C,), nan for a class without any."""
    free = targets < 0
    count = np.bincount(answers.head[free], minlength=n_classes)
    total = np.bincount(answers.head[free], answers.confidence[free], minlength=n_classes)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


@dataclass(frozen=True)
class ClassIds:
    """Stable names of heads: a known class has its label, a novel one `novel-NN`, numbered by size when trained."""

    ids: tuple[str, ...]
    n_old: int
    given: tuple[str, ...] | None = None  # what people call the classes

    @property
    def shown(self) -> tuple[str, ...]:
        """The name of each class, its id where nobody gave it one."""
        return self.ids if self.given is None else self.given


def name_heads(problem: Problem, answers: Answers, n_classes: int) -> ClassIds:
    """Known labels first, novel heads numbered from the largest; a novel id never equals a label."""
    known = problem.class_names[: problem.n_old]
    sizes = np.bincount(answers.head, minlength=n_classes)
    order = problem.n_old + np.argsort(-sizes[problem.n_old :], kind="stable")
    ids = [*known, *[""] * (n_classes - problem.n_old)]
    width, taken, number = max(2, len(str(n_classes))), set(known), 0
    for head in order:
        number += 1
        while f"novel-{number:0{width}d}" in taken:
            number += 1
        ids[head] = f"novel-{number:0{width}d}"
    return ClassIds(tuple(ids), problem.n_old)


def needs_review(answers: Answers, targets: np.ndarray) -> np.ndarray:
    """Rows to look at, most doubtful first: labels that pictures speak against, and the least confident unlabelled rows."""
    doubt = np.where(targets < 0, 1 - answers.confidence, 0.0)
    if answers.issue is not None and answers.doubt is not None:
        doubt = np.where(answers.issue >= 0, 1 + answers.doubt, doubt)
    worst = np.argsort(-doubt, kind="stable")
    return worst[doubt[worst] > 0.5][:200]


def _csv(header: list[str], rows: Iterator[list[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()


def write_predictions(path: Path, problem: Problem, answers: Answers, names: ClassIds, review: np.ndarray) -> None:
    """predictions.csv: what is said of every row, the label it was given, and the class that speaks against that label."""
    doubtful = set(review.tolist())
    issue = np.full(len(answers.head), -1) if answers.issue is None else answers.issue
    rows = (
        [
            problem.table.names[i],
            names.ids[head],
            names.shown[head],
            "known" if head < names.n_old else "novel",
            f"{answers.confidence[i]:.4f}",
            names.ids[answers.second[i]],
            "yes" if problem.targets[i] >= 0 else "no",
            names.ids[problem.targets[i]] if problem.targets[i] >= 0 else "",
            names.ids[issue[i]] if issue[i] >= 0 else "",
            "yes" if i in doubtful else "no",
        ]
        for i, head in enumerate(answers.head)
    )
    write_text(path, _csv(list(PREDICTION_COLUMNS), rows))


def typical_rows(answers: Answers, head: int, count: int = 12) -> np.ndarray:
    """Rows of a class nearest to the mean of their features."""
    rows = answers.rows_of(head)
    if len(rows) == 0:
        return rows
    members = answers.feature[rows]
    return rows[np.argsort(-(members @ members.mean(0)), kind="stable")[:count]]


@dataclass(frozen=True)
class ClassRow:
    """A class as people see it.

    Attributes
    ----------
    id, name, known
        The stable id; the name a person gave it, else its id; whether it had labels.
    size, labelled
        Training images in it, and those of them with a label.
    confidence
        Mean over its unlabelled images, None without any: of labelled ones there is nothing to be unsure of.
    tailedness
        Mean of its images, for methods that know it.
    rows
        Its most typical training rows.
    """

    id: str
    name: str
    known: bool
    size: int
    labelled: int
    confidence: float | None
    tailedness: float | None
    rows: tuple[int, ...]


class Classes(Sequence[ClassRow]):
    """The classes of a run, largest first, without novel ones that nothing is in; a table in a notebook and on a terminal."""

    def __init__(self, problem: Problem, answers: Answers, names: ClassIds) -> None:
        self.problem = problem
        sizes = np.bincount(answers.head, minlength=len(names.ids))
        labelled = problem.labelled_counts(len(names.ids))
        confidence = mean_confidence(answers, problem.targets, len(names.ids))
        order = [int(h) for h in np.argsort(-sizes, kind="stable") if sizes[h] > 0 or h < names.n_old]
        tail = answers.tailedness
        self._rows = [
            ClassRow(
                names.ids[head],
                names.shown[head],
                head < names.n_old,
                int(sizes[head]),
                int(labelled[head]),
                float(confidence[head]) if np.isfinite(confidence[head]) else None,
                float(tail[answers.rows_of(head)].mean()) if tail is not None and sizes[head] else None,
                tuple(typical_rows(answers, head, 5).tolist()),
            )
            for head in order
        ]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, which: Any) -> Any:
        """By place, or by id or name."""
        if not isinstance(which, str):
            return self._rows[which]
        found = [one for one in self._rows if which == one.id] or [one for one in self._rows if which == one.name]
        if not found:
            raise KeyError(which)
        return found[0]

    def frame(self, pictures: bool = False) -> Frame:
        """One line for each class, with its typical images where they are asked for and can be read."""
        columns = ("id", "name", "known", "size", "labelled", "confidence")
        rows = [(one.id, one.name, one.known, one.size, one.labelled, one.confidence) for one in self._rows]
        shown = enumerate(self._rows[:SHOWN]) if pictures and self.problem.table.has_images else ()
        return Frame(columns, rows, {place: "".join(map(self._picture, one.rows)) for place, one in shown})

    def _picture(self, row: int) -> str:
        try:
            picture = data_uri(thumbnail(self.problem.table.image(row), 48))
        except ImageError:
            return ""
        return (
            f'<img src="{picture}" alt="" style="display:inline;margin:1px;min-width:32px;image-rendering:pixelated">'
        )

    def to_pandas(self) -> Any:
        """A pandas DataFrame."""
        return self.frame().to_pandas()

    def __repr__(self) -> str:
        return repr(self.frame())

    def _repr_html_(self) -> str:
        return self.frame(pictures=True)._repr_html_()


def write_classes(path: Path, classes: Classes) -> None:
    """classes.csv: class, name, known or novel, size, labelled, confidence, tailedness, representatives; largest first."""
    names = classes.problem.table.names
    rows = (
        [
            one.id,
            one.name,
            "known" if one.known else "novel",
            one.size,
            one.labelled,
            "" if one.confidence is None else f"{one.confidence:.4f}",
            "" if one.tailedness is None else f"{one.tailedness:.4f}",
            "|".join(names[row] for row in one.rows),
        ]
        for one in classes
    )
    header = ["class", "name", "kind", "size", "labelled", "confidence", "tailedness", "representatives"]
    write_text(path, _csv(header, rows))
