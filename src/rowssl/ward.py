"""Ward's tree: every number of clusters from one piece of work."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from rowssl.errors import InputError
from rowssl.progress import bar, track


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
