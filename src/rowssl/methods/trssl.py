"""TRSSL (Rizve et al., ECCV 2022): pseudo-labels by optimal transport with a class prior, softened by uncertainty.

One loss for everything: the cross-entropy of mixed-up rows, each with a temperature of its own.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rowssl.clustering.assignment import sinkhorn
from rowssl.core.distributed import gather, share
from rowssl.core.errors import InputError
from rowssl.data.feed import Batch, Feed
from rowssl.methods import losses
from rowssl.methods.base import Method, MomentumCopy, Step, option


class TRSSL(Method):
    """The averaged network (EMA) tells how uncertain a row is, and it is the model in the end."""

    name: ClassVar[str] = "trssl"
    label: ClassVar[str] = "TRSSL"

    least_views = 2  # temperatures follow from how predictions of views differ

    prior: Tensor  # class shares among the unlabelled rows, (C,)
    temperature: Tensor  # of every row, (N,)
    key: Tensor  # seed of the draws of a step

    class Options(Method.Options):
        """Hyper-parameters of TRSSL."""

        prior: Literal["uniform", "estimated", "oracle"] = option(
            "uniform",
            "what the transport takes for the class shares; estimated from epoch to epoch; oracle: the true ones",
        )
        prior_momentum: float = option(0.9, "of the estimated prior, from epoch to epoch")
        least: float = option(1.0, "rows of a batch that every class expects at least, so that no class dies out")
        transport_epsilon: float = option(0.05, "entropic regularisation of Sinkhorn-Knopp")
        transport_steps: int = option(3, "rounds of Sinkhorn-Knopp")
        threshold: float = option(0.5, "a novel class that holds this share of a row gets all of it")
        tau: float = option(0.1, "temperature of labelled and of certain rows")
        uncertainty_views: int = option(10, "augmented views, as far as there are so many; below 2: no uncertainty")
        alpha: float = option(0.75, "mixup by Beta(alpha, alpha)")
        average_momentum: float = option(0.999, "of the averaged network")

    options: Options

    def __init__(self, tail: nn.Module, *, oracle_truth: Tensor | None = None, **arguments: Any) -> None:
        super().__init__(tail, **arguments)
        opt = self.options
        if opt.prior == "oracle" and oracle_truth is None:
            raise InputError("The oracle prior of TRSSL needs the true class of every row (oracle_truth).")
        self.truth = oracle_truth if opt.prior == "oracle" else None
        self.average = MomentumCopy(nn.Sequential(self.tail, self.classifier), opt.average_momentum)
        self.register_buffer("key", torch.tensor(self.seed))
        self.register_buffer("prior", torch.full((self.n_classes,), 1 / self.n_classes))
        self.register_buffer("temperature", torch.full((self.n_rows,), opt.tau))

    @torch.no_grad()
    def start(self, feed: Feed) -> None:
        """The averaged network gets the scale of its input; the oracle counts the true classes of unlabelled rows."""
        super().start(feed)
        self.average.follow(nn.Sequential(self.tail, self.classifier))
        if self.truth is not None and len(feed.unlabelled):
            true = torch.bincount(self.truth[feed.targets.cpu() < 0], minlength=self.n_classes)
            self.prior.copy_(true.sort(descending=True).values[: self.n_classes] / true.sum())

    @torch.no_grad()
    def begin_epoch(self, feed: Feed, epoch: int) -> None:
        """From the second epoch: temperatures by how much predictions of views differ, and the estimated prior."""
        opt = self.options
        if epoch == 0 or len(feed.unlabelled) == 0:
            return
        hidden, spread, predicted = feed.targets < 0, [], []

        def predict(chunk: tuple[np.ndarray, Tensor]) -> Tensor:
            return F.softmax(self.average(chunk[1][hidden[torch.from_numpy(chunk[0])]]), dim=1)

        views = range(max(1, min(opt.uncertainty_views, feed.source.n_views)))
        for chunk in zip(*(map(predict, feed.view_chunks(view)) for view in views), strict=True):
            p = torch.stack(chunk)  # (V, n, C)
            predicted.append(p.mean(0).argmax(1))
            best = p[:, torch.arange(p.shape[1]), predicted[-1]]
            spread.append(((best - best.mean(0)).square().sum(0) / max(1, len(p) - 1)).sqrt())
        std = torch.cat(spread).nan_to_num()  # a row that is not a number is the loop's to report, once it is drawn
        self.temperature[hidden] = (std / std.max().clamp_min(1e-12)).clamp(opt.tau, 1.0)
        if opt.prior == "estimated":
            counts = torch.bincount(torch.cat(predicted), minlength=self.n_classes)
            self.prior.lerp_((counts / counts.sum()).to(self.prior), 1 - opt.prior_momentum)

    def loss(self, batch: Batch) -> Step:
        """Cross-entropy of mixed rows with their mixed targets at their mixed temperatures."""
        rows = len(batch.index)
        with torch.no_grad():
            o = gather(rows, *self.classifier(self.tail(batch.both_views)).chunk(2))
            target = torch.cat([self._targets(o[1], batch.target), self._targets(o[0], batch.target)])  # swapped views
            tau = self.temperature[batch.index].masked_fill(batch.target >= 0, self.options.tau).repeat(2)

            # Every process mixes its own rows, with partners from the whole batch.
            whole = torch.cat(gather(rows, *(view.flatten(1) for view in batch.views)))
            amount, partner = self._mixing(batch.step, 2 * rows, whole.device)
            mine = torch.arange(2 * rows, device=whole.device).view(2, rows)[:, share(rows)].flatten()
            mixed = torch.lerp(whole[partner[mine]], whole[mine], amount).view(-1, *batch.views[0].shape[1:])
            target, tau = (torch.lerp(whole[partner], whole, amount) for whole in (target, tau))
        o = gather(rows, *self.classifier(self.tail(mixed)).chunk(2))
        return Step({"classification": losses.soft_cross_entropy(target, torch.cat(o) / tau[:, None])})

    def _mixing(self, step: int, rows: int, device: torch.device) -> tuple[float, Tensor]:
        """Share of a row in its mixture, and the row it is mixed with, (rows,)."""
        rng = np.random.default_rng([int(self.key), 32, step])
        return float(rng.beta(self.options.alpha, self.options.alpha)), torch.from_numpy(rng.permutation(rows)).to(
            device
        )

    def _targets(self, o: Tensor, target: Tensor) -> Tensor:
        """The label, or the transport of the unlabelled rows to the classes, hard where a novel class is confident."""
        opt = self.options
        q, hidden = F.one_hot(target.clamp_min(0), self.n_classes).to(o), target < 0
        if not hidden.any():
            return q
        score, epsilon = o[hidden], opt.transport_epsilon
        prior = expected_share(score / epsilon, self.prior, opt.least, ordered=opt.prior == "oracle")
        soft = sinkhorn(score, prior, epsilon, opt.transport_steps)
        sure = soft >= opt.threshold
        q[hidden] = torch.where(sure[:, self.n_old :].any(1, keepdim=True), sure.to(soft), soft)
        return q

    @torch.no_grad()
    def after_step(self, batch: Batch, step: Step) -> None:
        """The average follows; over few steps it is a shorter one, else it would still hold the initial weights."""
        self.average.momentum = min(self.options.average_momentum, (1 + batch.step) / (10 + batch.step))
        self.average.follow(nn.Sequential(self.tail, self.classifier))

    @torch.no_grad()
    def finish(self, feed: Feed) -> None:
        """The averaged network is the model."""
        nn.Sequential(self.tail, self.classifier).load_state_dict(self.average.module.state_dict())


def expected_share(logits: Tensor, prior: Tensor, least: float, *, ordered: bool) -> Tensor:
    """Class shares (C,) of a batch (B, C): the prior, but at least `least` rows for each class.

    `ordered`: the prior is known by size only, and its largest share goes to the class with the most mass in the batch.
    """
    if ordered:
        rank = torch.logsumexp(logits, dim=0).argsort(descending=True, stable=True)
        prior = torch.empty_like(prior).index_copy_(0, rank, prior.sort(descending=True).values)
    rows = (len(logits) * prior).clamp_min(least)
    return rows / rows.sum()
