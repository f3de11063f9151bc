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
MANY = 4_000  # rows from which one k-means run has to do
POLISH = 20  # k-means iterations from merged clusters, at the most
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
    cluster = Clusterings(data)
    with bar("counting classes, values of k tried") as progress:

        def score(k: int) -> float:
            if k not in scores:
                found = cluster(k).labels.numpy()
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


class Clusterings:
    """k-means for any k up to a largest one, with the work shared: clusters of the largest k are merged, then polished.

    Merging by Ward's rule, the pair whose union raises the inertia least, costs nothing beside k-means, and a clustering does
    not depend on which others were asked for.
    """

    def __init__(self, data: CountData) -> None:
        self.data = data
        starts = 1 if len(data.x) >= MANY else 3
        found = kmeans(data.x, data.high, seed=data.seed, n_init=starts, max_iter=POLISH)
        self.centres = found.centers
        self.sizes = torch.bincount(found.labels, minlength=data.high)
        self.merges = ward_merges(self.centres, self.sizes)

    def __call__(self, k: int) -> KMeansResult:
        return kmeans(self.data.x, k, init=merged(self.centres, self.sizes, self.merges, k), max_iter=POLISH)


def ward_merges(centres: torch.Tensor, sizes: torch.Tensor) -> list[tuple[int, int]]:
    """Pairs (i, j), i < j, in the order in which cluster j joins cluster i until one is left."""
    c, n = centres.double().numpy().copy(), np.maximum(sizes.numpy().astype(float), 1e-9)
    norms = (c * c).sum(1)
    cost = np.maximum(norms[:, None] + norms - 2 * c @ c.T, 0) * (n[:, None] * n / (n[:, None] + n))
    np.fill_diagonal(cost, np.inf)
    partner = cost.argmin(1)
    least = cost[np.arange(len(c)), partner]
    merges = []
    for _ in range(len(c) - 1):
        one = int(least.argmin())
        i, j = sorted((one, int(partner[one])))
        merges.append((i, j))
        c[i] = (n[i] * c[i] + n[j] * c[j]) / (n[i] + n[j])
        n[i] += n[j]
        least[j] = cost[j, :] = cost[:, j] = np.inf
        alive = np.isfinite(least)
        fresh = ((c - c[i]) ** 2).sum(1) * (n * n[i] / (n + n[i]))
        fresh[~alive] = fresh[i] = np.inf
        cost[i, :] = cost[:, i] = fresh
        closer = fresh < least
        lost = alive & ~closer & ((partner == i) | (partner == j))
        partner[closer], least[closer] = i, fresh[closer]
        for row in {i, *np.flatnonzero(lost).tolist()}:
            partner[row] = cost[row].argmin()
            least[row] = cost[row, partner[row]]
    return merges


def merged(centres: torch.Tensor, sizes: torch.Tensor, merges: list[tuple[int, int]], k: int) -> torch.Tensor:
    """Centres of the k clusters that the first merges leave, (k, d)."""
    group = np.arange(len(centres))
    for i, j in merges[: len(centres) - k]:
        group[group == j] = i
    place = torch.from_numpy(np.unique(group, return_inverse=True)[1])
    weight = sizes.double().clamp_min(1e-9)
    sums = torch.zeros(k, centres.shape[1], dtype=torch.float64).index_add_(
        0, place, centres.double() * weight[:, None]
    )
    return (sums / torch.zeros(k, dtype=torch.float64).index_add_(0, place, weight)[:, None]).float()


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
