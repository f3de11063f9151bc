"""Which classes of a run are probably one, and which are probably two, each with a probability.

Two groups of rows are compared: two classes that might be one, or the two parts that a split would make of a class. How their
neighbourhoods mix, and how often the other group is a row's second choice, gives the probability that both are of one class. The
weights were learnt on runs of the closed form on the development collections with too many and too few classes
(benchmarks/proposals.py); the known classes of the run itself correct them: their own parts are of one class, and they are not.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rowssl.clustering.assignment import knn
from rowssl.clustering.kmeans import kmeans
from rowssl.core.errors import InputError
from rowssl.runs.edits import EditedClass
from rowssl.runs.run import Run

NEAREST = 5  # known and novel classes that a class is compared with
NEIGHBOURS = 20
ASKED, REFERENCE = 4_096, 20_000  # rows whose neighbours are looked for, and among which
MOST = 2_000  # rows of a class that its parts are found from
CHUNK = 4_096
SMALLEST, LEAST_PART = 6, 2  # rows of a class, and of the smaller part, for a split to be proposed
# Log odds of "one class": intercept, mixing, second choices.
MERGE = np.array([-3.98, 7.78, 1.86])  # of pairs of classes, learnt on runs with 1.3 times too many
SPLIT = np.array([-2.72, 2.56, 3.58])  # of the parts of a class, learnt on runs with 0.8 times as many as there are
USUAL = np.array([-3.9, 9.5, 2.1])  # of known classes, whole and in parts, over the same runs
WORTH = 20.0  # examples that the known classes of a run count for


@dataclass(frozen=True)
class Proposal:
    """One change to the classes that is probably right.

    Attributes
    ----------
    kind
        "merge" or "split".
    classes, names
        Ids of the two classes to merge, the one that stays first, or of the one to split; and what people call them.
    probability
        That both classes are one, or that the parts are two.
    sizes
        Rows of each class, or of each part.
    command
        What does it.
    """

    kind: str
    classes: tuple[str, ...]
    names: tuple[str, ...]
    probability: float
    sizes: tuple[int, ...]
    command: str


def suggest(run: Run, most: int | None = None) -> list[Proposal]:
    """Merges and splits of a run, the most probable first.

    Two known classes are never one, nor are parts of a class that a person split, or what was made of these.

    Parameters
    ----------
    run
        Its classes are those people made by their edits.
    most
        How many to return.
    """
    classes, group = run.edits.classes, run.answers.head
    where = str(run.folder or "RUN")
    if len(group) <= NEIGHBOURS:
        raise InputError(f"{where} holds {len(group)} images, which are too few to compare classes.")
    x = torch.from_numpy(np.ascontiguousarray(run.answers.feature))
    n_known = sum(one.known for one in classes)
    whole, parts, pairs, sides = compared(x, group, len(classes), n_known)
    known = (pairs < n_known).all(1)
    unlike, alike = compare(whole, pairs[known]), compare(parts, sides[sides[:, 0] < 2 * n_known])
    shift = learnt(unlike, alike) - USUAL
    found: list[Proposal] = []

    def add(kind: str, places: list[int], probability: float, sizes: np.ndarray) -> None:
        ids = tuple(classes[place].id for place in places)
        words = ["rowssl", "edit", where, kind, *ids]
        found.append(
            Proposal(kind, ids, tuple(classes[place].name for place in places), probability,
                     tuple(map(int, sizes)), " ".join(map(shlex.quote, words)))
        )  # fmt: skip

    open_pairs = pairs[~known & ~split_by_a_person(classes, pairs)]
    for pair, same in zip(open_pairs, same_class(compare(whole, open_pairs), MERGE + shift), strict=True):
        places = sorted(pair.tolist(), key=lambda place: (place >= n_known, -whole.size[place], place))
        add("merge", places, float(same), whole.size[places])
    possible = (parts.size[sides].sum(1) >= SMALLEST) & (parts.size[sides].min(1) >= LEAST_PART)
    sides = sides[possible]
    for side, same in zip(sides, same_class(compare(parts, sides), SPLIT + shift), strict=True):
        add("split", [int(side[0]) // 2], 1 - float(same), np.sort(parts.size[side])[::-1])
    found.sort(key=lambda one: (-one.probability, one.kind, one.classes))
    return found[:most]


def split_by_a_person(classes: Sequence[EditedClass], pairs: np.ndarray) -> np.ndarray:
    """Whether two classes hold parts of one head, which nothing but an edit can have taken apart: (P, 2) -> (P,)."""
    heads = [{leaf.head for leaf in one.leaves} for one in classes]
    return np.array([not heads[a].isdisjoint(heads[b]) for a, b in pairs.tolist()], dtype=bool)


def compared(
    x: Tensor, group: np.ndarray, n_groups: int, n_known: int
) -> tuple[Groups, Groups, np.ndarray, np.ndarray]:
    """Classes and their parts, the pairs of near classes and the pairs of parts: for rows (N, d) and their classes (N,)."""
    near = neighbours_of(x)
    whole, parts = groups_of(x, group, n_groups, near), groups_of(x, halves(x, group), 2 * n_groups, near)
    both = np.flatnonzero(parts.size.reshape(-1, 2).min(1) > 0)
    return whole, parts, nearest_pairs(whole, n_known), np.stack([2 * both, 2 * both + 1], axis=1)


def same_class(compared: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Probability that both groups are of one class: (P, 2) -> (P,)."""
    found: np.ndarray = 1 / (1 + np.exp(-(weights[0] + compared @ weights[1:])))
    return found


