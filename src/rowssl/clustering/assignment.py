"""Who belongs to whom: nearest neighbours, one-to-one assignment (Hungarian), and optimal transport (Sinkhorn)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rowssl.clustering.kmeans import BLOCK_CELLS, as_matrix
from rowssl.core.errors import InputError


def knn(query: Any, reference: Any, k: int) -> tuple[Tensor, Tensor]:
    """Cosine similarity (Q, k), largest first, and row in `reference` (Q, k) of the neighbours of each query."""
    query, reference = as_matrix(query, "query"), as_matrix(reference, "reference")
    if not 1 <= k <= len(reference):
        raise InputError(f"k={k} neighbours cannot be taken from {len(reference)} reference rows")
    query = torch.nn.functional.normalize(query, dim=1)
    reference = torch.nn.functional.normalize(reference, dim=1)
    rows = max(1, BLOCK_CELLS // len(reference))
    found = [(query[i : i + rows] @ reference.T).topk(k, dim=1) for i in range(0, max(1, len(query)), rows)]
    return torch.cat([f.values for f in found]), torch.cat([f.indices for f in found])


def hungarian(weight: Any, maximize: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of the one-to-one assignment with the largest (or smallest) total weight."""
    from scipy.optimize import linear_sum_assignment

    if isinstance(weight, Tensor):
        weight = weight.detach().cpu().numpy()
    return linear_sum_assignment(weight, maximize=maximize)


def sinkhorn(scores: Any, prior: Any = None, epsilon: float = 0.05, iterations: int = 3) -> Tensor:
    """Soft assignment (N, K) of rows to columns: rows sum to 1, column means approach `prior` (uniform if None).

    Sinkhorn-Knopp on `exp(scores / epsilon)` in the log domain; a column with prior 0 receives nothing.
    """
    if not isinstance(scores, Tensor):
        scores = torch.from_numpy(np.require(scores, requirements=["C", "W"]))
    n, k = scores.shape
    logits = scores / epsilon
    if prior is None:
        log_column = logits.new_full((k,), np.log(n / k))
    else:
        share = torch.as_tensor(prior, dtype=logits.dtype, device=logits.device)
        if share.shape != (k,) or bool((share < 0).any()) or float(share.sum()) <= 0:
            raise InputError(f"prior must be {k} non-negative numbers that are not all zero")
        log_column = (n * share / share.sum()).log()
    row = logits.new_zeros(n)
    column = logits.new_zeros(k)
    for _ in range(iterations):
        column = log_column - torch.logsumexp(logits + row[:, None], dim=0)
        row = -torch.logsumexp(logits + column, dim=1)
    return torch.softmax(logits + column, dim=1)
