"""Counting as known classes are counted when they are hidden: how many rows do they have, and how many clusters.

Half of the known classes are hidden, four times. The others teach the metric, so that hidden classes look in it as classes do
that nobody named. If known classes have a share of the rows, and every class holds as many clusters as hidden ones do, the number
of all classes follows. Everything hangs on that share, and no way to measure it is right everywhere; four are asked. Two of them
err little and at random where labels are many, the other two count too few, but keep their head where labels say nothing of how
large their class is. How far they disagree says how sure the number is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rowssl.clustering.tree import cut, ward_tree
from rowssl.core.console import track
from rowssl.counting.base import CountData, CountEstimate
from rowssl.counting.density import GOOD, LEVELS, Level, density, labelled_share, level
from rowssl.data.feed import sample_rows
from rowssl.methods.rehearsal import LEAST_CLASSES
from rowssl.methods.transfer import in_metric, power_of, principal_components

ROWS = 5_000  # rows in a tree; five trees are built
DIMS = 256
RHO = 0.15  # of the metric, as is usual in transfer
REPEATS = 2  # times that every known class is hidden
PARTS = 3  # of the labels of a shown class; one of them plays rows without a label
NEIGHBOURS = 10
FINE, COARSE = 5, 3  # clusters for each known class in which mates are counted, in the metric and without one
PULL = 20.0  # mates' worth of trust in the purity of all clusters when a class's own is estimated
PAIRS = 2.0  # pairs' worth of trust in the overall labelled share
# Fitted on sub-problems of the development collections, digits and Gaussian classes; see docs/counting.md.
TRUST = 0.65  # weight of the two ways that do not lean on cluster sizes
SHORTFALL = 0.15  # log units that rise as clusters agree less with classes
DISAGREEMENT, SPREAD, FEW, LEAST = 0.24, 0.6, 0.87, 0.03  # what the standard error is made of
PRIOR, PRIOR_ERROR = float(np.log(2)), 0.35  # log of all classes over known ones before anything was seen
COVER = 2.0  # standard errors to either end of the interval
UNSTABLE = 0.16  # standard error from which on the number is called unstable


@dataclass(frozen=True)
class Fold:
    """Some known classes hidden: their ids in order, rows in the metric of the others, and a tree of these."""

    hidden: np.ndarray
    x: Tensor
    tree: np.ndarray


@dataclass(frozen=True)
class Evidence:
    """Log of all classes over known ones by four ways to measure the known share, and what tells how good they are."""

    neighbours: float
    gate: float
    mates: float
    plain_mates: float
    agreement: float  # of clusters and hidden classes where it is best, 0 to 1
    pairs: float  # neighbours that are labelled alike

    def ways(self) -> np.ndarray:
        """The four, none of them below the known classes."""
        return np.clip([self.neighbours, self.gate, self.mates, self.plain_mates], 0, None)

    def combined(self) -> tuple[float, float]:
        """The log ratio and its standard error, drawn a little towards "as many novel classes as known ones"."""
        ways = self.ways()
        ratio = TRUST * ways[:2].mean() + (1 - TRUST) * ways[2:].mean() + SHORTFALL * (1 - self.agreement)
        parts = (DISAGREEMENT * (1 - self.agreement), SPREAD * ways.std(), FEW / max(1.0, self.pairs) ** 0.5, LEAST)
        weight, before = 1 / np.square(parts).sum(), PRIOR_ERROR**-2
        return float((weight * ratio + before * PRIOR) / (weight + before)), float((weight + before) ** -0.5)


def hidden(data: CountData) -> CountEstimate:
    """All classes from the rows and clusters of hidden known ones; with fewer than four to hide, what `density` says.

    The interval holds the truth nine times of ten on problems like those it was calibrated on.
    """
    rows = sample_rows(data.target, data.n_old, ROWS, data.seed)
    x, target = data.x[torch.from_numpy(rows)], data.target[rows]
    labels = np.bincount(target[target >= 0], minlength=data.n_old)
    if (labels > 1).sum() < LEAST_CLASSES:
        found = density(data)
        what = f"fewer than {LEAST_CLASSES} known classes have two labels, so none can be hidden and density counts"
        return CountEstimate(
            found.best, found.low, found.high, found.scores, axis=found.axis, value=found.value, marked=found.marked,
            note=f"{what}; {found.note}" if found.note else what,
        )  # fmt: skip
    y = components(x)
    evidence, agreement = gather(y, target, data.n_old, data.seed)
    ratio, error = evidence.combined()
    most = data.max_classes or len(data.x)

    def classes(log_ratio: float) -> float:
        return float(np.clip(data.n_old * np.exp(log_ratio), data.low, most))

    best = round(classes(ratio))
    note = ""
    if error > UNSTABLE:
        said = [round(classes(way)) for way in evidence.ways()]
        note = f"unstable: four ways to count say {min(said)} to {max(said)}, take the interval seriously"
    return CountEstimate(
        best, int(np.floor(classes(ratio - COVER * error))), int(np.ceil(classes(ratio + COVER * error))), agreement,
        axis="granularity: number of clusters", value="agreement with hidden classes",
        marked=max(agreement, key=lambda k: agreement[k]), note=note,
    )  # fmt: skip


def components(x: Tensor) -> Tensor:
    """Unit principal components of unit features, of their roots where none is negative: (n, d) -> (n, d')."""
    powered = power_of(x, bool((x >= 0).all()))
    mean, leading = principal_components(powered, min(DIMS, x.shape[1]))
    return F.normalize((powered - mean) @ leading, dim=1)


def gather(y: Tensor, target: np.ndarray, n_old: int, seed: int) -> tuple[Evidence, dict[int, float]]:
    """What the folds say of components (n, d), and the agreement of every granularity with hidden classes."""
    labels = np.bincount(target[target >= 0], minlength=n_old)
    several = np.flatnonzero(labels > 1)
    halves = []
    for repeat in range(REPEATS):
        order = np.random.default_rng([seed, 36, repeat]).permutation(several)
        halves += [np.sort(order[: len(order) // 2]), np.sort(order[len(order) // 2 :])]
    folds = [_fold(y, target, half) for half in track(halves, "counting classes, some of them hidden")]
    neighbours, mates, gate = (np.zeros(n_old) for _ in range(3))
    pairs = 0.0
    for number, fold in enumerate(folds):
        size, seen = neighbour_sizes(fold, target)
        neighbours[fold.hidden] += size / REPEATS
        pairs += seen / REPEATS
        k = min(FINE * n_old, len(target) // 4)
        mates[fold.hidden] += mate_sizes(cut(fold.tree, k), in_order(target, fold.hidden)) / REPEATS
        shown = np.setdiff1d(several, fold.hidden)
        gate[shown] += gate_sizes(y, target, fold.hidden, shown, seed + number // 2) / REPEATS
    plain = mate_sizes(cut(ward_tree(y), min(COARSE * n_old, len(target) // 4)), in_order(target, several))
    ks = granularities(len(target), n_old)
    levels = [
        [level(cut(fold.tree, k), in_order(target, fold.hidden), neighbours[fold.hidden]) for k in ks] for fold in folds
    ]
    agreement = np.array([[one.agreement for one in fold] for fold in levels]).mean(0)
    good = agreement >= GOOD * agreement.max()

    def way(sizes: np.ndarray) -> float:
        factor = [np.maximum(sizes, 1)[fold.hidden] / np.maximum(neighbours, 1)[fold.hidden] for fold in folds]
        ratios = [
            _ratio([Level(k, 0.0, fold[i].held * f) for fold, f in zip(levels, factor, strict=True)], k)
            for i, k in enumerate(ks) if good[i]
        ]  # fmt: skip
        return float(np.mean(ratios)) - np.log(n_old)

    sizes = np.zeros(n_old)
    sizes[several] = plain
    evidence = Evidence(way(neighbours), way(gate), way(mates), way(sizes), float(agreement.max()), pairs)
    return evidence, dict(zip(ks.tolist(), agreement.tolist(), strict=True))


def _ratio(levels: list[Level], k: int) -> float:
    """Log of the clusters there are over those a hidden class holds."""
    return float(np.log(k / max(1e-9, np.concatenate([one.held for one in levels]).mean())))


def _fold(y: Tensor, target: np.ndarray, half: np.ndarray) -> Fold:
    """Rows in the metric that the classes outside of `half` teach."""
    x = in_metric(y, torch.from_numpy(np.where(np.isin(target, half), -1, target)), RHO)
    return Fold(half, x, ward_tree(x))


def granularities(rows: int, n_old: int) -> np.ndarray:
    """Numbers of clusters to look at, from half of the known classes on."""
    top = max(n_old, min(rows // 3, max(40, 8 * n_old)))
    return np.unique(np.round(np.geomspace(max(2, n_old // 2), top, LEVELS)).astype(int))


def in_order(target: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Targets counted among some classes (in order) alone, -1 for all others: (n,)."""
    place = np.searchsorted(classes, target).clip(0, len(classes) - 1)
    return np.where(classes[place] == target, place, -1)


def neighbour_sizes(fold: Fold, target: np.ndarray) -> tuple[np.ndarray, float]:
    """Rows of each hidden class by the labels among neighbours in the metric of the others, and how many were alike."""
    rows = np.flatnonzero((target < 0) | np.isin(target, fold.hidden))
    own = in_order(target[rows], fold.hidden)
    share, doubt = labelled_share(fold.x[torch.from_numpy(rows)], own, len(fold.hidden), NEIGHBOURS)
    return np.bincount(own[own >= 0], minlength=len(fold.hidden)) / share, doubt**-2


def mate_sizes(cluster: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Rows of each class by how many of the labelled rows in a labelled row's cluster are labelled alike.

    Parameters
    ----------
    cluster, target
        Cluster of each row, and its class or -1, (n,).
    """
    labelled = target >= 0
    counts = np.zeros((int(cluster.max()) + 1, int(target.max()) + 1))
    np.add.at(counts, (cluster[labelled], target[labelled]), 1)
    labels, members = counts.sum(0), np.bincount(cluster)[:, None]
    alike = (counts * (counts - 1)).sum(0)
    other = (counts * (counts.sum(1, keepdims=True) - counts)).sum(0) / labelled.mean()
    mates = (counts * (members - 1)).sum(0)
    purity = np.clip(1 - other.sum() / max(1.0, mates.sum()), 0.1, 1)
    own = mates * np.clip((mates - other + PULL * purity) / (mates + PULL), 0.05, 1)
    overall = ((labels - 1) * own).sum() / max(1.0, alike.sum())
    found: np.ndarray = np.maximum(labels, 1 + ((labels - 1) * own + PAIRS * overall) / (alike + PAIRS))
    return found


def gate_sizes(y: Tensor, target: np.ndarray, hidden: np.ndarray, shown: np.ndarray, seed: int) -> np.ndarray:
    """Rows of each shown class by a gate that learns on the hidden ones what an unknown class looks like.

    Labels of the shown classes are left out in turn, so that rows with a label are seen as rows without one are. A logistic model
    tells them from hidden rows by their likeness to the nearest class and its lead on the next; the share of known rows among the
    unlabelled ones is then the most likely one, by EM.
    """
    from sklearn.linear_model import LogisticRegression

    own, away = in_order(target, shown), np.isin(target, hidden)
    part, free = _parts(own, seed), target < 0
    left, left_class = [], []
    unknown, rows = np.zeros((int(away.sum()), 2)), np.zeros((int(free.sum()), 2))
    votes = np.zeros((len(rows), len(shown)))
    for turn in range(PARTS):
        kept = np.where(part == turn, -1, own)
        x = in_metric(y, torch.from_numpy(kept), RHO)
        told = torch.from_numpy(kept >= 0)
        means = torch.zeros(len(shown), x.shape[1]).index_add_(0, torch.from_numpy(kept)[told], x[told])
        empty = torch.where(means.norm(dim=1) > 0, 0.0, -2.0)
        likeness = torch.addmm(empty, x, F.normalize(means, dim=1).T)
        two = likeness.topk(2, dim=1).values.numpy()
        seen = np.stack([two[:, 0], two[:, 0] - two[:, 1]], 1)
        asked = (part == turn) & (empty.numpy()[own.clip(0)] == 0)
        left.append(seen[asked])
        left_class.append(own[asked])
        unknown += seen[away] / PARTS
        rows += seen[free] / PARTS
        votes[np.arange(len(rows)), likeness.argmax(1).numpy()[free]] += 1 / PARTS
    known, known_class = np.concatenate(left), np.concatenate(left_class)
    labels = np.bincount(own[own >= 0], minlength=len(shown))
    if not len(known):  # rows without any direction: half of the others are as good a guess as any
        return labels + free.sum() / 2 / len(shown)
    both = np.concatenate([known, unknown])
    mean, scale = both.mean(0), both.std(0) + 1e-9
    hidden_class = in_order(target[away], hidden)
    weight_unknown = 1 / np.bincount(hidden_class)[hidden_class]
    count = np.maximum(1, np.bincount(known_class, minlength=len(shown)))
    size = np.zeros(len(shown))
    for _ in range(3):  # larger classes count for more once their size is known
        weight_known = ((size + 2) / count)[known_class] if size.any() else (1 / count)[known_class]
        weight = np.r_[weight_known / weight_known.sum(), weight_unknown / weight_unknown.sum()] * len(both) / 2
        model = LogisticRegression().fit((both - mean) / scale, np.arange(len(both)) < len(known), sample_weight=weight)
        size = (votes * _known_share(model.decision_function((rows - mean) / scale))[:, None]).sum(0)
    found: np.ndarray = size + labels
    return found


def _parts(own: np.ndarray, seed: int) -> np.ndarray:
    """Which part of its class's labels a row is in, (n,); -1 for rows of no class."""
    part, rng = np.full(len(own), -1), np.random.default_rng([seed, 37])
    for one in range(int(own.max()) + 1):
        rows = rng.permutation(np.flatnonzero(own == one))
        part[rows] = (np.arange(len(rows)) + (rng.integers(PARTS) if len(rows) >= PARTS else 0)) % PARTS
    return part


def _known_share(odds: np.ndarray) -> np.ndarray:
    """Probability that each row is of a known class, given the log odds at even shares, at the most likely share."""
    share = 0.5
    for _ in range(300):
        probability: np.ndarray = 1 / (1 + np.exp(-(odds + np.log(share / (1 - share)))))
        moved = float(np.clip(probability.mean(), 1e-3, 1 - 1e-3))
        if abs(moved - share) < 1e-6:
            break
        share = moved
    return probability
