"""A few features of a finished cell, for pictures: test and unlabelled training rows of some known and novel classes.

Small enough to keep with every cell (below a megabyte), so that no cell has to be run again for a picture of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rowssl.core.errors import InputError

if TYPE_CHECKING:
    from rowssl.runs.run import Run

FOLDER = "sample"
CLASSES, ROWS = 10, 40  # of each kind, and of each class


@dataclass(frozen=True)
class Sample:
    """Unit features (n, d) of some rows, their true classes (n,), and how many classes are known."""

    feature: np.ndarray
    truth: np.ndarray
    n_old: int


def sample_rows(truth: np.ndarray, n_old: int, n_classes: int) -> np.ndarray:
    """Rows of evenly spread known and novel classes, the first of each class."""
    sides = (np.arange(n_old), np.arange(n_old, n_classes))
    chosen = np.concatenate(
        [side[np.linspace(0, len(side) - 1, min(CLASSES, len(side))).astype(int)] for side in sides]
    )
    return np.sort(np.concatenate([np.flatnonzero(truth == c)[:ROWS] for c in chosen]))


def write_sample(run: Run, out: Path) -> None:
    """OUT/sample: features and true classes, in half precision."""
    import torch

    from rowssl.core.files import write_directory

    problem = run.problem
    if problem.truth is None:
        return
    hidden = problem.unlabelled()
    parts = {"unlabelled": (run.answers.feature[hidden], problem.truth[hidden])}
    if run.test_answers is not None and problem.test_truth is not None:
        parts["test"] = (run.test_answers.feature, problem.test_truth)
    tensors = {}
    for name, (feature, truth) in parts.items():
        rows = sample_rows(truth, problem.n_old, problem.true_classes)
        tensors[name] = {
            "feature": torch.from_numpy(feature[rows].astype(np.float16)),
            "truth": torch.from_numpy(truth[rows].astype(np.int32)),
        }
    write_directory(out / FOLDER, tensors, {"identity": run.metrics["identity"], "n_old": problem.n_old})


def read_sample(folder: Path) -> dict[str, Sample] | None:
    """By part, `test` and `unlabelled`; None if a cell has none, or a damaged one."""
    try:
        return open_sample(folder)
    except InputError:
        return None


def open_sample(folder: Path) -> dict[str, Sample] | None:
    """As `read_sample`, but an InputError names the file that is damaged."""
    from rowssl.core.files import read_directory

    if not (folder / FOLDER).exists():
        return None
    tensors, facts = read_directory(folder / FOLDER)
    return {
        name: Sample(part["feature"].float().numpy(), part["truth"].numpy().astype(np.int64), int(facts["n_old"]))
        for name, part in tensors.items()
    }
