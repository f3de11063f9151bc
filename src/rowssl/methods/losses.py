"""Losses: pure functions, tensors in, scalar or one value per row out. Shapes: B rows, Q queue entries, C classes, d dimensions.

The first half says what is computed. `class_losses` and `queue_loss` compute the same with their gradient in closed form, in few
passes over the large matrices: (2B, C) logits, which is what a step with a thousand classes costs more than one with a hundred
beside its products, and (B, Q) cosines, the hot loop of DTS. Cosines lie in [-1, 1], so no maximum need be searched before the
exponential, and both gradients meet in one product with the queue.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

LEAST = 1e-12  # of a mean probability in the logarithm
SAFE = 40.0  # 1 / temperature up to which e^{2 / tau} and its inverse fit into float32 without a shift


def info_nce(positive: Tensor, negative: Tensor, temperature: Tensor | float) -> Tensor:
    """InfoNCE with an extra column for the positive key (Eq. 2): (B,), (B, Q) cosines -> (B,).

    The positive stands in the denominator once; `temperature` may differ from anchor to anchor, (B,) or a number.
    """
    tau = temperature[:, None] if isinstance(temperature, Tensor) else temperature
    return torch.logsumexp(torch.cat([positive[:, None], negative], dim=1) / tau, dim=1) - positive / temperature


def unified_contrastive(positive: Tensor, cosine: Tensor, same: Tensor, *, ignore: Tensor | None = None) -> Tensor:
    """l_sup: log(1 + sum_{n in N} e^{s_n} * sum_{p in P} e^{-s_p}), P = own key and queue entries of the same label.

    positive (B,), cosine (B, Q) and same (B, Q) bool -> (B,). The cosines come divided by their temperature.
    `ignore` (B, Q) marks entries that are neither positive nor negative. With one positive it is InfoNCE at temperature 1.
    """
    outside = same if ignore is None else same | ignore
    negatives = torch.logsumexp(cosine.masked_fill(outside, -math.inf), dim=1)
    positives = torch.logsumexp(torch.cat([-positive[:, None], (-cosine).masked_fill(~same, -math.inf)], dim=1), dim=1)
    return F.softplus(negatives + positives)


def info_nce_batch(
    first: Tensor, second: Tensor, temperature: float | Tensor = 1.0, keys: Tensor | None = None
) -> Tensor:
    """InfoNCE within the batch: 2B anchors, the other view is the positive, the remaining 2B - 2 rows are negatives.

    `keys` (2B, d): what the anchors are compared with instead of each other, for instance a teacher's features.
    """
    features = torch.cat([first, second])
    rows = len(features)
    logits = features @ (features if keys is None else keys).T / temperature
    logits = logits.masked_fill(torch.eye(rows, dtype=torch.bool, device=logits.device), -math.inf)
    positive = torch.arange(rows, device=logits.device).roll(rows // 2)
    return F.cross_entropy(logits, positive)


def sup_con(
    first: Tensor, second: Tensor, target: Tensor, temperature: float = 0.07, keys: Tensor | None = None
) -> Tensor:
    """Supervised contrastive loss, "out" form, over the labelled rows' two views; 0 when no row is labelled.

    `keys` (2B, d) of all rows, as in `info_nce_batch`.
    """
    labelled = target >= 0
    features = torch.cat([first[labelled], second[labelled]])
    if len(features) == 0:
        return first.sum() * 0.0
    label = target[labelled].repeat(2)
    itself = torch.eye(len(features), dtype=torch.bool, device=features.device)
    others = features if keys is None else keys[labelled.repeat(2)]
    logits = (features @ others.T / temperature).masked_fill(itself, -math.inf)
    log_probability = F.log_softmax(logits, dim=1)
    same = (label[:, None] == label[None, :]) & ~itself
    return -(log_probability.masked_fill(~same, 0.0).sum(1) / same.sum(1)).mean()


def soft_cross_entropy(target: Tensor, logits: Tensor) -> Tensor:
    """Mean over rows of -sum_k target_k log softmax(logits)_k: (B, C), (B, C) -> scalar."""
    return -(target * F.log_softmax(logits, dim=1)).sum(1).mean()


def entropy_gap(probability: Tensor, prior: Tensor | None = None) -> Tensor:
    """log C - H(mean row): 0 when the mean prediction is uniform, log C when it is one class. (B, C) -> scalar.

    With a prior (C,), the divergence KL(mean row || prior), which is the same for a uniform one.
    """
    mean = probability.mean(0)
    expected = math.log(len(mean)) if prior is None else -(mean * prior.log()).sum()
    return expected + torch.xlogy(mean, mean.clamp_min(LEAST)).sum()


def crossed_distillation(teacher: tuple[Tensor, Tensor], student: tuple[Tensor, Tensor]) -> Tensor:
    """Each view's soft label supervises the other view's prediction: average of the two crossed pairs (Eq. 4)."""
    return 0.5 * (soft_cross_entropy(teacher[0], student[1]) + soft_cross_entropy(teacher[1], student[0]))


def labelled_cross_entropy(student: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    """Mean cross-entropy of both views' logits on the labelled rows: 2 x (B, C), (B,) -> scalar; 0 when none is labelled."""
    labelled = target >= 0
    both = torch.cat([student[0][labelled], student[1][labelled]])
    return F.cross_entropy(both, target[labelled].repeat(2)) if len(both) else student[0].sum() * 0.0


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
