"""How many classes: GCD's search over k for the k-means that agrees best with the labels there are (methods of section 7).

For each k, k-means clusters labelled and unlabelled rows; the objective is the matched accuracy on the labelled rows alone.
It is a noisy step function, so the best k that was evaluated counts, not the optimiser's last position.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from rowssl.cluster import hungarian, kmeans
from rowssl.data.loader import Source
from rowssl.progress import bar

SAMPLE = 20_000  # rows used at the most; all labelled ones are among them as far as they fit


@dataclass(frozen=True)
class CountEstimate:
    """The estimate, an interval of k that do about as well, and the score of every k tried."""

    best: int
    low: int
    high: int
    scores: dict[int, float]


def labelled_accuracy(cluster: np.ndarray, target: np.ndarray, k: int, n_old: int) -> float:
    """Matched share of the labelled rows: (n,), (n,) -> [0, 1]."""
    counts = np.bincount(cluster * n_old + target, minlength=k * n_old).reshape(k, n_old)
    rows, columns = hungarian(counts)
    return float(counts[rows, columns].sum() / len(target))


@torch.no_grad()
def estimate_classes(
    source: Source, tail: nn.Module, targets: np.ndarray, n_old: int, *, seed: int = 0, max_classes: int | None = None
) -> CountEstimate:
    """Estimate the number of classes from the encoder's features.

    Parameters
    ----------
    source, tail
        Trunk outputs, and what turns them into features (the encoder's tail before training).
    targets
        (N,) class ids below `n_old`, -1 = unlabelled. Without any label the silhouette takes the place of accuracy.
    max_classes
        Upper end of the search; by default 4 times the known classes, at least 20, at most a quarter of the rows.
    """
    labelled = np.flatnonzero(targets >= 0)
    rest = np.random.default_rng([seed, 31]).permutation(np.flatnonzero(targets < 0))
    rows = np.sort(np.concatenate([labelled[:SAMPLE], rest[: max(0, SAMPLE - len(labelled))]]))
    chunks = [tail(source.clean(rows[begin : begin + 1024])) for begin in range(0, len(rows), 1024)]
    x = F.normalize(torch.cat(chunks), dim=1)
    target = targets[rows]
    known = target >= 0
    low, high = max(2, n_old), max_classes or max(20, 4 * n_old)
    high = max(low, min(high, max(2, len(rows) // 4)))

    scores: dict[int, float] = {}

    with bar("counting classes, values of k tried") as progress:

        def score(k: int) -> float:
            if k not in scores:
                found = kmeans(x, k, seed=seed, n_init=3).labels.numpy()
                good = (
                    labelled_accuracy(found[known], target[known], k, n_old) if n_old else _silhouette(x, found, seed)
                )
                scores[k] = good
                progress.advance(note=f"k = {k}: {good:.3f}")
            return scores[k]

        _golden(low, high, score)
    best = max(scores, key=lambda k: (scores[k], -k))
    error = np.sqrt(max(scores[best] * (1 - scores[best]), 1e-6) / max(1, int(known.sum()) if n_old else len(rows)))
    close = [k for k, value in scores.items() if value >= scores[best] - error]
    return CountEstimate(best, min(close), max(close), dict(sorted(scores.items())))


def _golden(low: int, high: int, score: Callable[[int], float]) -> None:
    """Golden-section search for a maximum over whole numbers; ends with every number of the last small interval."""
    ratio = (5**0.5 - 1) / 2
    while high - low > 3:
        left, right = round(high - ratio * (high - low)), round(low + ratio * (high - low))
        if left >= right:  # rounding: what is left is small enough to try in full
            break
        if score(left) >= score(right):
            high = right
        else:
            low = left
    for k in range(low, high + 1):
        score(k)


def _silhouette(x: torch.Tensor, cluster: np.ndarray, seed: int) -> float:
    """Mean silhouette of a sample of rows, cosine distance."""
    from sklearn.metrics import silhouette_score

    if len(np.unique(cluster)) < 2:
        return -1.0
    size = min(len(x), 2000)
    return float(silhouette_score(x.numpy(), cluster, metric="cosine", sample_size=size, random_state=seed))