def learnt(unlike: np.ndarray, alike: np.ndarray) -> np.ndarray:
    """Weights of a logistic model of a run's known classes, drawn to the usual ones; these where it has too few of them."""
    if not len(unlike) or not len(alike):
        return USUAL
    design = np.c_[np.ones(len(unlike) + len(alike)), np.concatenate([unlike, alike])]
    same = np.arange(len(design)) >= len(unlike)
    weight = np.where(same, WORTH / 2 / len(alike), WORTH / 2 / len(unlike))
    strength, beta = np.array([1.0, 2.0, 2.0]), USUAL.copy()
    for _ in range(40):  # Newton
        p = 1 / (1 + np.exp(-np.clip(design @ beta, -30, 30)))
        gradient = design.T @ (weight * (p - same)) + strength * (beta - USUAL)
        curvature = (design * (weight * p * (1 - p))[:, None]).T @ design + np.diag(strength)
        move = np.clip(np.linalg.solve(curvature, gradient), -2, 2)
        beta -= move
        if np.abs(move).max() < 1e-6:
            break
    return beta


@dataclass(frozen=True)
class Groups:
    """Rows in groups, and what comparing two of them needs."""

    x: Tensor  # (N, d) unit
    group: np.ndarray  # (N,)
    centre: Tensor  # (G, d) unit, zero for a group without rows
    size: np.ndarray  # (G,)
    near: tuple[np.ndarray, np.ndarray]  # rows whose neighbours are known (Q,), and these (Q, k)


def groups_of(x: Tensor, group: np.ndarray, n_groups: int, near: tuple[np.ndarray, np.ndarray]) -> Groups:
    """Groups numbered from 0, with their centres."""
    sums = torch.zeros(n_groups, x.shape[1]).index_add_(0, torch.from_numpy(group), x)
    return Groups(x, group, torch.nn.functional.normalize(sums, dim=1), np.bincount(group, minlength=n_groups), near)


