"""Tailedness: density around learnt prototypes, and what DTS makes of it.

Symbols: prototypes m_j (M, d), keys b_i (B, d), the queue Q (Q, d), densities d_j (M,), scores s_i (B,), uncertainty u (C,).
Everything is on the unit sphere, so a similarity is a dot product. No loop over prototypes, samples or classes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rowssl.methods._kernels import largest


def neighbour_density(similarity: Tensor, k: int, *, weighting: str = "rank", scale: str = "mean") -> Tensor:
    """d_j of Eq. (6) from similarities to the queue: (M, Q) -> (M,).

    `weighting`: "rank" gives the nearest of the K neighbours weight K and the farthest 1 (Dudani); "uniform" weighs alike.
    `scale`: "mean" keeps d in [-1, 1]; "sum" multiplies by K, as the public code's broadcasting does.
    Beside an empty queue every density is 0.
    """
    k = min(k, similarity.shape[1])
    nearest = largest(similarity, k)
    if weighting == "rank":
        weight = torch.arange(k, 0, -1, dtype=nearest.dtype, device=nearest.device)
    else:
        weight = torch.ones(k, dtype=nearest.dtype, device=nearest.device)
    density = nearest @ (weight / weight.sum())
    return density * k if scale == "sum" else density


def to_queue(prototypes: Tensor, keys: Tensor) -> Tensor:
    """Similarities (M, Q), an entry of the queue after the other in memory: `largest` and `nearest_prototype` want them so."""
    return (keys @ prototypes.T).T


def dynamic_temperature(score: Tensor, low: Tensor, high: Tensor, tau_min: float, tau_max: float) -> Tensor:
    """tau(x_i) of Eq. (9): sparse (tail) anchors get tau_min, dense (head) ones tau_max. (B,) -> (B,).

    `low` and `high` are the least and greatest density of all prototypes; where they are equal the middle is used.
    """
    spread = high - low
    ratio = torch.where(spread > 0, (score - low) / spread.clamp_min(1e-12), torch.full_like(score, 0.5))
    return tau_min + ratio.clamp(0, 1) * (tau_max - tau_min)


def group_mean(rows: Tensor, group: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """Mean of the rows of each group and the group sizes: (N, d), (N,) -> (groups, d), (groups,). Empty groups are 0."""
    total = rows.new_zeros(groups, rows.shape[1]).index_add_(0, group, rows)
    size = torch.bincount(group, minlength=groups)
    return total / size.clamp_min(1)[:, None], size


def update_prototypes(prototypes: Tensor, keys: Tensor, assigned: Tensor, momentum: float) -> Tensor:
    """Eq. (8): m_j <- normalise(lambda m_j + (1 - lambda) mean of its keys); a prototype without keys stays as it is."""
    mean, size = group_mean(keys, assigned, len(prototypes))
    moved = F.normalize(momentum * prototypes + (1 - momentum) * mean, dim=1)
    return torch.where(size[:, None] > 0, moved, prototypes)


class ClassStatistics(nn.Module):
    """Streaming mean and population variance of a score per class over one epoch: the queue S^c in three numbers a class."""

    count: Tensor
    total: Tensor
    square: Tensor

    def __init__(self, classes: int) -> None:
        super().__init__()
        for name in ("count", "total", "square"):
            self.register_buffer(name, torch.zeros(classes, dtype=torch.float64))

    def add(self, score: Tensor, assigned: Tensor) -> None:
        """Append s_i to S^c, c = assigned_i."""
        value = score.double()
        self.count.index_add_(0, assigned, torch.ones_like(value))
        self.total.index_add_(0, assigned, value)
        self.square.index_add_(0, assigned, value * value)

    def std(self) -> Tensor:
        """Population standard deviation per class; 0 for a class with none or one."""
        n = self.count.clamp_min(1)
        variance = (self.square / n - (self.total / n) ** 2).clamp_min(0)
        return variance.sqrt().float()

    def clear(self) -> None:
        """Start the next epoch."""
        for buffer in (self.count, self.total, self.square):
            buffer.zero_()


def refresh_uncertainty(u: Tensor, fresh: Tensor, *, momentum: float = 0.0, empty: str = "zero") -> Tensor:
    """u of Eq. (10) from this epoch's standard deviations (C,), smoothed by `momentum` (0 in the paper, 0.9 in its code).

    A class whose standard deviation is 0 (none or one sample) is "empty": "zero", "keep" the previous value, "one", or "max",
    the largest of this epoch: nothing is less certain than a class without samples, and its head is called back into use.
    """
    smoothed = momentum * u + (1 - momentum) * fresh
    fallback = {"zero": torch.zeros_like(u), "keep": u, "one": torch.ones_like(u), "max": fresh.max().expand_as(u)}[
        empty
    ]
    return torch.where(fresh > 0, smoothed, fallback)


def tail_discovery(score: Tensor, member: Tensor, share: float = 0.1) -> float:
    """phi of appendix D.1: how over-represented a group is among the `share` least dense samples; 1 = as by chance.

    score (N,) density, member (N,) bool. Above 1 for the tail and below 1 for the head means tail samples are found.
    """
    n = max(1, round(share * len(score)))
    sparse = torch.argsort(score, stable=True)[:n]
    return float((member[sparse].double().mean() / member.double().mean()).item())
