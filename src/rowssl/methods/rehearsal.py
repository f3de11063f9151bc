"""Hidden known classes: the only judges of an answer about novel classes that need no truth.

Half of the known classes lose all their labels and a part of the other labels is held back; a method then finds the hidden
classes as it will find the novel ones, and the labels say how often it is right. Each class is hidden in one of two folds.
What comes out decides between candidates, and calibrates confidence: docs/methods/transfer.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rowssl.clustering.assignment import hungarian
from rowssl.methods.heads import TEMPERATURE

LEAST_CLASSES = 4  # known classes with two labels each; with fewer nothing can be hidden and still be learnt from
HELD = 0.25  # of the labels of the classes that are not hidden
ROWS = 3_000  # rows that take part in a fold, all labelled ones among them where they are fewer


@dataclass(frozen=True)
class Fold:
    """A problem whose answer is known in part: targets (n,) with classes renumbered, and the true class of what was hidden."""

    target: Tensor  # (n,) 0 .. n_known - 1, -1 = unlabelled
    truth: Tensor  # (n,) the class in the fold's numbers, hidden ones from n_known on; -1 where it was not labelled
    n_known: int

    @property
    def asked(self) -> Tensor:
        """Rows whose label was taken away."""
        return (self.truth >= 0) & (self.target < 0)


@dataclass(frozen=True)
class Trial:
    """What the closed form said of the rows that were asked, (m,) each."""

    truth: np.ndarray  # class in the fold's numbers
    hidden: np.ndarray  # whether that class was hidden
    novel: np.ndarray  # whether the answer is a novel cluster
    right: np.ndarray
    odds: np.ndarray  # logit of the answer's probability
    cluster_odds: np.ndarray  # its mean over all rows with the same answer

    def recalls(self) -> tuple[np.ndarray, np.ndarray]:
        """Share of right answers of each class that was asked, and whether it was hidden."""
        _, place = np.unique(self.truth, return_inverse=True)
        right = np.bincount(place, self.right) / np.bincount(place)
        return right, np.bincount(place, self.hidden) > 0


def rehearsal_rows(target: Tensor, seed: int) -> np.ndarray:
    """The rows that take part: all labelled ones, then unlabelled ones by chance, in order, at most `ROWS`."""
    rng = np.random.default_rng([seed, 35])
    order = np.argsort((target.numpy() < 0) + 0.5 * rng.random(len(target)), kind="stable")
    return np.sort(order[:ROWS])


def folds(target: Tensor, n_old: int, seed: int) -> list[Fold]:
    """Two folds in which every known class is hidden once, alternating by size; none where too few classes have labels."""
    count = torch.bincount(target[target >= 0], minlength=n_old)
    if int((count >= 2).sum()) < LEAST_CLASSES:
        return []
    order = torch.argsort(-count, stable=True)
    rng = np.random.default_rng([seed, 33])
    found = []
    for parity in (0, 1):
        shown = order[1 - parity :: 2]
        shown = shown[count[shown] > 0]
        hidden = order[parity::2]
        place = torch.full((n_old,), -1)
        place[shown], place[hidden] = torch.arange(len(shown)), len(shown) + torch.arange(len(hidden))
        truth = torch.where(target >= 0, place[target.clamp_min(0)], -1)
        kept = torch.where(truth < len(shown), truth, -1)
        for one in range(len(shown)):
            rows = (truth == one).nonzero()[:, 0].numpy()
            back = rng.permutation(rows)[: round(HELD * len(rows)) if len(rows) > 2 else 0]
            kept[torch.from_numpy(back)] = -1
        found.append(Fold(kept, truth, len(shown)))
    return found


def try_out(x: Tensor, fold: Fold, centroids: Tensor) -> Trial:
    """Judge centroids (C, d), the fold's known classes first, on rows x (n, d)."""
    logits = x @ centroids.T / TEMPERATURE
    top, head = torch.softmax(logits, dim=1).max(1)
    odds = top.clamp(1e-6, 1 - 1e-6).logit()
    size = torch.bincount(head, minlength=len(centroids))
    mean = torch.zeros(len(centroids)).index_add_(0, head, odds) / size.clamp_min(1)
    asked = fold.asked
    truth, answer = fold.truth[asked], head[asked]
    hidden, novel = truth >= fold.n_known, answer >= fold.n_known
    right = answer == truth
    both = hidden & novel
    if both.any():
        rows, columns = answer[both] - fold.n_known, truth[both] - fold.n_known
        size_of = torch.bincount(truth[hidden] - fold.n_known)
        table = torch.zeros(len(centroids) - fold.n_known, len(size_of))
        table.index_put_((rows, columns), torch.ones(len(rows)), accumulate=True)
        share = table / size_of.clamp_min(1)
        clusters, classes = hungarian(share)
        match = torch.full((len(table),), -1)
        match[torch.from_numpy(clusters)] = torch.from_numpy(classes)
        right = right.float()
        right[both] = (match[rows] == columns).float() * _kept_without(table, rows, columns)
    values = (truth, hidden, novel, right, odds[asked], mean[answer])
    return Trial(*(value.numpy() for value in values))


