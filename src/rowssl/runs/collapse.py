"""Answers that are none: one class with nearly everything, or known classes that nothing is found for."""

from __future__ import annotations

import numpy as np

LEAST = 20  # unlabelled rows; with fewer, anything may happen
NEARLY_ALL = 0.9
USUAL = 0.7  # share of the labels in one class that makes nearly all rows in it no surprise
EMPTY = 1 / 3  # of the known classes


def collapse(head: np.ndarray, targets: np.ndarray, names: tuple[str, ...], n_old: int) -> str:
    """One sentence that says what is wrong, why it may be, and what to do; empty if nothing is.

    head, targets (N,): the class of each row as the model says it, labelled or not, and its given class or -1. names, n_old: of
    all classes; the known ones first. A known class that the model finds among its own labels may well have no other pictures.
    """
    free = head[targets < 0]
    if len(free) < LEAST or len(names) < 3:
        return ""
    size = np.bincount(free, minlength=len(names))
    labels = np.bincount(targets[targets >= 0], minlength=len(names))
    largest = int(size.argmax())
    advice = (
        "the encoder may tell these pictures apart too little, or the labels do not show what a class is: "
        "try another --encoder, --method auto, or a few labels more of each class."
    )
    if size[largest] >= NEARLY_ALL * len(free) and labels[largest] < USUAL * max(1, labels.sum()):
        share = 100 * size[largest] / len(free)
        return f"The answer collapsed: {share:.0f} % of all unlabelled rows are in {names[largest]}; {advice}"
    own = np.bincount(targets[(targets >= 0) & (head == targets)], minlength=len(names))
    empty = np.flatnonzero((size[:n_old] == 0) & (own[:n_old] < labels[:n_old] / 2))
    if len(empty) >= max(2, EMPTY * n_old):
        some = ", ".join(names[one] for one in empty[:3]) + (" and others" if len(empty) > 3 else "")
        lost = f"{len(empty)} of {n_old} known classes are not found, not even among their labels"
        return f"The answer collapsed: {lost} ({some}); {advice}"
    return ""


def without_pictures(head: np.ndarray, targets: np.ndarray, n_old: int) -> list[int]:
    """Known classes that no unlabelled row was given."""
    size = np.bincount(head[targets < 0], minlength=n_old)[:n_old]
    labels = np.bincount(targets[targets >= 0], minlength=n_old)
    return [int(one) for one in np.flatnonzero((size == 0) & (labels > 0))] if (targets < 0).any() else []
