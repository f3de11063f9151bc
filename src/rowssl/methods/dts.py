"""DTS: density-based temperature scaling and soft pseudo-labelling, the method of the ROWSSL paper (section 3).

z = E(x); h = g(z) is the query's embedding of view 0, b = g'(E'(x')) the momentum network's key of view 1; f is the cosine
classifier, o its logits. Q is the queue of older keys, m_j a prototype, d_j the density around it (tailedness: low = tail), s_i the
density of the prototype nearest to b_i, u^c the uncertainty of class c.

A step is `loss`, then `after_step`; what they call stands between them in the order of the paper. Above is every option with the
paper's symbol, where the paper and its public code differ, and the paper's ablations; at the end what these ablations put in the
place of tailedness.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from rowssl.clustering.assignment import hungarian
from rowssl.clustering.kmeans import kmeans
from rowssl.core.distributed import gather
from rowssl.core.errors import InputError
from rowssl.data.feed import Batch, Feed
from rowssl.methods._kernels import class_losses, nearest_prototype, queue_loss  # as in losses.py, fused
from rowssl.methods.base import (
    Method,
    MomentumCopy,
    Queue,
    Step,
    cosine,
    joined,
    option,
    projector_sizes,
    seeded_rows,
    teacher_temperature,
)
from rowssl.methods.density import (
    ClassStatistics,
    dynamic_temperature,
    neighbour_density,
    refresh_uncertainty,
    to_queue,
    update_prototypes,
)
from rowssl.methods.heads import Projector
from rowssl.methods.start import START_ROWS, start_classifier

Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
OFFICIAL = {
    "queue_size": 8192,
    "queue_init": "random",
    "knn_weighting": "uniform",
    "density_scale": "sum",
    "proto_init": "train",
    "proto_update": "batch",
    "sup_on": "all",
    "u_mask": "top1",
    "u_momentum": 0.9,
    "u_empty": "keep",
    "pseudo_label": "student",
}
PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    "official": OFFICIAL,
    "tuned": {
        "epsilon": 1.0,
        "u_momentum": 0.9,
        "u_empty": "max",
        "u_moves": "within",
        "classifier_init": "transfer",
    },  # the default: see docs/methods/dts.md
}


class DTS(Method):
    """Two uses of tailedness: a temperature per anchor (Eq. 9) and a class uncertainty in the pseudo-labels (Eq. 11)."""

    name: ClassVar[str] = "dts"
    label: ClassVar[str] = "DTS"

    prototypes: Tensor  # m_j, (M, d)
    u: Tensor  # class uncertainty, (C,)

    class Options(Method.Options):
        """Hyper-parameters of DTS. The defaults are those of the preset `paper`: the paper's equations and appendix B."""

        preset: Literal["tuned", "paper", "official"] = Field(
            "tuned",
            exclude=True,
            description="where the other options begin: docs/methods/dts.md; the defaults here are those of paper",
        )
        projector_hidden: Count | None = option(
            None, "width of the projector's hidden layers; by default as the feature's width asks"
        )
        projector_out: Count | None = option(
            None, "length of the projector's embedding; by default as the feature's width asks"
        )
        lambda_rep: Share = option(0.35, "weight of l_sup, Eq. (3)")
        epsilon: float = option(4.0, "weight of the mean-entropy regulariser")
        tau_s: Positive = option(0.1, "student temperature")
        tau_t: tuple[Positive, Positive] = option(
            (0.07, 0.04), "teacher temperature, first epoch and from tau_t_epochs on"
        )
        tau_t_epochs: Count = option(30, "epochs in which the teacher temperature falls")
        tau_t_shape: Literal["linear", "cosine"] = option("linear", "how the teacher temperature falls")
        key_momentum: Share = option(
            0.999, "momentum of the key network; 0: it is the query network of the step before"
        )

        queue_size: Count = option(4096, "Q")
        queue_init: Literal["empty", "random", "data"] = option(
            "empty", "what the queue begins with: nothing; random keys of class 0; keys of random rows"
        )
        mask_same_image: bool = option(False, "leave older keys of the anchor's own image out of its negatives")
        sup_temperature: Annotated[float, Field(ge=0.025)] = option(
            1.0, "temperature of l_sup; below, e^{1 / tau} would not fit"
        )
        sup_on: Literal["labelled", "all"] = option("labelled", "l_sup averaged over B_l or over B")
        ignore_unlabelled_negatives: bool = option(False, "unlabelled queue entries are not negatives of l_sup")

        n_prototypes: Count | None = option(None, "M; by default C")
        n_neighbours: Count = option(15, "K")
        knn_weighting: Literal["rank", "uniform"] = option("rank", "how neighbours count for the density")
        density_scale: Literal["mean", "sum"] = option("mean", "mean or sum over the neighbours")
        proto_init: Literal["queue", "train"] = option(
            "queue", "k-means on Q random rows' keys, or on two views of all rows"
        )
        proto_update: Literal["queue", "batch"] = option("queue", "Eq. (8) over the queue, or over the batch's keys")
        lambda_tail: Share = option(0.9, "momentum of the prototypes, Eq. (8)")
        tau_min: Positive = option(0.05, "least temperature, Eq. (9)")
        tau_max: Positive = option(1.0, "greatest temperature, Eq. (9)")

        lambda_var: float = option(1.0, "lambda_var, Eq. (11)")
        u_scale: float = option(1.0, "factor of the class uncertainty")
        u_mask: Literal["all", "top1"] = option(
            "all", "whether the uncertainty enters every logit, or only the largest"
        )
        u_moves: Literal["anywhere", "within"] = option(
            "anywhere", "probability moves from class to class, or never from known to novel"
        )
        u_momentum: Share = option(0.0, "0: std of this epoch; 0.9: smoothed")
        u_empty: Literal["zero", "keep", "one", "max"] = option(
            "zero", "uncertainty of a class with none or one sample"
        )
        pseudo_label: Literal["teacher", "student"] = option(
            "teacher", "class of S^c: argmax of q, or of the plain logits"
        )
        classifier_init: Literal["random", "kmeans", "semi_kmeans", "transfer"] = option(
            "random",
            "where the classifier begins: random; clusters of the features, with labelled rows pinned to their classes "
            "(semi_kmeans) or not; the answer of transfer",
        )

        score: Literal["prototype", "instance", "loss"] = option(
            "prototype", "ablation: tailedness of the nearest prototype, of the row itself, or by its own loss"
        )
        temperature: Literal["density", "constant", "cosine", "estimated_prior", "true_prior"] = option(
            "density", "ablation: what takes the place of Eq. (9); true_prior: oracle"
        )
        tau_constant: Positive = option(0.07, "temperature of the ablation constant")
        uncertainty: Literal["tailedness", "none", "confidence", "estimated_prior", "true_prior"] = option(
            "tailedness", "ablation: what takes the place of the class uncertainty; true_prior: oracle"
        )

        @model_validator(mode="before")
        @classmethod
        def _begin_with_the_preset(cls, given: Any) -> Any:
            return {**PRESETS.get(str(given.get("preset", "tuned")), {}), **given}

        @property
        def oracle(self) -> bool:
            """Whether an option looks at the true classes."""
            return "true_prior" in (self.temperature, self.uncertainty)

    options: Options

    def __init__(self, tail: nn.Module, *, oracle_truth: Tensor | None = None, **arguments: Any) -> None:
        super().__init__(tail, **arguments)
        opt, n_classes, n_rows = self.options, self.n_classes, self.n_rows
        if opt.oracle and oracle_truth is None:
            raise InputError("The true_prior oracle of DTS needs the true class of every row (oracle_truth).")
        hidden, out = projector_sizes(self.out_dim, opt.projector_hidden, opt.projector_out)
        self.projector = Projector(self.out_dim, hidden=hidden, out=out, generator=self.generator)
        self.key = MomentumCopy(nn.Sequential(self.tail, self.projector), opt.key_momentum)
        self.queue = Queue(min(opt.queue_size, n_rows), out)  # no image twice in a small data set's queue
        self.register_buffer("prototypes", torch.zeros(opt.n_prototypes or n_classes, out))
        self.register_buffer("u", torch.zeros(n_classes))
        self.statistics = ClassStatistics(n_classes)
        self.prior = ClassPrior(n_classes, oracle_truth if opt.oracle else None)
        self.loss_memory = LossMemory(n_rows if opt.score == "loss" else 0)
        self.remembers_rows = opt.score == "loss"
        self.kept_density: Tensor | None = None  # of the prototypes, (M,), while nothing changes

    @torch.no_grad()
    def start(self, feed: Feed) -> None:
        """k-means for the prototypes m_j (and for the classifier where asked), before the first step."""
        super().start(feed)
        self.key.follow(nn.Sequential(self.tail, self.projector))
        opt, many = self.options, len(feed) > START_ROWS
        start_classifier(self, feed, opt.classifier_init)
        rows = seeded_rows(len(feed), self.queue.size, self.seed)
        chosen: np.ndarray | None = None
        if many:  # both begin with the same rows
            chosen = seeded_rows(len(feed), START_ROWS, self.seed) if opt.proto_init == "train" else rows
        keys = self._keys(feed, 0, chosen)
        index = torch.from_numpy(rows).to(feed.device)
        sample = keys[: len(rows)] if many else keys[index]
        if opt.queue_init == "random":
            self.queue.fill_randomly(0, self.generator)
        elif opt.queue_init == "data":
            self.queue.push(sample, feed.targets[index], index)
        if opt.proto_init == "train":
            sample = torch.cat([keys, self._keys(feed, 1, chosen)])
        centres = torch.as_tensor(kmeans(sample, min(len(self.prototypes), len(sample)), seed=self.seed).centers)
        self.prototypes[: len(centres)] = F.normalize(centres, dim=1)

    def _keys(self, feed: Feed, view: int, rows: np.ndarray | None) -> Tensor:
        """Keys of an augmented view of all (or the given) rows, (N, d)."""
        chunks = feed.view_chunks(view) if rows is None else feed.view_chunks(view, rows=rows)
        return joined((self.key(x) for _, x in chunks), len(feed) if rows is None else len(rows))

    def loss(self, batch: Batch) -> Step:
        """L_rep + L_cls, Eq. (3) and (5)."""
        opt = self.options
        o, (h,) = self.two_views(batch, self.projector, project_both=False)
        with torch.no_grad():
            (b,) = gather(len(batch.index), self.key(batch.views[1]))
            keys = self.queue.valid()[0]
            q, assigned = self._pseudo_labels(o, batch)
            extras = {"b": b, "assigned": assigned, **self._scores(b, keys, batch)}
            tau = self._temperature(extras, batch)

        # Representation, Eq. (2)-(3): the positive key is one more column beside the queue.
        rep, l_u, l_sup = self._representation(h, b, tau, batch)

        # Classification, Eq. (4)-(5): labels replace the teacher, and there is no other weighting.
        classification, entropy = class_losses(o, q, opt.tau_s)
        extras |= {"l_u": l_u, "l_sup": l_sup}
        if opt.uncertainty == "confidence":
            extras["confidence"] = F.softmax(o[: len(b)].detach() / opt.tau_s, dim=1).amax(1)
        losses = {"representation": rep, "classification": classification, "entropy": opt.epsilon * entropy}
        return Step(losses, extras)

    def _representation(self, h: Tensor, b: Tensor, tau: Tensor | float, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Eq. (3): (1 - lambda_rep) mean l_u + lambda_rep mean l_sup; and the two for looking at."""
        opt, target = self.options, batch.target
        keys, labels, rows = self.queue.valid()
        supervised = target >= 0 if opt.sup_on == "labelled" else torch.ones_like(target, dtype=torch.bool)
        wanted = target[supervised]
        return queue_loss(
            h,
            b,
            keys,
            tau,
            rows=supervised.nonzero()[:, 0],
            same=(wanted[:, None] == labels) & (wanted >= 0)[:, None],
            ignored=labels < 0 if opt.ignore_unlabelled_negatives else None,
            same_image=batch.index[:, None] == rows if opt.mask_same_image else None,
            sup_tau=opt.sup_temperature,
            weights=(1 - opt.lambda_rep, opt.lambda_rep),
        )

    def _scores(self, b: Tensor, keys: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Tailedness scores s_i of Eq. (7) and their range, on the queue and the prototypes before this step."""
        opt = self.options
        how: dict[str, Any] = {"k": opt.n_neighbours, "weighting": opt.knn_weighting, "scale": opt.density_scale}
        similarity = to_queue(self.prototypes, keys)  # (M, Q)
        d = neighbour_density(similarity, **how)  # Eq. (6)
        batch_prototype = nearest_prototype(to_queue(self.prototypes, b))  # (B,)
        s = d[batch_prototype]
        if opt.score == "instance":
            d = s = neighbour_density(to_queue(b, keys), **how)
        low, high = d.min(), d.max()
        if opt.score == "loss":
            s, low, high = self.loss_memory.score(batch.index)
        nearest = {"batch_prototype": batch_prototype, "queue_prototype": nearest_prototype(similarity)}  # for Eq. (8)
        return {**nearest, "s": s, "low": low, "high": high}

    def _temperature(self, extras: dict[str, Tensor], batch: Batch) -> Tensor | float:
        """tau(x_i), Eq. (9), or what the ablations put in its place."""
        opt = self.options
        if opt.temperature == "constant":
            return opt.tau_constant
        if opt.temperature == "cosine":
            return cosine(batch.epoch, batch.epochs, opt.tau_max, opt.tau_min)
        s, low, high = extras["s"], extras["low"], extras["high"]
        if opt.temperature != "density":
            s, low, high = self.prior.of_rows(opt.temperature, extras["assigned"], batch.index)
        return dynamic_temperature(s, low, high, opt.tau_min, opt.tau_max)

    def _pseudo_labels(self, o: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Eq. (11): q = softmax((f(z') + lambda_var u) / tau_t), the label itself where there is one; class of S^c."""
        opt = self.options
        tau_t = teacher_temperature(batch.epoch, *opt.tau_t, opt.tau_t_epochs, opt.tau_t_shape)
        labelled, logits = batch.target >= 0, o.detach()
        u = opt.lambda_var * opt.u_scale * self.u
        if opt.u_mask == "top1":
            u = u * F.one_hot(logits.argmax(1), self.n_classes)
        sharp = torch.add(u / tau_t, logits, alpha=1 / tau_t)
        if opt.u_moves == "within":
            sharp = keep_shares(sharp, logits / tau_t, self.n_old)
        q = F.softmax(sharp, dim=1)
        known = labelled.repeat(2).nonzero()[:, 0]
        q[known] = 0.0
        q[known, batch.target[labelled].repeat(2)] = 1.0
        guess = q if opt.pseudo_label == "teacher" else logits
        return q, torch.where(labelled, batch.target, guess[: len(labelled)].argmax(1))

    @torch.no_grad()
    def after_step(self, batch: Batch, step: Step) -> None:
        """Key network, queue, prototypes (Eq. 8), and at the end of an epoch the class uncertainty (Eq. 10)."""
        opt, e = self.options, step.extras
        self.key.follow(nn.Sequential(self.tail, self.projector))
        slots, filled = self.queue.slots(len(e["b"])), self.queue.filled
        self.queue.push(e["b"], batch.target, batch.index)
        if opt.proto_update == "batch":
            moving, assigned = e["b"], e["batch_prototype"]
        else:  # the entries that are new are the batch's; the others are nearest to what they were
            moving = self.queue.valid()[0]
            assigned = slots.new_empty(len(moving))
            assigned[:filled] = e["queue_prototype"]
            assigned[slots] = e["batch_prototype"][-len(slots) :]
        self.prototypes.copy_(update_prototypes(self.prototypes, moving, assigned, opt.lambda_tail))

        if opt.uncertainty == "confidence":
            self.statistics.add(e["confidence"], e["assigned"])
        elif filled:  # against an empty queue there is no density
            self.statistics.add(e["s"], e["assigned"])
        self.prior.add(e["assigned"], batch.index)
        if opt.score == "loss":
            self.loss_memory.add(batch.index, e["l_u"])
        if batch.last_of_epoch:
            self.prior.refresh(self.statistics.count)
            self.u.copy_(self._fresh_uncertainty())
            self.statistics.clear()

    def _fresh_uncertainty(self) -> Tensor:
        """u for the next epoch: std(S^c), or what the ablations put in its place."""
        opt = self.options
        if opt.uncertainty == "none":
            return torch.zeros_like(self.u)
        if opt.uncertainty in ("estimated_prior", "true_prior"):
            return self.prior.of_heads(opt.uncertainty)
        std = self.statistics.std()
        fresh = std**2 if opt.uncertainty == "confidence" else std
        return refresh_uncertainty(self.u, fresh, momentum=opt.u_momentum, empty=opt.u_empty)

    @torch.no_grad()
    def tailedness(self, x: Tensor) -> Tensor | None:
        """Density of each row's nearest prototype (or, as `score` has it, of the row itself), by the key network: low = tail."""
        b = self.key(x)
        if self.options.score == "instance":
            return self._density(b)
        d = self._density(self.prototypes) if self.kept_density is None else self.kept_density
        return None if d is None else d[(b @ self.prototypes.T).argmax(1)]

    def _density(self, points: Tensor) -> Tensor | None:
        """d of points on the sphere, (n, d) -> (n,); an empty queue knows none."""
        opt, keys = self.options, self.queue.valid()[0]
        if len(keys) == 0:
            return None
        return neighbour_density(to_queue(points, keys), opt.n_neighbours, weighting=opt.knn_weighting)

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """The densities of the prototypes, which are the same for every block of rows, are computed once."""
        with torch.no_grad():
            self.kept_density = self._density(self.prototypes)
        try:
            yield
        finally:
            self.kept_density = None

    def training_tailedness(self, feed: Feed) -> Tensor | None:
        """Of all training rows; with `score="loss"` minus the remembered losses, which only training rows have."""
        if self.options.score != "loss":
            return super().training_tailedness(feed)
        return self.loss_memory.score(torch.arange(len(feed), device=self.loss_memory.mean.device))[0]


def keep_shares(logits: Tensor, before: Tensor, n_old: int) -> Tensor:
    """Shift adjusted logits so that the known classes together keep the probability they had before, (B, C) -> (B, C)."""
    known, novel = slice(n_old), slice(n_old, None)
    shift = [
        before[:, part].logsumexp(1, keepdim=True) - logits[:, part].logsumexp(1, keepdim=True)
        for part in (known, novel)
    ]
    return torch.cat([logits[:, known] + shift[0], logits[:, novel] + shift[1]], dim=1)


class ClassPrior(nn.Module):
    """Class prior by hard pseudo-labels (smoothed over epochs), or, as an oracle, of the true classes."""

    prior: Tensor
    confusion: Tensor
    truth: Tensor

    def __init__(self, classes: int, truth: Tensor | None, momentum: float = 0.9) -> None:
        super().__init__()
        self.momentum = momentum
        self.register_buffer("prior", torch.full((classes,), 1 / classes))
        self.register_buffer("truth", torch.zeros(0, dtype=torch.long) if truth is None else truth.clone())
        size = 0 if truth is None else classes
        self.register_buffer("confusion", torch.zeros(size, size))  # heads x true classes, this epoch

    def add(self, assigned: Tensor, rows: Tensor) -> None:
        """Count which heads the true classes go to (oracle only)."""
        if len(self.truth):
            pairs = assigned * len(self.confusion) + self.truth[rows]
            self.confusion += torch.bincount(pairs, minlength=self.confusion.numel()).view_as(self.confusion)

    def refresh(self, count: Tensor) -> None:
        """End of an epoch: how often each class was predicted."""
        fresh = (count / count.sum().clamp_min(1)).to(self.prior)
        self.prior.mul_(self.momentum).add_(fresh, alpha=1 - self.momentum)

    def _true(self) -> Tensor:
        counts = torch.bincount(self.truth, minlength=len(self.prior)).to(self.prior)
        return counts / counts.sum()

    def of_rows(self, which: str, assigned: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Prior of each row's (pseudo or true) class, and the least and the greatest prior."""
        prior = self._true() if which == "true_prior" else self.prior
        classes = self.truth[rows] if which == "true_prior" else assigned
        return prior[classes], prior.min(), prior.max()

    def of_heads(self, which: str) -> Tensor:
        """Prior of each classifier head; for the true prior, heads are matched to classes on this epoch's counts."""
        if which == "estimated_prior":
            return self.prior.clone()
        heads, classes = hungarian(self.confusion.cpu().numpy())
        prior = torch.zeros_like(self.prior)
        prior[torch.as_tensor(heads)] = self._true()[torch.as_tensor(classes)]
        self.confusion.zero_()
        return prior


class LossMemory(nn.Module):
    """Tailedness by the sample's own contrastive loss, smoothed: what is hard to tell apart counts as tail."""

    mean: Tensor
    seen: Tensor

    def __init__(self, rows: int, momentum: float = 0.9) -> None:
        super().__init__()
        self.momentum = momentum
        self.register_buffer("mean", torch.zeros(rows))
        self.register_buffer("seen", torch.zeros(rows, dtype=torch.bool))

    def score(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Minus the remembered loss (high = easy = head) of rows, and the range over all rows seen so far."""
        known = -self.mean[self.seen]
        if len(known) == 0:
            zero = self.mean.new_zeros(())
            return zero.expand(len(rows)), zero, zero
        middle = known.mean()
        return torch.where(self.seen[rows], -self.mean[rows], middle), known.min(), known.max()

    def add(self, rows: Tensor, loss: Tensor) -> None:
        """Remember this step's losses."""
        smoothed = torch.where(self.seen[rows], self.momentum * self.mean[rows] + (1 - self.momentum) * loss, loss)
        self.mean[rows] = smoothed
        self.seen[rows] = True
