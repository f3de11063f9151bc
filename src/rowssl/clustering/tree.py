"""Ward's tree: every number of clusters from one piece of work."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from rowssl.core.console import bar, track
from rowssl.core.errors import InputError


def ward_tree(x: Tensor) -> np.ndarray:
    """Merges of Ward's method, (N - 1, 4) as SciPy writes them, from distances that one matrix product gives."""
    from scipy.cluster.hierarchy import linkage

    n = len(x)
    if n < 2:
        raise InputError("One row has no clusters to count.")
    norms = x.square().sum(1)
    condensed = np.empty(n * (n - 1) // 2)
    for i in track(range(n - 1), "distances", enabled=n > 5_000):
        if i % 512 == 0:
            block = norms[i : i + 512, None] - 2 * (x[i : i + 512] @ x[i:].T) + norms[i:]
            distance, begin = block.clamp_min_(0).sqrt_().numpy(), i
        start = i * n - i * (i + 1) // 2
        condensed[start : start + n - i - 1] = distance[i - begin, i - begin + 1 :]
    with bar("building the tree", enabled=n > 5_000):
        return linkage(condensed, "ward")


def cut(tree: np.ndarray, k: int) -> np.ndarray:
    """The k clusters of a tree, (N,) from 0."""
    from scipy.cluster.hierarchy import fcluster

    return np.unique(fcluster(tree, k, "maxclust"), return_inverse=True)[1]


def weighted_ward_tree(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """As `ward_tree`, of points (M, d) that stand for `weight` (M,) rows each: micro-clusters of data too large for a tree.

    Nearest-neighbour chains on a matrix of merging costs; a merge changes one row of it by the Lance-Williams formula.
    """
    m = len(x)
    size = np.r_[weight.astype(np.float64), np.zeros(m - 1)]
    squared = np.maximum((x**2).sum(1)[:, None] - 2 * x @ x.T + (x**2).sum(1), 0)
    cost = (2 * squared * (weight[:, None] * weight) / (weight[:, None] + weight)).astype(np.float32)
    np.fill_diagonal(cost, np.inf)
    node = np.arange(m)  # which cluster a row of the matrix stands for
    alive, n_of = np.ones(m, dtype=bool), weight.astype(np.float64).copy()
    merges: list[tuple[int, int, float]] = []
    chain: list[int] = []
    for _ in range(m - 1):
        if not chain:
            chain.append(int(np.flatnonzero(alive)[0]))
        while True:
            a = chain[-1]
            b = int(cost[a].argmin())
            if len(chain) > 1 and cost[a, chain[-2]] <= cost[a, b]:
                b = chain[-2]
            if len(chain) > 1 and b == chain[-2]:
                break
            chain.append(b)
        del chain[-2:]
        height = float(cost[a, b])
        merges.append((a, b, height))
        row = ((n_of[a] + n_of) * cost[a] + (n_of[b] + n_of) * cost[b] - n_of * height) / (n_of[a] + n_of[b] + n_of)
        row[~alive] = np.inf
        n_of[a] += n_of[b]
        alive[b] = False
        cost[a], cost[:, a] = row, row
        cost[b], cost[:, b] = np.inf, np.inf
        cost[a, a] = np.inf
    tree = np.empty((m - 1, 4))
    for step, which in enumerate(np.argsort([height for *_, height in merges], kind="stable")):
        a, b, height = merges[which]
        left, right = sorted((node[a], node[b]))
        size[m + step] = size[left] + size[right]
        tree[step] = left, right, height**0.5, size[m + step]
        node[a] = m + step
    return tree


def free_clusters(tree: np.ndarray, labelled: np.ndarray, count: int) -> list[np.ndarray]:
    """Leaves of the `count` largest clusters without a labelled leaf, where the tree is cut so that there are so many.

    labelled (N,) says which leaves have labels; fewer clusters come back where there are fewer unlabelled leaves.
    """
    n = len(labelled)
    pairs = tree[:, :2].astype(np.int64)
    holds = np.r_[labelled, np.zeros(n - 1, dtype=bool)]
    for step, (a, b) in enumerate(pairs):
        holds[n + step] = holds[a] or holds[b]
    top, free, step = {2 * n - 2}, int(not holds[-1]), n - 2
    while free < count and step >= 0:  # the last merge that is left is undone
        a, b = pairs[step]
        top.discard(n + step)
        top |= {int(a), int(b)}
        free += int(not holds[a]) + int(not holds[b]) - int(not holds[n + step])
        step -= 1
    found = [_leaves(pairs, n, node) for node in sorted(top) if not holds[node]]
    return sorted(found, key=len, reverse=True)[:count]


def _leaves(pairs: np.ndarray, n: int, node: int) -> np.ndarray:
    """The leaves below a node."""
    leaves, pending = [], [node]
    while pending:
        one = pending.pop()
        if one < n:
            leaves.append(one)
        else:
            pending += pairs[one - n].tolist()
    return np.array(sorted(leaves))
