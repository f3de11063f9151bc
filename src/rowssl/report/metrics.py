"""The numbers that exist when the truth is known: what each of them means stands beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rowssl.report.charts import confusion_map
from rowssl.report.classes import by_size
from rowssl.report.markup import DASH, escape, finite

if TYPE_CHECKING:
    from rowssl.report.page import ReportData

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
    "user_tr_bacc": (
        "Tr-bACC, as a user judges",
        "Known classes must be called by their own names; only novel ones are matched, one to one, on these rows.",
    ),
    "user_in_bacc": (
        "In-bACC, as a user judges",
        "The same on unseen images, under the matching of the training rows.",
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
COLUMNS = (("all", "All"), ("old", "Old"), ("new", "New"))
GROUPS = (("many", "Many"), ("med", "Med"), ("few", "Few"))
RECALLS_OPEN = 30


def points(value: Any) -> str:
    """A percentage with one digit, or a dash where there is nothing to measure."""
    number = finite(value)
    return DASH if number is None else f"{number:.1f}"


def metrics_section(data: ReportData) -> str:
    """Accuracies, groups by class size, recall of every class and the confusion, as far as they are known."""
    blocks = [accuracies(data.metrics), groups(data.metrics), recalls(data), confusion(data)]
    return "".join(blocks)


def accuracies(metrics: dict[str, Any] | None) -> str:
    """A line per protocol, columns All, Old (known classes) and New (novel classes)."""
    lines = []
    order = [*EXPLAINED, *[key for key in metrics or () if key not in EXPLAINED]]
    for key in order:
        value = (metrics or {}).get(key)
        if not isinstance(value, dict) or not any(column in value for column, _ in COLUMNS):
            continue
        name, why = EXPLAINED.get(key, (key, ""))
        cells = "".join(f"<td>{points(value.get(column))}</td>" for column, _ in COLUMNS)
        lines.append(f'<tr><th scope="row">{escape(name)}<small>{escape(why)}</small></th>{cells}</tr>')
    if not lines:
        return ""
    heads = "".join(f'<th scope="col">{title}</th>' for _, title in COLUMNS)
    return (
        f'<table class="numbers"><thead><tr><th scope="col">In percent</th>{heads}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table>"
        '<p class="why">Old are the known classes, which had labels; New are the novel ones, which had none.</p>'
    )


def groups(metrics: dict[str, Any] | None) -> str:
    """In-bACC of frequent, medium and rare classes, once for every way of grouping them."""
    tables = []
    for basis, kinds in ((metrics or {}).get("in_bacc_groups") or {}).items():
        lines = "".join(
            f'<tr><th scope="row">{escape(kind.capitalize())}</th>'
            + "".join(f"<td>{points((kinds.get(kind) or {}).get(key))}</td>" for key, _ in GROUPS)
            + "</tr>"
            for kind in ("known", "novel")
            if kind in kinds
        )
        heads = "".join(f'<th scope="col">{title}</th>' for _, title in GROUPS)
        tables.append(
            f'<table class="numbers small"><caption>Grouped by {escape(str(basis).replace("_", " "))}</caption>'
            f'<thead><tr><th scope="col">Classes</th>{heads}</tr></thead><tbody>{lines}</tbody></table>'
        )
    if not tables:
        return ""
    why = "In-bACC averaged over the classes with many, a medium number of and few images."
    return f'<h3>Frequent and rare classes</h3><p class="why">{why}</p><div class="pair">{"".join(tables)}</div>'


def recalls(data: ReportData) -> str:
    """A bar per class, largest class first."""
    lines = []
    for position, card in by_size(data):
        value = finite(card.recall)
        if value is None:
            continue
        word = "known" if card.known else "novel"
        matched = card.matched_to if card.matched_to not in (None, card.name, card.id) else None
        name = escape(card.name) + (f" <small>as {escape(matched)}</small>" if matched is not None else "")
        lines.append(
            f'<li><a href="#class-{position}">{name}</a><span class="track"><span class="bar {word}" '
            f'style="width:{100 * value:.1f}%"></span></span><span class="number">{100 * value:.0f}</span></li>'
        )
    if not lines:
        return ""
    body = f'<ul class="recalls">{"".join(lines)}</ul>'
    if len(lines) > RECALLS_OPEN:
        body = f'<details class="more"><summary>{len(lines):,} classes</summary>{body}</details>'
    why = "How many of the members of its true class each class holds, in percent; largest class first."
    return f'<h3>Recall of each class</h3><p class="why">{why}</p>{body}'


def confusion(data: ReportData) -> str:
    """The heat-map, when counts and names are there and agree."""
    if data.confusion is None or data.class_names_truth is None:
        return ""
    counts = np.asarray(data.confusion)
    names = [str(name) for name in data.class_names_truth]
    if counts.ndim != 2 or counts.shape[0] != len(names) or counts.shape[1] < len(names) or not counts.size:
        return ""
    known = {card.id for card in data.classes if card.known}
    why = "Each line is a true class, shaded by the share of it in each assigned class. The diagonal is right."
    return f'<h3>Confusion</h3><p class="why">{why}</p>{confusion_map(counts, names, known)}'
