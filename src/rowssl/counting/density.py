"""Counting clusters in units of the known classes: dense groups on a Ward tree, calibrated by the labels there are.

Rarely is a cluster a class: heads are split, rare classes share a cluster. But the known classes suffer the same, and of them
we know how many they are. So, at the granularity that suits the known classes best, measure how many clusters a known class
holds on average and divide the clusters that are left by it. For that one must know how many of the unlabelled rows belong
to known classes: how often the nearest neighbours of labelled rows, the confident evidence, have a label too tells it.

The idea of confident samples and density-based counting under a long tail is that of arXiv 2506.12515; the calibration by
clusters per known class is ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rowssl.clustering.assignment import knn
from rowssl.clustering.tree import cut, ward_tree
from rowssl.core.console import track
from rowssl.counting.base import CountData, CountEstimate
from rowssl.counting.search import silhouette
from rowssl.data.feed import sample_rows

TREE = 10_000  # rows in the tree: its distances take 8 TREE^2 / 2 bytes
LEVELS = 60  # granularities looked at
NEIGHBOURS = 3
PULL = 20.0  # neighbours' worth of trust in the overall labelled share when a class's own is estimated
LEAST_PURITY = 0.3
GOOD = 0.9  # granularities whose agreement is at least this share of the best count too
DRAWS = 400
COVER = (0.1, 0.9)  # quantiles of the draws that end the interval


@dataclass(frozen=True)
class Level:
    """One granularity: agreement with the known classes, and the number of clusters each of them holds, (C,)."""

    k: int
    agreement: float
    held: np.ndarray

    def classes(self) -> float:
        """Known classes, and clusters that are left in units of what a known class holds."""
        held = float(self.held.sum())
        return len(self.held) * max(1.0, self.k / held)


def density(data: CountData) -> CountEstimate:
    """Clusters of the whole over clusters per known class; without labels, the best silhouette on the tree.

    The interval holds 8 of 10 draws of: known classes resampled, the labelled share within its error, granularities that
    do about as well, and novel classes drawn from the known ones until they fill the clusters that are left.
    """
    rows = sample_rows(data.target, data.n_old, TREE, data.seed)
    x, target = data.x[torch.from_numpy(rows)], data.target[rows]
    tree = ward_tree(x)
    top = max(data.low, min(len(x) // 3, max(40, 8 * data.n_old)))
    ks = np.unique(np.round(np.geomspace(data.low, top, LEVELS)).astype(int))
    labelled = np.bincount(target[target >= 0], minlength=data.n_old)
    if not (labelled > 1).any():
        return _by_silhouette(data, x, tree, ks[ks <= data.high])
    share, doubt = labelled_share(x, target, data.n_old)
    sizes = labelled / share
    levels = [level(cut(tree, k), target, sizes) for k in track(ks.tolist(), "counting clusters, granularities")]
    agreement = np.array([one.agreement for one in levels])
    good = [one for one in levels if one.agreement >= GOOD * agreement.max()]
    best = float(np.exp(np.mean([np.log(one.classes()) for one in good])))
    draws = simulate(good, doubt, np.random.default_rng([data.seed, 35]))
    low, high = np.quantile(draws, COVER)
    most = data.max_classes or len(x)
    number = int(np.clip(round(best), data.low, most))
    return CountEstimate(
        number,
        int(np.clip(np.floor(min(low, best)), data.low, number)),
        int(np.clip(np.ceil(max(high, best)), number, max(most, number))),
        {one.k: one.agreement for one in levels},
        axis="granularity: number of clusters",
        value="agreement with the known classes",
        marked=levels[int(agreement.argmax())].k,
        note=_note(labelled, agreement.max(), sizes.sum() / len(x)),
    )


def _note(labelled: np.ndarray, agreement: float, known: float) -> str:
    """What to be careful about, if anything."""
    said = f"{100 * min(known, 1.0):.0f} % of the rows look like known classes"
    if labelled.sum() < 30 or (labelled > 1).sum() < 3:
        return f"{said}; with so few labels take the interval seriously"
    if agreement < 0.5:
        return f"{said}; clusters and classes agree little, so classes as large as the known ones are assumed"
    return said


def labelled_share(x: Tensor, target: np.ndarray, n_old: int, nearest: int = NEIGHBOURS) -> tuple[np.ndarray, float]:
    """The share of each known class's rows that has a label, (C,) in (0, 1], and the relative error of it all.

    Of a labelled row's neighbours, a share `purity` is of its class. Those that are not are labelled as often as any row,
    so labelled neighbours of another class give the purity; labelled neighbours of the same class then give the share.
    """
    rows = np.flatnonzero(target >= 0)
    own, labels = target[rows], np.bincount(target[rows], minlength=n_old).astype(float)
    neighbours = target[_neighbours(x, rows, nearest)]
    same = neighbours == own[:, None]
    other = (neighbours >= 0) & ~same
    purity = np.clip(1 - other.mean() * len(x) / len(rows), max(LEAST_PURITY, same.mean()), 1.0)
    seen = np.bincount(own, same.sum(1), minlength=n_old)
    draws = labels * neighbours.shape[1]

    def expected(share: float | np.ndarray) -> np.ndarray:
        """Labelled neighbours of the same class; the row itself is not among them."""
        return draws * purity * np.minimum(1.0, (labels - 1) / np.maximum(labels / share - 1, 1e-9)) * (labels > 1)

    least = len(rows) / len(x)  # every row is of a known class
    overall = solve(lambda share: np.atleast_1d(expected(share).sum() - seen.sum()), np.full(1, least), np.ones(1))[0]
    by_class = solve(
        lambda share: expected(share) - seen + PULL * (share - overall) / overall,
        np.full(n_old, 0.05 * least),
        np.ones(n_old),
    )
    present = np.maximum(labels, 1e-9)
    possible = np.minimum(1.0, by_class * max(1.0, float((present / by_class).sum()) / len(x)))
    return possible, float(max(1.0, seen.sum()) ** -0.5)  # the error of a count


def _neighbours(x: Tensor, rows: np.ndarray, nearest: int) -> np.ndarray:
    """Nearest other rows of each of `rows`, (n, k)."""
    k = min(nearest, len(x) - 1)
    found = knn(x[torch.from_numpy(rows)], x, k + 1)[1].numpy()
    mine = found == rows[:, None]
    mine[~mine.any(1), -1] = True  # among exact copies a row need not be in its own list
    return found[~mine].reshape(len(rows), k)


def solve(rising: Callable[[np.ndarray], np.ndarray], low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Root of a rising function of each entry by bisection on a log scale, an end where there is none."""
    for _ in range(50):
        middle = np.sqrt(low * high)
        above = rising(middle) > 0
        high, low = np.where(above, middle, high), np.where(above, low, middle)
    return high


