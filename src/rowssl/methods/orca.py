"""ORCA (Cao et al., ICLR 2022): pairs of neighbours, and a supervised loss held back while the model is uncertain.

L = L_S + eta_1 L_P + eta_2 R, section 3 of its paper; o = scale times the cosine logits, p = softmax(o), view 1 is batch view 0.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rowssl.data.feed import Batch, Feed
from rowssl.methods import losses
from rowssl.methods.base import HeadPrior, Method, Step, joined, option

EQUAL = 1e-6  # cosines that differ by less differ by rounding


class ORCA(Method):
    """No projector and no contrastive loss: everything acts on the classifier's probabilities."""

    name: ClassVar[str] = "orca"
    label: ClassVar[str] = "ORCA"

    u_bar: Tensor  # mean uncertainty of the unlabelled rows, (); refreshed before every epoch

    class Options(Method.Options):
        """Hyper-parameters of ORCA."""

        scale: float = option(10.0, "s: inverse temperature of the cosine logits")
        margin: Literal["uncertainty", "fixed", "zero"] = option(
            "uncertainty", "lambda u_bar; fixed: always at its cap; zero: plain cross-entropy"
        )
        margin_cap: float = option(0.5, "the margin is at most scale times this")
        eta_pair: float = option(0.3, "eta_1, weight of L_P; 1 in the paper, with batches of 512 and nearer neighbours")
        eta_prior: float = option(1.0, "eta_2, weight of R")
        prior: Literal["uniform", "true_prior"] = option(
            "uniform", "P(y) that R assumes for a batch; true_prior: oracle"
        )

    options: Options

    def __init__(self, tail: nn.Module, *, oracle_truth: Tensor | None = None, **arguments: Any) -> None:
        super().__init__(tail, **arguments)
        oracle = self.options.prior == "true_prior"
        self.prior = HeadPrior(torch.ones(self.n_classes), oracle=oracle, truth=oracle_truth)
        self.register_buffer("u_bar", torch.zeros(()))

    def begin_epoch(self, feed: Feed, epoch: int) -> None:
        """u_bar = mean of 1 - max_k p_k over the unlabelled rows, on a clean pass."""
        if len(feed.unlabelled) == 0:
            return  # nothing to be uncertain of
        self.eval()
        found = (self._probability(self.predict_logits(x)).max(1) for _, x in feed.chunks(feed.unlabelled))
        pairs = joined((torch.stack([top.values, top.indices.float()], dim=1) for top in found), len(feed.unlabelled))
        confidence, head = pairs.T.contiguous()
        self.u_bar.copy_(1 - confidence.mean())
        if self.prior.oracle:
            rows, seen = torch.from_numpy(feed.unlabelled).to(feed.device), feed.targets[feed.targets >= 0]
            share = self.prior.share(head.long(), rows, self.n_old)
            if len(seen):  # half of a batch is labelled
                share = 0.5 * share + 0.5 * torch.bincount(seen, minlength=self.n_classes) / len(seen)
            self.prior.value.copy_(share)

    def _probability(self, cosine: Tensor) -> Tensor:
        return F.softmax(self.options.scale * cosine, dim=1)

    def loss(self, batch: Batch) -> Step:
        """Cross-entropy with the uncertainty's margin, pairs drawn together, and the mean prediction kept near P(y)."""
        opt = self.options
        o, (z,) = self.two_views(batch, unit_constant, project_both=False)
        o0, o1 = (opt.scale * o).chunk(2)
        target, labelled = batch.target, batch.target >= 0

        # L_S: the target's logit is raised, so a class is not pulled tighter than the unlabelled rows are certain.
        raised = o0[labelled] + self._margin() * F.one_hot(target[labelled], self.n_classes)
        supervised = F.cross_entropy(raised, target[labelled]) if len(raised) else o0.sum() * 0.0

        # L_P: -log <p_i, p'_j>, j a row of the same class or the nearest neighbour; in logs, which cannot underflow.
        mate = positive_pairs(z, target, batch.index, batch.step)
        log_p, log_p1 = F.log_softmax(o0, dim=1), F.log_softmax(o1, dim=1)
        pairwise = -torch.logsumexp(log_p + log_p1[mate], dim=1).mean()

        regulariser = losses.entropy_gap(log_p.exp(), self.prior.value)
        return Step(
            {
                "classification": supervised,
                "pairwise": opt.eta_pair * pairwise,
                "entropy": opt.eta_prior * regulariser,
            }
        )

    def _margin(self) -> Tensor | float:
        """How much the target's logit is raised."""
        opt = self.options
        if opt.margin == "zero":
            return 0.0
        cap = opt.scale * opt.margin_cap
        return cap if opt.margin == "fixed" else (opt.scale * self.u_bar).clamp_max(cap)


def unit_constant(z: Tensor) -> Tensor:
    """Unit features through which no gradient flows: (B, d) -> (B, d)."""
    return F.normalize(z.detach(), dim=1)


@torch.no_grad()
def positive_pairs(z: Tensor, target: Tensor, index: Tensor, step: int) -> Tensor:
    """The row each row is paired with, never a copy of itself unless there is no other: (B, d), (B,), (B,) -> (B,).

    A labelled row: a random other one of its class in the batch. An unlabelled row: its nearest neighbour among all.
    """
    rows = torch.arange(len(z), device=z.device)
    other = index[:, None] != index[None, :]  # rows are drawn with replacement: the same image may be there twice
    labelled = target >= 0
    same = (target[:, None] == target[None, :]) & other
    lot = torch.from_numpy(np.random.default_rng([41, step]).random((len(z), len(z)))).to(z.device)
    drawn = torch.where(same, lot, -1.0).argmax(1)
    cosine = (z @ z.T).masked_fill(~other, -torch.inf)
    # Copies of an image are equally near: the first of them, whatever this machine's rounding says.
    nearest = (cosine >= cosine.amax(1, keepdim=True) - EQUAL).int().argmax(1)
    mate = torch.where(labelled, drawn, nearest)
    return torch.where(torch.where(labelled, same.any(1), other.any(1)), mate, rows)
