"""OpenCon (Sun & Li, TMLR 2022): prototypes that follow the embeddings, and a contrastive loss for what looks novel.

h = g(z) is the unit embedding, m_c the prototype of class c, unit too; they move by averaging, not by gradient.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rowssl.core import distributed
from rowssl.core.console import track
from rowssl.data.feed import Batch, Feed
from rowssl.methods import losses
from rowssl.methods.base import HeadPrior, Method, Step, cosine, option, projector_sizes
from rowssl.methods.heads import CosineClassifier, Projector

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
    is written out: `torch.optim.SGD` would load a compiler (see `rowssl.training.loop`, whose fused step has other last bits).
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


class OpenCon(Method):
    """Three contrastive losses, each among its own rows: labelled, unlabelled, and unlabelled that look novel."""

    name: ClassVar[str] = "opencon"
    label: ClassVar[str] = "OpenCon"

    prototypes: Tensor  # m_c, (C, out)

    class Options(Method.Options):
        """Hyper-parameters of OpenCon."""

        projector_hidden: int | None = option(
            None, "width of the projector's hidden layers; by default as the feature's width asks"
        )
        projector_out: int | None = option(
            128, "length of the projector's embedding; by default as the feature's width asks"
        )
        weight_labelled: float = option(0.2, "lambda_l, of L_l")
        weight_unlabelled: float = option(1.0, "lambda_u, of L_u")
        weight_novel: float = option(0.1, "lambda_n, of L_n, reached linearly over the share ramp of the epochs")
        ramp: float = option(0.5, "share of the epochs in which lambda_n rises")
        tau_labelled: float = option(0.1, "temperature of L_l")
        tau_unlabelled: float = option(0.4, "temperature of L_u")
        tau_novel: float = option(0.7, "temperature of L_n")
        known_share: float = option(0.7, "p: lambda is set such that this share of the labelled rows counts as known")
        momentum: float = option(0.9, "gamma of the prototypes")
        weight_entropy: float = option(0.05, "weight of the entropy term")
        scale: float = option(10.0, "of the cosines in the entropy term")
        entropy_prior: Literal["balanced", "uniform", "true_prior"] = option(
            "balanced", "balanced: all classes equally large; uniform: plain entropy; true_prior: oracle"
        )
        labelled_ratio: float = option(0.5, "what balanced takes for the labelled share of a known class", ge=0, lt=1)

    options: Options

    def __init__(self, tail: nn.Module, *, oracle_truth: Tensor | None = None, **arguments: Any) -> None:
        super().__init__(tail, **arguments)
        opt = self.options
        hidden, out = projector_sizes(self.out_dim, opt.projector_hidden, opt.projector_out)
        self.projector = Projector(self.out_dim, hidden=hidden, out=out, generator=self.generator)
        start = torch.randn(self.n_classes, out, generator=self.generator)
        self.register_buffer("prototypes", F.normalize(start, dim=1))
        q = torch.ones(self.n_classes)
        q[: self.n_old] = 1 - opt.labelled_ratio if opt.entropy_prior == "balanced" else 1.0
        self.prior = HeadPrior(q, oracle=opt.entropy_prior == "true_prior", truth=oracle_truth)

    def begin_epoch(self, feed: Feed, epoch: int) -> None:
        """Only the oracle looks ahead: the true sizes of the classes among the unlabelled rows."""
        if self.prior.oracle and len(feed.unlabelled):
            self.eval()
            cosine = [self.projector(self.tail(x)) @ self.prototypes.T for _, x in feed.chunks(feed.unlabelled)]
            rows = torch.from_numpy(feed.unlabelled).to(feed.device)
            self.prior.value.copy_(self.prior.share(torch.cat(cosine).argmax(1), rows, self.n_old))

    def loss(self, batch: Batch) -> Step:
        """lambda_n L_n + lambda_l L_l + lambda_u L_u - w H_q."""
        opt = self.options
        local = self.projector(self.tail(batch.both_views)).chunk(2)
        h0, h1 = distributed.gather(len(batch.index), *local)
        cosine = (h0 @ self.prototypes.T).to(self.prototypes)
        target, unlabelled = batch.target, batch.target < 0
        pseudo = cosine.detach().argmax(1)
        novel = looks_novel(cosine.detach(), target, self.n_old, opt.known_share)

        # Each is a supervised contrastive loss: rows numbered -1 stay outside, rows of the same number are positives.
        rows = torch.arange(len(target), device=target.device)
        terms = (
            losses.sup_con(h0, h1, target, opt.tau_labelled),
            losses.sup_con(h0, h1, torch.where(unlabelled, rows, -1), opt.tau_unlabelled),  # SimCLR
            losses.sup_con(h0, h1, torch.where(novel, pseudo, -1), opt.tau_novel),
        )
        risen = min(1.0, batch.epoch / max(1e-9, opt.ramp * batch.epochs))
        probability = F.softmax(opt.scale * cosine[unlabelled], dim=1)
        gap = losses.entropy_gap(probability, self.prior.value) if len(probability) else h0.sum() * 0.0
        assigned = torch.where(unlabelled & (pseudo < self.n_old), -1, torch.where(unlabelled, pseudo, target))
        return Step(
            {
                "labelled": opt.weight_labelled * terms[0],
                "unlabelled": opt.weight_unlabelled * terms[1],
                "novel": opt.weight_novel * risen * terms[2],
                "entropy": opt.weight_entropy * gap,
            },
            {"h": h0.detach(), "assigned": assigned},
        )

    @torch.no_grad()
    def after_step(self, batch: Batch, step: Step) -> None:
        """m_c <- norm(gamma m_c + (1 - gamma) h) for labelled rows and those pseudo-labelled novel, in random order."""
        order = np.random.default_rng([42, batch.step]).permutation(len(batch.index))
        rank = torch.from_numpy(order).to(batch.index.device)
        h = step.extras["h"].to(self.prototypes)
        self.prototypes.copy_(
            moved_prototypes(self.prototypes, h, step.extras["assigned"], rank, self.options.momentum)
        )

    @torch.no_grad()
    def finish(self, feed: Feed) -> None:
        """The prototypes live behind the projector; the classifier on z learns to answer as they do."""
        self.eval()
        steps = readout_rows(len(feed), self.seed)
        rows = np.unique(steps)
        z, h = self._embedded(feed, rows)
        follow_prototypes(self.classifier, z, h, self.prototypes, np.searchsorted(rows, steps))

    def _embedded(self, feed: Feed, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """z and h of the given rows, which are in ascending order: (n, d), (n, out).

        All rows pass through the networks, in the usual blocks, since the last bits may depend on the size of a block; only
        what is asked for stays in memory.
        """
        z, h = (self.prototypes.new_empty(len(rows), width) for width in (self.out_dim, self.prototypes.shape[1]))
        for block, x in feed.chunks():
            here = slice(*np.searchsorted(rows, (block[0], block[-1] + 1)))
            wanted, found = torch.from_numpy(rows[here] - block[0]).to(x.device), self.tail(x)
            z[here], h[here] = found[wanted], self.projector(found)[wanted]
        return z, h
