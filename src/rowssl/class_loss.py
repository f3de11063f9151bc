"""The classification loss and its mean-entropy regulariser, with their gradient in closed form.

`losses.soft_cross_entropy` and `losses.entropy_gap` say what is computed; this does it in few passes over the (2B, C) logits, which
is what a step with a thousand classes costs more than one with a hundred beside its products.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from rowssl.losses import LEAST


class _ClassLosses(torch.autograd.Function):
    """Both losses; backward has d/do of any weighted sum of them."""

    @staticmethod
    def forward(context: Any, o: Tensor, q: Tensor, tau: float) -> tuple[Tensor, Tensor]:
        n, half = len(o), len(o) // 2
        log_p = F.log_softmax(o / tau, dim=1)
        # Each view's soft label supervises the other view's prediction.
        surprise = torch.linalg.vecdot(q[:half], log_p[half:]).sum() + torch.linalg.vecdot(q[half:], log_p[:half]).sum()
        p = log_p.exp_()
        mean = p.mean(0)
        context.tau = tau
        context.save_for_backward(p, q, mean)
        return -surprise / n, math.log(o.shape[1]) + torch.xlogy(mean, mean.clamp_min(LEAST)).sum()

    @staticmethod
    @once_differentiable
    def backward(context: Any, *upstream: Tensor) -> tuple[Tensor, None, None]:
        p, q, mean = context.saved_tensors
        n, half = len(p), len(p) // 2
        # d/dlog p of the first is -q, of the second p (log mean + 1) / n; then through the softmax, where q sums to 1.
        slope = upstream[1] / n * (mean.clamp_min(LEAST).log() + (mean >= LEAST))
        weight = upstream[0] / n
        gradient = p * (slope + (weight - p @ slope)[:, None])
        gradient[:half].addcmul_(q[half:], -weight)
        gradient[half:].addcmul_(q[:half], -weight)
        return gradient.div_(context.tau), None, None


def class_losses(o: Tensor, q: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """Mean cross-entropy of crossed views (Eq. 4) and log C - H(mean prediction), both of predictions softmax(o / tau).

    o (2B, C) logits, all of the first view before all of the second; q (2B, C) their soft labels, each row of sum 1.
    """
    result: tuple[Tensor, Tensor] = _ClassLosses.apply(o, q, tau)
    return result
