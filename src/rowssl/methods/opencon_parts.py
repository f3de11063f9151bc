"""The parts of OpenCon: who looks novel, how prototypes move, and how they become the common classifier."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rowssl import distributed, losses
from rowssl.nn.heads import CosineClassifier
from rowssl.progress import track
from rowssl.schedules import cosine

READOUT_STEPS, READOUT_ROWS, READOUT_RATE, READOUT_MOMENTUM, READOUT_SCALE = 1000, 256, 0.3, 0.9, 20.0


def looks_novel(cosine: Tensor, target: Tensor, n_old: int, known_share: float) -> Tensor:
    """Unlabelled rows further from all known prototypes than labelled ones are: cosines (B, C), target (B,) -> (B,) bool.

    The score is the largest cosine to a known prototype, standardised within the row; the threshold lambda is that quantile of
    the labelled rows' scores which lets `known_share` of them pass. Without a labelled row to compare with, all are novel.
    """
    labelled = target >= 0
    if n_old == 0 or not bool(labelled.any()):
        return ~labelled
    standard = (cosine - cosine.mean(1, keepdim=True)) / cosine.std(1, keepdim=True).clamp_min(1e-12)
    score = standard[:, :n_old].amax(1)
    return ~labelled & (score < torch.quantile(score[labelled], 1 - known_share))


def moved_prototypes(prototypes: Tensor, h: Tensor, assigned: Tensor, rank: Tensor, momentum: float) -> Tensor:
    """Moving average over the rows of each class in the order of their rank: (C, d), (B, d), (B,), (B,) -> (C, d).

    The closed form of m <- gamma m + (1 - gamma) h applied one row after the other, normalised once at the end: a row with k
    later ones of its class weighs (1 - gamma) gamma^k. Rows assigned -1 move nothing.
    """
    used = assigned >= 0
    h, assigned, rank = h[used], assigned[used], rank[used]
    later = ((assigned[:, None] == assigned[None, :]) & (rank[:, None] < rank[None, :])).sum(1)
    count = torch.bincount(assigned, minlength=len(prototypes))
    moved = prototypes * (momentum ** count.to(h))[:, None]
    moved = moved.index_add(0, assigned, h * ((1 - momentum) * momentum ** later.to(h))[:, None])
    return torch.where(count[:, None] > 0, F.normalize(moved, dim=1), prototypes)


def readout_rows(count: int, seed: int) -> np.ndarray:
    """Which of `count` rows each step of `follow_prototypes` looks at, (steps, READOUT_ROWS)."""
    steps = min(READOUT_STEPS, max(200, count // 4))  # on small data a few hundred rows are seen often enough
    return np.random.default_rng([seed, 43]).integers(count, size=(steps, READOUT_ROWS))


@torch.no_grad()
def follow_prototypes(
    classifier: CosineClassifier, z: Tensor, h: Tensor, prototypes: Tensor, steps: np.ndarray
) -> None:
    """Fit the cosine classifier on z to what the prototypes say of h: (n, d), (n, out), (C, out); one step for each of `steps`.

    Both sides are softmax(s cosine) with one scale s, and the loss is their cross-entropy; neither z nor h changes. The descent
    is written out: `torch.optim.SGD` would load a compiler (see `rowssl.sgd`, whose fused step has other last bits).
    """
    weight = classifier.weight.detach().clone().requires_grad_()
    velocity = torch.zeros_like(weight, requires_grad=False)
    for number in track(range(len(steps)), "classifier from prototypes", enabled=distributed.rank() == 0):
        rows = torch.from_numpy(steps[number]).to(z.device)
        teacher = F.softmax(READOUT_SCALE * (h[rows] @ prototypes.T), dim=1)
        with torch.enable_grad():
            student = READOUT_SCALE * (F.normalize(z[rows], dim=1) @ F.normalize(weight, dim=1).T)
            loss = losses.soft_cross_entropy(teacher, student)
        (gradient,) = torch.autograd.grad(loss, weight)
        velocity.mul_(READOUT_MOMENTUM).add_(gradient)
        weight.add_(velocity, alpha=-cosine(number, len(steps), READOUT_RATE, 0.0))
    classifier.set_directions(weight.detach())
