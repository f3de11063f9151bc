"""The formulas once more as plain Python loops in double precision, from the text of the papers alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

Rows = Sequence[np.ndarray] | np.ndarray


def dot(a: np.ndarray, b: np.ndarray) -> float:
    """Sum of products."""
    return float(sum(float(x) * float(y) for x, y in zip(a, b, strict=True)))


def unit(a: np.ndarray) -> np.ndarray:
    """A vector of length 1."""
    return a / math.sqrt(dot(a, a))


def softmax(logits: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """One row's probabilities."""
    top = max(logits)
    weight = [math.exp((x - top) / temperature) for x in logits]
    return np.array([w / sum(weight) for w in weight])


def info_nce(positive: float, negative: Sequence[float], tau: float) -> float:
    """-log of the positive's share, the positive once in the denominator."""
    own = math.exp(positive / tau)
    return -math.log(own / (own + sum(math.exp(n / tau) for n in negative)))


def unified(positives: Sequence[float], negatives: Sequence[float]) -> float:
    """log(1 + sum_n e^n * sum_p e^-p)."""
    return math.log(1 + sum(math.exp(n) for n in negatives) * sum(math.exp(-p) for p in positives))


def info_nce_batch(first: Rows, second: Rows, tau: float) -> float:
    """Mean over 2B anchors; every other row but the positive is a negative."""
    features, total = [*first, *second], 0.0
    rows, half = len(features), len(features) // 2
    for i in range(rows):
        mate = (i + half) % rows
        negatives = [dot(features[i], features[j]) for j in range(rows) if j not in (i, mate)]
        total += info_nce(dot(features[i], features[mate]), negatives, tau)
    return total / rows


def sup_con(first: Rows, second: Rows, target: Sequence[int], tau: float) -> float:
    """Khosla's "out" form over both views of the labelled rows."""
    chosen = [i for i in range(len(target)) if target[i] >= 0]
    features = [first[i] for i in chosen] + [second[i] for i in chosen]
    label = [target[i] for i in chosen] * 2
    total = 0.0
    for i in range(len(features)):
        others = [j for j in range(len(features)) if j != i]
        denominator = sum(math.exp(dot(features[i], features[j]) / tau) for j in others)
        mates = [j for j in others if label[j] == label[i]]
        total -= sum(dot(features[i], features[j]) / tau - math.log(denominator) for j in mates) / len(mates)
    return total / len(features)


def cross_entropy(target: np.ndarray, logits: np.ndarray) -> float:
    """-sum_k target_k log softmax(logits)_k of one row."""
    return -sum(t * math.log(p) for t, p in zip(target, softmax(logits), strict=True))


def crossed(teacher: tuple[Rows, Rows], student: tuple[Rows, Rows]) -> float:
    """Both directions, mean over rows."""
    rows = len(teacher[0])
    one = sum(cross_entropy(teacher[0][i], student[1][i]) for i in range(rows)) / rows
    two = sum(cross_entropy(teacher[1][i], student[0][i]) for i in range(rows)) / rows
    return (one + two) / 2


def entropy_gap(probability: Rows) -> float:
    """log C - H(mean row)."""
    mean = [sum(row[k] for row in probability) / len(probability) for k in range(len(probability[0]))]
    return math.log(len(mean)) + sum(p * math.log(p) for p in mean if p > 0)


def density(prototype: np.ndarray, queue: Rows, k: int, official: bool) -> float:
    """Rank-weighted mean cosine of the K nearest queue entries; the public code's value is their plain sum."""
    nearest = sorted((dot(prototype, key) for key in queue), reverse=True)[:k]
    if official:
        return sum(nearest)
    weights = [len(nearest) - rank for rank in range(len(nearest))]
    return sum(w * s for w, s in zip(weights, nearest, strict=True)) / sum(weights)


def nearest(row: np.ndarray, centres: Rows) -> int:
    """Number of the centre with the largest cosine."""
    return max(range(len(centres)), key=lambda j: dot(centres[j], row))


def moved(prototypes: Rows, keys: Rows, momentum: float) -> list[np.ndarray]:
    """Every prototype a step towards the mean of the keys that are nearest to it."""
    mine: list[list[np.ndarray]] = [[] for _ in prototypes]
    for key in keys:
        mine[nearest(key, prototypes)].append(key)
    return [
        unit(momentum * m + (1 - momentum) * sum(u) / len(u)) if u else m for m, u in zip(prototypes, mine, strict=True)
    ]


def gelu(x: np.ndarray) -> np.ndarray:
    """x times the normal distribution function."""
    return np.array([v * 0.5 * (1 + math.erf(v / math.sqrt(2))) for v in x])


class Network:
    """Adapter tail, projector and cosine classifier of one row, on a method's own weights (name -> array)."""

    def __init__(self, weights: dict[str, np.ndarray]) -> None:
        self.w = {name: value.astype(np.float64) for name, value in weights.items()}

    def feature(self, x: np.ndarray) -> np.ndarray:
        """z = y + W2 gelu(W1 norm(y)), y = gain (x - centre)."""
        w = self.w
        y = w["tail.gain"] * (x - w["tail.centre"])
        centred = y - y.mean()
        normal = centred / math.sqrt((centred**2).mean() + 1e-5) * w["tail.norm.weight"] + w["tail.norm.bias"]
        hidden = gelu(w["tail.fc1.weight"] @ normal + w["tail.fc1.bias"])
        return y + w["tail.fc2.weight"] @ hidden + w["tail.fc2.bias"]

    def logits(self, z: np.ndarray) -> np.ndarray:
        """Cosines to the classifier's rows."""
        return np.array([dot(unit(row), unit(z)) for row in self.w["classifier.weight"]])

    def embed(self, z: np.ndarray) -> np.ndarray:
        """h, a unit vector."""
        for layer in (0, 2, 4):
            z = self.w[f"projector.layers.{layer}.weight"] @ z + self.w[f"projector.layers.{layer}.bias"]
            z = z if layer == 4 else gelu(z)
        return unit(z)


def teacher_temperature(epoch: int) -> float:
    """30 equally spaced values from 0.07 to 0.04, then 0.04."""
    return float(np.linspace(0.07, 0.04, 30)[min(epoch, 29)])
