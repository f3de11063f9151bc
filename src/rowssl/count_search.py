"""GCD's search for the number of classes: the k whose k-means agrees best with the labels (methods of section 7.1).

For each k, k-means clusters labelled and unlabelled rows; the objective is the matched accuracy on the labelled rows alone,
or its mean over classes (`balanced`): under a long tail the plain one is earned by the largest classes, and prefers few
clusters. It is a noisy step function, so the best k that was evaluated counts, not the optimiser's last position.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from rowssl.cluster import hungarian, kmeans
from rowssl.count import CountData, CountEstimate
from rowssl.progress import bar
from rowssl.semi_kmeans import KMeansResult

EVALUATIONS = 24  # of the search, at the most
NEAR = 0.05  # a clustering this close in k starts the next one: a quarter of the time for 0.3 % more inertia
MANY = 4_000  # rows from which one k-means run has to do
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
    done: dict[int, KMeansResult] = {}
    with bar("counting classes, values of k tried") as progress:

        def score(k: int) -> float:
            if k not in scores:
                done[k] = _cluster(data, k, done)
                found = done[k].labels.numpy()
                if data.n_old:
                    good = labelled_accuracy(found[known], data.target[known], k, data.n_old, balanced=balanced)
                else:
                    good = silhouette(data.x, found, data.seed)
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


def _cluster(data: CountData, k: int, done: dict[int, KMeansResult]) -> KMeansResult:
    """k-means, from the centres of a k close by where there is one."""
    near = min(done, key=lambda other: (abs(other - k), other), default=None)
    if near is None or abs(near - k) > NEAR * k:
        return kmeans(data.x, k, seed=data.seed, n_init=1 if len(data.x) >= MANY else 3)
    return kmeans(data.x, k, init=resized(data.x, done[near], k, data.seed))


def resized(x: torch.Tensor, found: KMeansResult, k: int, seed: int) -> torch.Tensor:
    """Centres of another number of clusters to start from: far rows added, or the smallest clusters left out."""
    centres = found.centers
    if k <= len(centres):
        sizes = torch.bincount(found.labels, minlength=len(centres))
        return centres[sizes.argsort(descending=True, stable=True)[:k].sort().values]
    distance = (x - centres[found.labels]).square().sum(1).double().numpy() + 1e-12
    rng = np.random.default_rng([seed, 33, k])
    rows = rng.choice(len(x), k - len(centres), replace=False, p=distance / distance.sum())
    return torch.cat([centres, x[rows]])


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
