"""Contrastive affinity learning: which rows of a memory bank belong to the rows of a batch, and the loss that follows.

Symbols: b batch rows, M bank rows, N = b + M nodes, K neighbours. Features are unit rows. No loop over samples; the graph is
kept as lists of neighbours, so that N = 4,352 costs one product of features, one top-k and six sums over neighbours.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

ROUNDING = 1e-5  # relative


class Consensus:
    """C: how often two nodes are neighbours together, as a product with columns; never written out.

    A pair counts once for every node that has both among its K neighbours, and once for either being a neighbour of the
    other; no node is paired with itself. With B (N, N) the neighbours of each node this is C = B^T B - D + B + B^T, D the diagonal
    of B^T B. From K = 2 on no 0 of the products is lost to rounding: whatever D takes from stands beside a positive number.
    """

    def __init__(self, neighbours: Tensor) -> None:
        nodes, k = neighbours.shape
        self.neighbours = neighbours
        self.chosen_by = neighbours.flatten().argsort(stable=True) // k  # B^T, node by node
        times = torch.bincount(neighbours.flatten(), minlength=nodes)
        self.begin = times.cumsum(0) - times
        self.times = times[:, None]
        self.total = k * (self.times + 1)  # of a row of C

    def __matmul__(self, x: Tensor) -> Tensor:
        """C x, (N, n) -> (N, n)."""
        of_neighbours = F.embedding_bag(self.neighbours, x, mode="sum")  # B x
        return (
            F.embedding_bag(self.chosen_by, of_neighbours + x, self.begin, mode="sum") + of_neighbours - self.times * x
        )


def diffused_affinity(features: Tensor, rows: int, k: int) -> Tensor:
    """The first `rows` rows of Q = A A A^T + I, A = C / row sums: (N, d) -> (rows, N)."""
    nodes = len(features)
    similarity = (features @ features.T).fill_diagonal_(-math.inf)
    graph = Consensus(similarity.topk(min(k, nodes - 1), dim=1).indices)
    first = torch.eye(nodes, rows, dtype=features.dtype, device=features.device)
    columns = graph @ first / graph.total[:rows].T  # of A^T, for C is symmetric
    spread = (graph @ (graph @ (columns / graph.total))) / graph.total
    return (spread + first).T


def bank_affinity(batch: Tensor, bank: Tensor, k: int, quantile: float) -> Tensor:
    """Whether a bank row is taken for the class of a batch row: (b, d), (M, d) -> (b, M) bool.

    The threshold is the `quantile` of those affinities that exceed the mean of the non-zero ones, over the batch's rows.
    Graphs have many equal affinities; those at the threshold are left out, whichever way they were rounded.
    """
    affinity = diffused_affinity(torch.cat([batch, bank]), len(batch), k)
    mean = affinity.sum() / (affinity > 0).sum()
    above = affinity[affinity > mean]
    threshold = above.quantile(quantile) if len(above) else mean
    return (affinity > threshold * (1 + ROUNDING))[:, len(batch) :]


def sampled_negatives(positive: Tensor, count: int, order: Tensor) -> Tensor:
    """The first rows in a random order that are no positives, so many that with these they are `count`: (b, M) bool."""
    free = ~positive[:, order]
    chosen = free & (free.cumsum(1) <= count - positive.sum(1, keepdim=True))
    return torch.empty_like(chosen).index_copy_(1, order, chosen)


def linked(positive: Tensor, negative: Tensor, target: Tensor, bank_target: Tensor) -> tuple[Tensor, Tensor]:
    """Labels overrule: the same label must link, different labels cannot. Targets (b,) and (M,) have -1 for unlabelled."""
    both = (target >= 0)[:, None] & (bank_target >= 0)
    same = both & (target[:, None] == bank_target)
    different = both & ~same
    return (positive | same) & ~different, (negative & ~same) | (positive & different)


def affinity_loss(z: Tensor, key: Tensor, bank: Tensor, positive: Tensor, negative: Tensor, tau: float) -> Tensor:
    """Mean of -log p over a row's positives (its own key, and bank rows), p among its positives and negatives; then over rows.

    z, key (b, d), bank (M, d), positive and negative (b, M) bool -> scalar.
    """
    others = (z @ bank.T / tau).masked_fill(~(positive | negative), -math.inf)
    log_p = F.log_softmax(torch.cat([(z * key).sum(1, keepdim=True) / tau, others], dim=1), dim=1)
    total = log_p[:, 0] + log_p[:, 1:].masked_fill(~positive, 0.0).sum(1)
    return -(total / (1 + positive.sum(1))).mean()


def cal_loss(
    z: Tensor,
    key: Tensor,
    bank: Tensor,
    *,
    target: Tensor,
    bank_target: Tensor,
    k: int,
    quantile: float,
    count: int,
    order: Tensor,
    tau: float,
) -> Tensor:
    """The whole of it: positives from the graph over the keys (b, d) and the bank, negatives, links by labels, loss."""
    found = bank_affinity(key, bank, k, quantile)
    positive, negative = linked(found, sampled_negatives(found, count, order), target, bank_target)
    return affinity_loss(z, key, bank, positive, negative, tau)
