"""Contrastive affinity learning: which rows of a memory bank belong to the rows of a batch, and the loss that follows.

Symbols: b batch rows, M bank rows, N = b + M nodes, K neighbours. Features are unit rows. No loop over samples; the graph is
sparse (about K^2 entries a row), so that N = 4,352 costs one product of features, one top-k and a few sparse products.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

ROUNDING = 1e-5  # relative


def consensus(neighbours: Tensor) -> tuple[Tensor, Tensor]:
    """How often two nodes are neighbours together: (N, K) -> places (2, E), in order, and counts (E,), all above 0.

    A pair counts once for every node that has both among its K neighbours, and once for either being a neighbour of the
    other. The counts are symmetric, and no node is paired with itself.
    """
    nodes, k = neighbours.shape
    different = ~torch.eye(k, dtype=torch.bool, device=neighbours.device)
    shared = (neighbours[:, :, None] * nodes + neighbours[:, None, :])[:, different]
    itself = torch.arange(nodes, device=neighbours.device)[:, None]
    pairs = torch.cat(
        [shared.flatten(), (itself * nodes + neighbours).flatten(), (neighbours * nodes + itself).flatten()]
    )
    place, count = pairs.unique(return_counts=True)
    return torch.stack([place // nodes, place % nodes]), count


def diffused_affinity(features: Tensor, rows: int, k: int) -> Tensor:
    """The first `rows` rows of Q = A A A^T + I, A the row-normalised consensus graph: (N, d) -> (rows, N)."""
    nodes = len(features)
    similarity = (features @ features.T).fill_diagonal_(-math.inf)
    place, count = consensus(similarity.topk(min(k, nodes - 1), dim=1).indices)
    count = count.to(features)
    total = count.new_zeros(nodes).index_add_(0, place[0], count)

    def graph(value: Tensor) -> Tensor:
        return torch.sparse_coo_tensor(place, value, (nodes, nodes), check_invariants=False, is_coalesced=True)

    normal, transposed = (
        graph(count / total[place[0]]),
        graph(count / total[place[1]]),
    )  # A^T, for the counts are symmetric
    first = place[1] < rows
    start = count.new_zeros(nodes, rows)  # the first columns of A^T
    start[place[0][first], place[1][first]] = (count / total[place[1]])[first]
    spread = torch.sparse.mm(normal, torch.sparse.mm(transposed, start)).T
    return spread + torch.eye(rows, nodes, dtype=spread.dtype, device=spread.device)


def bank_affinity(batch: Tensor, bank: Tensor, k: int, quantile: float) -> Tensor:
    """Whether a bank row is taken for the class of a batch row: (b, d), (M, d) -> (b, M) bool.

    The threshold is the `quantile` of those affinities that exceed the mean of the non-zero ones, over the batch's rows.
    Graphs have many equal affinities; those at the threshold are left out, whichever way they were rounded.
    """
    affinity = diffused_affinity(torch.cat([batch, bank]), len(batch), k)
    mean = affinity[affinity > 0].mean()
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