def level(cluster: np.ndarray, target: np.ndarray, sizes: np.ndarray) -> Level:
    """Class-balanced B-cubed F of the labelled rows, unlabelled cluster mates counted, and the clusters of each class.

    Parameters
    ----------
    cluster, target
        Cluster of each row, numbered without gaps, and its class or -1, (N,).
    sizes
        Estimated number of rows of each known class, (C,).
    """
    n_old, labelled, k = len(sizes), target >= 0, int(cluster.max()) + 1
    flat = cluster[labelled] * n_old + target[labelled]
    counts = np.bincount(flat, minlength=k * n_old).reshape(k, n_old).astype(float)
    members = np.bincount(cluster)[:, None]
    labels = counts.sum(0)
    several = labels > 1
    share = counts / np.maximum(labels, 1)
    # Both leave the row itself out: a class of two labelled rows would otherwise look half recovered whatever happens.
    recall = (counts * (counts - 1)).sum(0) / np.maximum(labels * (labels - 1), 1)
    mates = 1 + np.maximum(counts - 1, 0) * np.maximum(sizes - 1, 0) / np.maximum(labels - 1, 1)
    precision = (share * np.minimum(1.0, mates / members)).sum(0)
    r, p = recall[several].mean(), precision[several].mean()
    return Level(k, float(2 * r * p / max(r + p, 1e-12)), np.maximum(sizes, 1) * (share / members).sum(0))


def simulate(levels: list[Level], doubt: float, rng: np.random.Generator) -> np.ndarray:
    """Numbers of classes that could have given these clusters, (DRAWS,); `doubt` is the error of the classes' sizes."""
    n_old = len(levels[0].held)
    draws = np.empty(DRAWS)
    for i in range(DRAWS):
        one = levels[rng.integers(len(levels))]
        held = np.maximum(one.held, 1e-3) * np.exp(doubt * rng.normal())
        left = max(0.0, one.k - n_old * rng.choice(held, n_old).mean())
        mean = held.mean()
        many = rng.choice(held, int(4 * left / mean) + 2 * n_old + 8)
        draws[i] = n_old + _filled(np.cumsum(many), left, mean)
    return draws


def _filled(reached: np.ndarray, left: float, mean: float) -> float:
    """How many of the drawn classes fill what is left, the last one by its share."""
    full = int(np.searchsorted(reached, left))
    if full >= len(reached):
        return len(reached) + (left - reached[-1]) / mean
    before = reached[full - 1] if full else 0.0
    return full + (left - before) / (reached[full] - before)


def _by_silhouette(data: CountData, x: Tensor, tree: np.ndarray, ks: np.ndarray) -> CountEstimate:
    """Without two labelled rows of one class there is nothing to calibrate by: compact and separate clusters decide."""
    scores = {k: silhouette(x, cut(tree, k), data.seed) for k in track(ks.tolist(), "counting clusters, silhouettes")}
    best = max(scores, key=lambda k: (scores[k], -k))
    spread = max(scores.values()) - min(scores.values())
    close = [k for k, value in scores.items() if value >= scores[best] - 0.1 * spread]
    what = "no class has two labelled rows: the number is the one whose clusters are the most compact"
    return CountEstimate(best, min(close), max(close), scores, value="silhouette", marked=best, note=what)
