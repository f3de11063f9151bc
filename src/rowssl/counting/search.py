"""GCD's search for the number of classes: the k whose k-means agrees best with the labels (methods of section 7.1).

For each k, k-means clusters labelled and unlabelled rows; the objective is the matched accuracy on the labelled rows alone,
or its mean over classes (`balanced`): under a long tail the plain one is earned by the largest classes, and prefers few
clusters. It is a noisy step function, so the best k that was evaluated counts, not the optimiser's last position. All k-means
runs start at cuts of one tree over some of the rows and stay with these, so the tree is most of what any of them would pay
by itself.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from rowssl.clustering.assignment import hungarian
from rowssl.clustering.kmeans import ENOUGH, assign, kmeans
from rowssl.clustering.tree import cut, ward_tree
from rowssl.core.console import bar
from rowssl.counting.base import CountData, CountEstimate
from rowssl.data.feed import sample_rows
from rowssl.methods.density import group_mean

EVALUATIONS = 24  # of the search, at the most
TREE_ROWS = 4_000  # at the most; more for very many k
SILHOUETTE_ROWS = 2_000


def labelled_accuracy(cluster: np.ndarray, target: np.ndarray, k: int, n_old: int, *, balanced: bool = False) -> float:
    """Matched share of the labelled rows, or the mean over classes of each class's: (n,), (n,) -> [0, 1]."""
    counts = np.bincount(cluster * n_old + target, minlength=k * n_old).reshape(k, n_old).astype(float)
    if balanced:
        sizes = counts.sum(0)
        counts = counts / np.maximum(sizes, 1) / max(1, int((sizes > 0).sum()))
    else:
        counts = counts / len(target)
    rows, columns = hungarian(counts)
    return float(counts[rows, columns].sum())


def search(data: CountData, *, balanced: bool = False) -> CountEstimate:
    """Brent's search over k; without labels, for the best silhouette.

    The interval holds the k that score within one standard error of the best. It says how flat the search is, nothing of
    the bias that k-means has under a long tail.
    """
    known = data.labelled
    scores: dict[int, float] = {}
    clusters = Clusters(data)  # which may show a bar of its own
    with bar("counting classes, values of k tried") as progress:

        def score(k: int) -> float:
            if k not in scores:
                found = clusters(k)
                if data.n_old:
                    good = labelled_accuracy(found, data.target[known], k, data.n_old, balanced=balanced)
                else:
                    good = silhouette(clusters.x, found, data.seed)
                scores[k] = good
                progress.advance(note=f"k = {k}: {good:.3f}")
            return scores[k]

        brent(data.low, data.high, score)
    best = max(scores, key=lambda k: (scores[k], -k))
    error = standard_error(scores[best], data, balanced)
    close = [k for k, value in scores.items() if value >= scores[best] - error]
    value = "silhouette" if not data.n_old else "balanced labelled accuracy" if balanced else "labelled accuracy"
    at_end = best == data.high and data.high > data.low
    return CountEstimate(
        best, min(close), max(close), dict(sorted(scores.items())), value=value, marked=best,
        note="the best k is the largest that was tried" if at_end else "",
    )  # fmt: skip


def standard_error(accuracy: float, data: CountData, balanced: bool) -> float:
    """Of an accuracy on so many labelled rows; of a balanced one, as if every class had its harmonic share of them."""
    if not data.n_old:
        return 0.01
    sizes = np.bincount(data.target[data.labelled], minlength=data.n_old)
    sizes = sizes[sizes > 0]
    rows = len(sizes) ** 2 / np.sum(1 / sizes) if balanced else sizes.sum()
    return float(np.sqrt(max(accuracy * (1 - accuracy), 1e-6) / max(1.0, rows)))


class Clusters:
    """The cluster of every labelled row for any k: k-means on some of the rows, from a cut of one tree over them.

    Without known classes, of every one of these rows. Lloyd iterations from there end about as low as those of the best of ten
    k-means++ do, or lower, after a third as many or fewer.
    """

    def __init__(self, data: CountData) -> None:
        size = max(TREE_ROWS, 2 * data.high)
        self.x = data.x[torch.from_numpy(sample_rows(data.target, data.n_old, size, data.seed))]
        self.tree = ward_tree(self.x)
        self.asked = data.x[torch.from_numpy(data.labelled)] if data.n_old else None

    def __call__(self, k: int) -> np.ndarray:
        """(n,) from 0, of the n labelled rows, or of those in the tree."""
        found = kmeans(self.x, k, init=self.start(k), enough=ENOUGH)
        labels = found.labels if self.asked is None else assign(self.asked, found.centers)[0]
        return labels.numpy()

    def start(self, k: int) -> torch.Tensor:
        """(k, d); where merges of one height leave fewer clusters than that, the first rows stand for the others."""
        cluster = torch.from_numpy(cut(self.tree, k))
        centres, size = group_mean(self.x, cluster, k)
        missing = size == 0
        centres[missing] = self.x[: int(missing.sum())]
        return centres


def brent(low: int, high: int, score: Callable[[int], float]) -> None:
    """Brent's bounded search for a maximum over whole numbers, then the neighbours of the best; both ends are tried."""
    from scipy.optimize import minimize_scalar

    tried: dict[int, float] = {}

    def at(position: float) -> float:
        k = int(np.clip(round(float(position)), low, high))
        tried[k] = score(k)
        return -tried[k]

    at(low)
    if high - low > 8:
        options = {"xatol": 0.5, "maxiter": EVALUATIONS}
        minimize_scalar(at, bounds=(low, high), method="bounded", options=options)
    else:
        for k in range(low, high):
            at(k)
    at(high)
    best = max(tried, key=lambda k: (tried[k], -k))
    for k in (best - 1, best + 1):
        if low <= k <= high:
            at(k)


def silhouette(x: torch.Tensor, cluster: np.ndarray, seed: int) -> float:
    """Mean silhouette of a sample of rows, cosine distance."""
    from sklearn.metrics import silhouette_score

    rows = np.random.default_rng([seed, 34]).permutation(len(x))[:SILHOUETTE_ROWS]
    found = cluster[rows]
    if not 2 <= len(np.unique(found)) < len(rows):
        return -1.0
    return float(silhouette_score(x[rows].numpy(), found, metric="cosine"))
