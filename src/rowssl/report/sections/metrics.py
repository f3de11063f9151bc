"""The numbers that exist when the truth is known: what each of them means stands beside it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from rowssl.report import charts
from rowssl.report.format import finite
from rowssl.report.templating import draw

if TYPE_CHECKING:
    from rowssl.report.page import ClassCard, ReportData
    from rowssl.report.thumbnails import Pictures

TITLE, LEAD, ORDER = "Against the truth", "", 40
EXPLAINED = {
    "tr_acc": (
        "Tr-ACC",
        "Unlabelled training rows given their true class, after one best matching of found and true classes.",
    ),
    "tr_bacc": (
        "Tr-bACC",
        "The same matching; recall averaged over classes, so that a rare class counts as much as a common one.",
    ),
    "in_bacc": (
        "In-bACC",
        "Unseen images, one at a time, with the matching frozen after training: what to expect in use.",
    ),
    "in_acc": (
        "In-ACC",
        "The same, averaged over the images, so that a common class counts more.",
    ),
    "user_tr_bacc": (
        "Tr-bACC, as a user judges",
        "Known classes must be called by their own names; only novel ones are matched, one to one, on these rows.",
    ),
    "user_in_bacc": (
        "In-bACC, as a user judges",
        "The same on unseen images, under the matching of the training rows.",
    ),
    "tr_acc_v1": (
        "Tr-ACC, as in earlier papers",
        "Known and novel rows matched apart from each other, so it is optimistic.",
    ),
    "in_bacc_rematch": (
        "In-bACC, rematched",
        "Matched afresh on the test set: hides a wrong matching, so it is optimistic.",
    ),
    "in_bacc_recluster_rematch": (
        "In-bACC, reclustered and rematched",
        "The whole test set clustered again, then matched afresh: needs all test images at once, the most optimistic.",
    ),
}
RECALLS_OPEN = 30


def render(data: ReportData, pictures: Pictures) -> Markup:
    """Accuracies, groups by class size, recall of every class and the confusion, as far as they are known."""
    metrics = data.metrics or {}
    parts: dict[str, Any] = {
        "accuracies": list(accuracies(metrics)), "groups": list(groups(metrics)), "recalls": list(recalls(data)),
        "confusion": confusion(data),
    }  # fmt: skip
    return draw("sections/metrics.html", open=RECALLS_OPEN, **parts) if any(parts.values()) else Markup()


def accuracies(metrics: dict[str, Any]) -> Iterator[tuple[str, str, list[Any]]]:
    """Name, meaning and All, Old (known classes) and New (novel classes) of each protocol."""
    for key in dict.fromkeys([*EXPLAINED, *metrics]):
        value = metrics.get(key)
        if isinstance(value, dict) and {"all", "old", "new"} & value.keys():
            yield *EXPLAINED.get(key, (key, "")), [value.get(column) for column in ("all", "old", "new")]


def groups(metrics: dict[str, Any]) -> Iterator[tuple[str, list[tuple[str, list[Any]]]]]:
    """In-bACC of frequent, medium and rare classes, once for every way of grouping them."""
    for basis, kinds in (metrics.get("in_bacc_groups") or {}).items():
        sizes = ("many", "med", "few")
        lines = [
            (kind, [(kinds[kind] or {}).get(size) for size in sizes]) for kind in ("known", "novel") if kind in kinds
        ]
        yield str(basis).replace("_", " "), lines


def recalls(data: ReportData) -> Iterator[tuple[int, ClassCard, str | None, float]]:
    """Position, card, the true class where it has another name, and recall of each class, largest first."""
    for position, card in data.by_size():
        value = finite(card.recall)
        if value is not None:
            yield position, card, None if card.matched_to in (card.name, card.id) else card.matched_to, value


def confusion(data: ReportData) -> Markup:
    """The heat map, when counts and names are there and agree."""
    if data.confusion is None or data.class_names_truth is None:
        return Markup()
    counts = np.asarray(data.confusion)
    names = [str(name) for name in data.class_names_truth]
    if counts.ndim != 2 or counts.shape[0] != len(names) or counts.shape[1] < len(names) or not counts.size:
        return Markup()
    return charts.heat_map(counts, names, {card.id for card in data.classes if card.known})
