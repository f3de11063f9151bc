"""From a finished run to the data of its report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rowssl.core.errors import ImageError
from rowssl.data.images import data_uri, thumbnail
from rowssl.report.page import ClassCard, ReportData
from rowssl.runs.answers import Answers, mean_confidence, typical_rows
from rowssl.runs.layout import principal
from rowssl.runs.run import RECLUSTERED

if TYPE_CHECKING:
    from rowssl.evaluation import Evaluation
    from rowssl.runs.run import Run

SHOWN = 12  # pictures per gallery
PIECE = 16_384  # rows looked at together


def build_report(run: Run, *, title: str | None = None) -> ReportData:
    """Class cards, map, metrics and facts of a run; its accuracies are those of the classes as edited, as its confusion is."""
    problem, answers = run.problem, run.answers
    shown = [h for h in range(len(run.names.ids)) if h < run.names.n_old or len(answers.rows_of(h))]
    labelled = problem.labelled_counts(len(run.names.ids))
    confidence = mean_confidence(answers, problem.targets, len(run.names.ids))
    place = {head: position for position, head in enumerate(shown)}
    evaluation, centres = run.evaluation, _directions(run)
    return ReportData(
        title=title or f"{_found(run.config.method.name)} in {problem.table.source or run.config.data.name}",
        facts=run.facts,
        classes=tuple(_card(run, head, centres, int(labelled[head]), float(confidence[head])) for head in shown),
        row_names=problem.table.names,
        row_class=[place[int(h)] for h in answers.head],
        row_known_label=[bool(t >= 0) for t in problem.targets],
        row_confidence=answers.confidence.tolist(),
        row_issue=None if answers.issue is None else [place.get(int(h)) for h in answers.issue],
        row_tailedness=None if answers.tailedness is None else answers.tailedness.tolist(),
        positions=principal(answers.feature) if answers.place is None else answers.place,
        thumbnail=lambda row: _picture(run, row),
        review=tuple(int(row) for row in run.review),
        metrics=_measured(evaluation) if evaluation else None,
        curves=run.curves or None,
        confusion=_confusion(evaluation) if evaluation else None,
        class_names_truth=problem.class_names if evaluation else None,
        skipped=[(s.name, s.reason) for s in problem.table.skipped],
        sizes=run.trained.problem.class_sizes(),
        trust=run.metrics,
    )


def _found(method: str) -> str:
    return "What was found" if method == "auto" else f"What {method.upper()} found"


def _card(run: Run, head: int, centres: np.ndarray, labelled: int, confidence: float) -> ClassCard:
    answers, names, evaluation = run.answers, run.names, run.evaluation
    rows = answers.rows_of(head)
    doubt = rows[np.argsort(answers.confidence[rows], kind="stable")[:SHOWN]]
    recall = matched = None
    if evaluation:
        true = int(evaluation.user_class_of[head])  # a known class keeps its name
        if true >= 0:
            matched = run.problem.class_names[true]
            tested = np.isfinite(evaluation.user_recall_test).any()
            value = (evaluation.user_recall_test if tested else evaluation.user_recall_train)[true]
            recall = None if np.isnan(value) else float(value)
    return ClassCard(
        id=names.ids[head],
        name=names.shown[head],
        known=head < names.n_old,
        size=len(rows),
        labelled=labelled,
        confidence=confidence,
        tailedness=float(answers.tailedness[rows].mean()) if answers.tailedness is not None and len(rows) else None,
        typical=tuple(int(r) for r in typical_rows(answers, head, SHOWN)),
        uncertain=tuple(int(r) for r in doubt),
        nearest=tuple(int(r) for r in _borderline(run.answers, rows, centres)),
        recall=recall,
        matched_to=matched,
    )


def _measured(evaluation: Evaluation) -> dict[str, Any]:
    """The numbers there are; clusters of the test set by itself are those of the fit, so an edited run has no number of them."""
    metrics = evaluation.metrics
    return {name: value for name, value in metrics.items() if name != RECLUSTERED or value.get("all") is not None}


def _confusion(evaluation: Evaluation) -> np.ndarray:
    """Of the test rows, or of the unlabelled ones where there are none."""
    tested = evaluation.user_confusion["test"]
    return tested if tested.any() else evaluation.user_confusion["train"]


def _directions(run: Run) -> np.ndarray:
    """Unit mean feature of every class, (C, d); zero for one without rows."""
    answers = run.answers
    sums = torch.zeros(len(run.names.ids), answers.feature.shape[1])
    sums.index_add_(0, torch.from_numpy(answers.head), torch.from_numpy(answers.feature))
    total = sums.numpy()
    return total / np.maximum(np.linalg.norm(total, axis=1, keepdims=True), 1e-12)


def _borderline(answers: Answers, rows: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Rows of a class that lie nearest to the mean of their second choice."""
    closeness = np.empty(len(rows), dtype=np.float32)
    for begin in range(0, len(rows), PIECE):
        part = rows[begin : begin + PIECE]
        closeness[begin : begin + PIECE] = (answers.feature[part] * centres[answers.second[part]]).sum(1)
    return rows[np.argsort(-closeness, kind="stable")[:SHOWN]]


def _picture(run: Run, row: int) -> str | None:
    if not run.problem.table.has_images:
        return None
    try:
        return data_uri(thumbnail(run.problem.table.image(row)))
    except ImageError:
        return None
