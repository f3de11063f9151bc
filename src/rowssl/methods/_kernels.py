"""What `losses.py` and `density.py` say, in fewer passes over large matrices; a method is understood without this file.

`class_losses` and `queue_loss` are those of `losses.py` with their gradient in closed form: over (2B, C) logits, which is what a
step with a thousand classes costs more than one with a hundred beside its products, and over (B, Q) cosines, the hot loop of DTS.
Cosines lie in [-1, 1], so no maximum need be searched before the exponential, and both gradients meet in one product with the
queue. `largest` and `nearest_prototype` are `topk` and `argmax` by vector instructions.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from rowssl.methods.losses import LEAST

SAFE = 40.0  # 1 / temperature up to which e^{2 / tau} and its inverse fit into float32 without a shift
GROUP = 8  # entries of a row that `largest` takes together


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
    """`losses.class_losses`; each row of q has a sum of 1."""
    result: tuple[Tensor, Tensor] = _ClassLosses.apply(o, q, tau)
    return result


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
    """`losses.queue_loss`; h and b are unit rows."""
    if not isinstance(tau, Tensor):
        tau = h.new_full((len(h),), tau)
    result: tuple[Tensor, Tensor, Tensor] = _QueueLoss.apply(
        h, b, keys, tau, same_image, rows, same, ignored, sup_tau, weights
    )
    return result


def largest(values: Tensor, k: int) -> Tensor:
    """The k largest of each row, largest first: (M, Q) -> (M, k). As `topk`, in a fraction of its time for a long queue."""
    where = _among(values, k)
    if where is None:
        return values.topk(k, dim=1).values
    candidates = values.gather(1, where)
    if candidates.device.type != "cpu":
        return candidates.topk(k, dim=1).values
    ascending = np.sort(candidates.numpy(), axis=1)  # with vector instructions: a seventh of topk's time
    return torch.from_numpy(ascending[:, : -k - 1 : -1].copy())


def _among(values: Tensor, k: int) -> Tensor | None:
    """Columns among which are the k largest of each row, (M, Q) -> (M, n); None where these would not be few.

    They lie in those k groups whose largest members are largest, and these groups are found in the same way.
    """
    columns = values.shape[1]
    whole = columns - columns % GROUP
    if not columns or whole < 4 * k * GROUP:
        return None
    # Entries of a group are far apart: maxima of whole stretches of memory, whichever way it lies; the other way takes
    # thirty times as long.
    across = values.stride(0) < values.stride(1)
    tops = (
        values.T[:whole].unflatten(0, (GROUP, -1)).amax(0).T
        if across
        else values[:, :whole].unflatten(1, (GROUP, -1)).amax(1)
    )
    inner = _among(tops, k)
    if inner is None:
        groups = _largest_few(tops.contiguous(), k)
    else:
        groups = inner.gather(1, _largest_few(tops.gather(1, inner), k))
    member = torch.arange(0, whole, whole // GROUP, device=values.device)
    found = (groups[:, None] + member[:, None]).flatten(1)
    rest = torch.arange(whole, columns, device=values.device).expand(len(values), -1)
    return torch.cat([found, rest], dim=1) if whole < columns else found


def _largest_few(tops: Tensor, k: int) -> Tensor:
    """Positions of the k largest of each row, in any order: (M, G) -> (M, k)."""
    if tops.device.type == "cpu":  # in half of the time of topk, by vector instructions
        least = np.partition(tops.numpy(), -k, axis=1)[:, -k, None]
        chosen = tops >= torch.from_numpy(least)
        if bool((chosen.sum(1) == k).all()):  # no equals of the k-th, and numbers all of them
            return chosen.nonzero()[:, 1].view(-1, k)
    return tops.topk(k, dim=1).indices


def nearest_prototype(similarity: Tensor) -> Tensor:
    """The prototype of largest similarity, the first of equals, for each entry of the queue: (M, Q) -> (Q,).

    Fast where the similarities of one entry lie side by side in memory, as those of `to_queue` do.
    """
    if similarity.device.type != "cpu":
        return similarity.max(0).indices
    return torch.from_numpy(similarity.T.numpy().argmax(1))  # with vector instructions: a fifth of torch's time
