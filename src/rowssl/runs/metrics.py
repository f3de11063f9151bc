"""How good a run is, where the truth is there to judge by."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rowssl.clustering.kmeans import kmeans
from rowssl.core import distributed
from rowssl.data.feed import Feed
from rowssl.data.problem import Problem
from rowssl.data.profiles import frequency_groups
from rowssl.evaluation import Evaluation, evaluate
from rowssl.methods.base import Method
from rowssl.methods.density import tail_discovery
from rowssl.runs.answers import Answers


@torch.no_grad()
def tail_measure(method: Method, feed: Feed, problem: Problem) -> tuple[dict[str, float] | None, Tensor | None]:
    """phi of appendix D.1 for head and tail, known and novel, when the truth is there to measure it.

    Also the scores (N,) that it is measured by, for whoever needs them before anything changes.
    """
    if problem.truth is None or (problem.truth < 0).any():
        return None, None
    method.eval()
    scores = method.training_tailedness(feed)
    if scores is None:
        return None, None
    score = scores.cpu()
    truth = torch.from_numpy(problem.truth)
    size = torch.bincount(truth, minlength=problem.true_classes)
    tail, novel = (size <= size.float().median())[truth], truth >= problem.n_old
    groups = {"head": ~tail, "tail": tail, "head_known": ~tail & ~novel, "tail_known": tail & ~novel,
              "head_novel": ~tail & novel, "tail_novel": tail & novel}  # fmt: skip
    return {name: round(tail_discovery(score, member), 4) for name, member in groups.items() if member.any()}, scores


def judge(problem: Problem, method: Method, answers: Answers, test: Answers | None, classes: int) -> Evaluation | None:
    """Every number of the protocol, when there is a truth to judge by."""
    if problem.truth is None:
        return None
    rows = problem.unlabelled()
    recluster = None
    if test is not None and len(test.head) >= classes:
        shown = distributed.rank() == 0
        recluster = kmeans(test.feature, classes, seed=method.seed, to_the_end=True, progress=shown).labels
    return evaluate(
        train_predicted=answers.head[rows],
        train_truth=problem.truth[rows],
        test_predicted=None if test is None else test.head,
        test_truth=problem.test_truth,
        recluster_predicted=None if recluster is None else np.asarray(recluster),
        n_old=problem.n_old,
        n_classes=problem.true_classes,
        n_clusters=classes,
        groups=frequency_bases(problem),
    )


def frequency_bases(problem: Problem) -> dict[str, np.ndarray]:
    """Many, Med and Few by each basis of counting, separately for known and novel classes."""
    groups = {}
    for basis, counts in problem.class_counts().items():
        if basis == "labelled":  # novel classes have no labels to count
            continue
        parts = [frequency_groups(part) for part in (counts[: problem.n_old], counts[problem.n_old :]) if len(part)]
        groups[basis] = np.concatenate(parts)
    return groups