def neighbours_of(x: Tensor, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Some rows and the nearest other rows of each, among an even sample of all."""
    order = np.random.default_rng([seed, 38]).permutation(len(x))
    reference = np.sort(order[:REFERENCE])
    asked = np.sort(order[:ASKED])
    k = min(NEIGHBOURS, len(reference) - 1)
    found = reference[knn(x[torch.from_numpy(asked)], x[torch.from_numpy(reference)], k + 1)[1].numpy()]
    own = found == asked[:, None]
    own[~own.any(1), -1] = True
    return asked, found[~own].reshape(len(asked), k)


def compare(groups: Groups, pairs: np.ndarray) -> np.ndarray:
    """How two groups mix, and how often the other one is a row's second choice: (P, 2) -> (P, 2)."""
    return np.stack([_mixing(groups, pairs), _second(groups, pairs)], axis=1)


def _second(groups: Groups, pairs: np.ndarray) -> np.ndarray:
    """Share of a group's rows that are nearest to the other group among all others, mean of both: (P,)."""
    second, gone = [], torch.from_numpy(np.where(groups.size > 0, 0.0, -2.0)).float()
    for begin in range(0, len(groups.x), CHUNK):
        like = torch.addmm(gone, groups.x[begin : begin + CHUNK], groups.centre.T)
        like[torch.arange(len(like)), torch.from_numpy(groups.group[begin : begin + CHUNK])] = -2.0
        second.append(like.argmax(1).numpy())
    count = _counts(groups.group, np.concatenate(second), len(groups.size))
    a, b = pairs.T
    found: np.ndarray = (count(a, b) / np.maximum(groups.size[a], 1) + count(b, a) / np.maximum(groups.size[b], 1)) / 2
    return found


def _counts(one: np.ndarray, other: np.ndarray, n_groups: int) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """How often two groups stand beside each other, as a function of both; no matrix of all pairs is held."""
    keys, counts = np.unique(one.astype(np.int64) * n_groups + other, return_counts=True)

    def count(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        key = a.astype(np.int64) * n_groups + b
        place = np.searchsorted(keys, key).clip(0, len(keys) - 1)
        return np.where(keys[place] == key, counts[place], 0).astype(float)

    return count


def _mixing(groups: Groups, pairs: np.ndarray) -> np.ndarray:
    """How often neighbours are of the other group, over how often they would be if both were one: (P,), 1 = always mixed."""
    asked, found = groups.near
    one_of = np.broadcast_to(groups.group[asked][:, None], found.shape).ravel()
    count = _counts(one_of, groups.group[found].ravel(), len(groups.size))
    a, b = pairs.T
    total = (groups.size[a] + groups.size[b]).astype(float)
    mixed = np.zeros(len(pairs))
    for one, other in ((a, b), (b, a)):
        across, within = count(one, other) + 0.5 * groups.size[other] / total * 0.2, count(one, one) + 0.1
        mixed += across / (across + within) / (groups.size[other] / total) / 2
    return mixed


def halves(x: Tensor, group: np.ndarray) -> np.ndarray:
    """2 group + part of every row, the parts those that `rowssl edit split` would make: (N,)."""
    found = 2 * group.astype(np.int64)
    order = np.argsort(group, kind="stable")
    for rows in np.split(order, np.cumsum(np.bincount(group))[:-1]):
        if len(rows) < 2:
            continue
        some = rows if len(rows) <= MOST else np.sort(np.random.default_rng(0).permutation(rows)[:MOST])
        centres = kmeans(x[torch.from_numpy(some)], 2, seed=0, to_the_end=True).centers
        directions = torch.nn.functional.normalize(centres, dim=1)
        found[rows] += (x[torch.from_numpy(rows)] @ directions.T).argmax(1).numpy()
    return found


def nearest_pairs(groups: Groups, n_known: int) -> np.ndarray:
    """Pairs (a < b) of which one is among the nearest known or novel classes of the other: (P, 2)."""
    gone = torch.from_numpy(np.where(groups.size > 0, 0.0, -2.0)).float()
    found: set[tuple[int, int]] = set()
    for begin in range(0, len(groups.centre), CHUNK):
        like = torch.addmm(gone, groups.centre[begin : begin + CHUNK], groups.centre.T)
        like[torch.arange(len(like)), torch.arange(begin, begin + len(like))] = -3.0
        for first, part in ((0, like[:, :n_known]), (n_known, like[:, n_known:])):
            if not part.shape[1]:
                continue
            nearest = (part.topk(min(NEAREST, part.shape[1]), dim=1).indices + first).tolist()
            for one, others in enumerate(nearest, start=begin):
                found |= {
                    (min(one, b), max(one, b)) for b in others if b != one and groups.size[one] and groups.size[b]
                }
    return np.array(sorted(found), dtype=np.int64).reshape(-1, 2)
