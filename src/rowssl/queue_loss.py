"""The two losses against the queue, with their gradient in closed form: the hot loop of DTS.

`losses.info_nce` and `losses.unified_contrastive` say what is computed; this does it in few passes over the (B, Q) matrix.
Cosines lie in [-1, 1], so no maximum need be searched before the exponential, and both gradients meet in one product with
the queue.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

SAFE = 40.0  # 1 / temperature up to which e^{2 / tau} and its inverse fit into float32 without a shift


class _QueueLoss(torch.autograd.Function):
    """Weighted sum of mean l_u and mean l_sup; forward also finds d/dh, backward only scales it."""

    @staticmethod
    def forward(
        context: Any,
        h: Tensor,  # (B, d) queries
        b: Tensor,  # (B, d) their keys
        keys: Tensor,  # (Q, d)
        tau: Tensor,  # (B,)
        same_image: Tensor | None,  # (B, Q) negatives to leave out of l_u
        rows: Tensor,  # (R,) rows with l_sup
        same: Tensor,  # (R, Q) positives of l_sup
        ignored: Tensor | None,  # (Q,) entries that are neither positive nor negative in l_sup
        sup_tau: float,
        weights: tuple[float, float],
    ) -> tuple[Tensor, Tensor, Tensor]:
        inverse = 1 / tau
        positive = (h * b).sum(1)

        # l_u = log(e^{(p-1)/tau} + sum_Q e^{(c-1)/tau}) - (p-1)/tau
        cosine = h @ keys.T
        e = (cosine - 1).mul_(inverse[:, None])
        if same_image is not None:
            e.masked_fill_(same_image, -torch.inf)
        shifted = (positive - 1) * inverse
        if inverse.max() > SAFE:  # a very low temperature: the largest exponent must be found after all
            top = torch.maximum(shifted, e.amax(1)) if len(keys) else shifted
            shifted = shifted - top
            e.sub_(top[:, None])
        e.exp_()
        own = shifted.exp()
        total = e.sum(1) + own
        l_u = total.log() - shifted
        scale = weights[0] / len(h) * inverse
        gradient = e.mul_((scale / total)[:, None])  # dL/dc from l_u
        gradient_own = scale * (own / total - 1)

        # l_sup = softplus(log sum_N e^{s} + log sum_P e^{-s}), s = c / sup_tau
        l_sup = l_u.new_zeros(len(rows))
        if len(rows):
            e = cosine[rows].div_(sup_tau).exp_()
            if ignored is not None:
                e.mul_(~ignored)
            where = same.nonzero(as_tuple=True)
            value = e[where]
            e[where] = 0.0  # not subtracted from the sum: where all are positives, rounding would leave a negative
            negatives = e.sum(1).clamp_min_(1e-30)
            s = positive[rows] / sup_tau
            own = (-s).exp()
            flipped = 1 / value
            positives = own.index_add(0, where[0], flipped)
            l_sup = F.softplus(negatives.log() + positives.log())
            slope = -torch.expm1(-l_sup) * (weights[1] / (len(rows) * sup_tau))  # sigmoid = 1 - e^{-softplus}
            e.mul_((slope / negatives)[:, None])
            e[where] = -(slope / positives)[where[0]] * flipped
            gradient.index_add_(0, rows, e)
            gradient_own.index_add_(0, rows, -slope / positives * own)
        context.save_for_backward(gradient @ keys + gradient_own[:, None] * b)
        mean_sup = l_sup.mean() if len(rows) else l_sup.sum()
        total_loss = weights[0] * l_u.mean() + weights[1] * mean_sup
        context.mark_non_differentiable(l_u, mean_sup)
        return total_loss, l_u, mean_sup

    @staticmethod
    @once_differentiable
    def backward(context: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = context.saved_tensors
        return (upstream[0] * gradient, *(None,) * 9)


def queue_loss(
    h: Tensor,
    b: Tensor,
    keys: Tensor,
    tau: Tensor | float,
    *,
    rows: Tensor,
    same: Tensor,
    ignored: Tensor | None = None,
    same_image: Tensor | None = None,
    sup_tau: float = 1.0,
    weights: tuple[float, float],
) -> tuple[Tensor, Tensor, Tensor]:
    """weights[0] mean(l_u) + weights[1] mean(l_sup), and, without gradient, l_u (B,) and the mean of l_sup.

    h, b (B, d) unit rows; keys (Q, d); tau (B,) or a number; `rows` (R,) are the rows that have l_sup, `same` (R, Q) its positives.
    """
    if not isinstance(tau, Tensor):
        tau = h.new_full((len(h),), tau)
    result: tuple[Tensor, Tensor, Tensor] = _QueueLoss.apply(
        h, b, keys, tau, same_image, rows, same, ignored, sup_tau, weights
    )
    return result