def _kept_without(table: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """How far each of the answers that were counted in a table (clusters, classes) would be matched if it had not been: 0.5 to 1.

    A matching of few rows fits their chance: the mean of with and without the row itself is nearer to what new rows will see.
    """
    own = table[rows, columns] - 1
    others = table.clone()
    others[rows, columns] = -1
    rest = torch.stack(
        [table[:, column].index_fill(0, row, -1).max() for row, column in zip(rows, columns, strict=True)]
    )
    without = torch.where(own > rest, 1.0, torch.where(own == rest, 0.5, 0.0))
    return 0.5 + 0.5 * without


def score(trials: list[Trial], share_novel: float) -> np.ndarray:
    """One number for every class that was asked; their mean is the balanced accuracy with such a share of novel classes."""
    recall, hidden = (np.concatenate(part) for part in zip(*(trial.recalls() for trial in trials), strict=True))
    weight = np.where(hidden, share_novel / max(1, hidden.sum()), (1 - share_novel) / max(1, (~hidden).sum()))
    values: np.ndarray = recall * weight * len(recall) / weight.sum()
    return values


@dataclass(frozen=True)
class Confidence:
    """log-odds of being right = slope odds + shift, apart for known and novel answers; of novel ones also by their cluster."""

    known: tuple[float, float]  # slope, shift
    novel: tuple[float, float, float]  # slope, shift, weight of the cluster's mean odds
    expected: float  # accuracy on unlabelled rows
    low: float
    high: float  # in nine of ten cases

    def expected_facts(self) -> dict[str, float]:
        """The accuracy to expect on unlabelled pictures, in percent, with nine of ten cases between `low` and `high`."""
        return {name: round(100 * getattr(self, name), 1) for name in ("expected", "low", "high")}

    def of_rows(self, trial: Trial) -> np.ndarray:
        """How likely the answers of a trial are right, (m,)."""
        known = self.known[0] * trial.odds + self.known[1]
        novel = self.novel[0] * trial.odds + self.novel[1] + self.novel[2] * trial.cluster_odds
        return 1 / (1 + np.exp(-np.where(trial.novel, novel, known)))

    def of_heads(self, n_old: int, mean_odds: Tensor) -> tuple[Tensor, Tensor]:
        """Slope and shift of every head, given the mean odds of its rows: (C,), (C,)."""
        slope, shift = torch.full_like(mean_odds, self.novel[0]), self.novel[1] + self.novel[2] * mean_odds
        slope[:n_old], shift[:n_old] = self.known
        return slope, shift


def calibrate(trials: list[Trial], share_novel: float, seed: int = 0) -> Confidence:
    """Confidence from trials, with hidden rows counted as often as novel rows are met among the unlabelled."""
    hidden, novel, right, odds, cluster, truth = (
        np.concatenate([getattr(trial, name) for trial in trials])
        for name in ("hidden", "novel", "right", "odds", "cluster_odds", "truth")
    )
    weight = np.where(hidden, share_novel / max(1, hidden.sum()), (1 - share_novel) / max(1, (~hidden).sum()))
    weight = weight * len(weight) / weight.sum()
    known = _logistic(odds[~novel, None], right[~novel], weight[~novel])
    both = _logistic(np.stack([odds, cluster], 1)[novel], right[novel], weight[novel])
    fold = np.repeat(np.arange(len(trials)), [len(trial.truth) for trial in trials])
    groups = np.unique(np.stack([fold, truth]), axis=1, return_inverse=True)[1].reshape(-1)
    sums, weights = np.bincount(groups, weight * right), np.bincount(groups, weight)
    rng = np.random.default_rng([seed, 34])
    drawn = rng.integers(len(sums), size=(1000, len(sums)))
    spread = sums[drawn].sum(1) / np.maximum(weights[drawn].sum(1), 1e-12)
    low, high = np.quantile(spread, [0.05, 0.95])
    mean = float(sums.sum() / weights.sum())
    return Confidence((known[1], known[0]), (both[1], both[0], both[2]), mean, float(low), float(high))


def reliability(trials: list[Trial], share_novel: float, bins: int = 10) -> dict[str, list[list[float]]]:
    """Mean confidence, share right and number of answers in each bin, of known and of novel answers apart.

    Every fold is judged by a calibration fitted on the others; with one fold there is nothing to say.
    """
    if len(trials) < 2:
        return {}
    found: dict[str, list[list[float]]] = {}
    said, right, novel = [], [], []
    for number, trial in enumerate(trials):
        rule = calibrate([other for at, other in enumerate(trials) if at != number], share_novel)
        said.append(rule.of_rows(trial))
        right.append(trial.right)
        novel.append(trial.novel)
    confidence, correct, new = np.concatenate(said), np.concatenate(right), np.concatenate(novel)
    for kind, mask in (("known", ~new), ("novel", new)):
        place = np.minimum((confidence[mask] * bins).astype(int), bins - 1)
        found[kind] = [
            [round(float(values[mask][place == one].mean()), 4) for values in (confidence, correct)]
            + [int((place == one).sum())]
            for one in np.unique(place)
        ]
    return found


def _logistic(x: np.ndarray, right: np.ndarray, weight: np.ndarray) -> list[float]:
    """Intercept and coefficients of a logistic regression drawn a little towards "as the odds say": (m, p) -> 1 + p."""
    prior = np.zeros(1 + x.shape[1])
    prior[1] = 0.5
    design = np.c_[np.ones(len(x)), x]
    strength = np.diag([0.05] + [1.0] * x.shape[1])
    beta = prior.copy()
    for _ in range(30):  # Newton
        p = 1 / (1 + np.exp(-np.clip(design @ beta, -30, 30)))
        gradient = design.T @ (weight * (p - right)) + strength @ (beta - prior)
        curvature = (design * (weight * p * (1 - p))[:, None]).T @ design + strength
        move = np.linalg.solve(curvature, gradient)
        beta -= np.clip(move, -2, 2)
        if np.abs(move).max() < 1e-6:
            break
    beta[1] = max(beta[1], 0.0)  # a higher probability never means less confidence
    return [float(value) for value in beta]
