"""Losses: pure functions, tensors in, scalar or one value per row out. Shapes: B rows, Q queue entries, C classes, d dimensions."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

LEAST = 1e-12  # of a mean probability in the logarithm


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


def class_losses(o: Tensor, q: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """Mean cross-entropy of crossed views (Eq. 4) and log C - H(mean prediction), both of predictions softmax(o / tau).

    o (2B, C) logits, all of the first view before all of the second; q (2B, C) their soft labels.
    """
    (q0, q1), (o0, o1) = q.chunk(2), (o / tau).chunk(2)
    return crossed_distillation((q0, q1), (o0, o1)), entropy_gap(F.softmax(o / tau, dim=1))


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
    """Eq. (3): weights[0] mean(l_u) + weights[1] mean(l_sup), and, without gradient, l_u (B,) and the mean of l_sup.

    Queries h (B, d), their own keys b (B, d), the queue's keys (Q, d); tau (B,) or a number. `rows` (R,) are the rows that have
    l_sup, `same` (R, Q) its positives, `ignored` (Q,) entries that are neither positive nor negative in it; `same_image` (B, Q)
    negatives to leave out of l_u.
    """
    positive, cosine = (h * b).sum(1), h @ keys.T
    l_u = info_nce(positive, cosine if same_image is None else cosine.masked_fill(same_image, -math.inf), tau)
    ignore = None if ignored is None else ignored.expand_as(same)
    l_sup = unified_contrastive(positive[rows] / sup_tau, cosine[rows] / sup_tau, same, ignore=ignore)
    mean_sup = l_sup.mean() if len(rows) else l_sup.sum()
    return weights[0] * l_u.mean() + weights[1] * mean_sup, l_u.detach(), mean_sup.detach()
