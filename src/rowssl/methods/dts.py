"""DTS: density-based temperature scaling and soft pseudo-labelling, the method of the ROWSSL paper (section 3).

z = E(x); h = g(z) is the query's embedding of view 0, b = g'(E'(x')) the momentum network's key of view 1; f is the
cosine classifier, o its logits. All options, and the two readings of the method, are in `dts_options.py`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rowssl import losses
from rowssl.cluster import kmeans
from rowssl.data.loader import Feed
from rowssl.density import (
    ClassStatistics,
    dynamic_temperature,
    neighbour_density,
    refresh_uncertainty,
    update_prototypes,
)
from rowssl.distributed import gather
from rowssl.errors import InputError
from rowssl.methods.base import Method, projector_sizes, seeded_rows
from rowssl.methods.dts_choices import ClassPrior, LossMemory
from rowssl.methods.dts_options import dts_options
from rowssl.methods.readout import class_centres
from rowssl.nn.heads import Projector
from rowssl.nn.state import MomentumCopy, Queue
from rowssl.queue_loss import queue_loss
from rowssl.schedules import cosine, teacher_temperature
from rowssl.types import Batch, Step


class DTS(Method):
    """Two uses of tailedness: a temperature per anchor (Eq. 9) and a class uncertainty in the pseudo-labels (Eq. 11)."""

    prototypes: Tensor  # m_j, (M, d)
    u: Tensor  # class uncertainty, (C,)

    def __init__(
        self,
        tail: nn.Module,
        *,
        n_old: int,
        n_classes: int,
        n_rows: int,
        seed: int = 0,
        preset: str = "tuned",
        oracle_truth: Tensor | None = None,  # (N,) true classes, read by the true_prior oracles only
        **options: Any,
    ) -> None:
        super().__init__(tail, n_old=n_old, n_classes=n_classes, n_rows=n_rows, seed=seed)
        self.options = opt = dts_options(preset, **options)
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

    @torch.no_grad()
    def start(self, feed: Feed) -> None:
        """k-means for the prototypes m_j (and for the classifier where asked), before the first step."""
        super().start(feed)
        self.key.follow(nn.Sequential(self.tail, self.projector))
        opt = self.options
        if opt.classifier_init != "random":
            sizes = {"n_old": self.n_old, "n_classes": self.n_classes}
            target, how = feed.targets.cpu(), opt.classifier_init
            centres = class_centres(
                self.unit_features(feed), target, how, **sizes, seed=self.seed, n_init=10, max_iter=100
            )
            self.classifier.set_directions(centres)
        keys = torch.cat([self.key(x) for _, x in feed.view_chunks(0)])
        rows = torch.from_numpy(seeded_rows(len(keys), self.queue.size, self.seed))
        if opt.queue_init == "random":
            self.queue.fill_randomly(0, self.generator)
        elif opt.queue_init == "data":
            self.queue.push(keys[rows], feed.targets[rows], rows)
        sample = keys[rows]
        if opt.proto_init == "train":
            sample = torch.cat([keys, *(self.key(x) for _, x in feed.view_chunks(1))])
        centres = torch.as_tensor(kmeans(sample, min(len(self.prototypes), len(sample)), seed=self.seed).centers)
        self.prototypes[: len(centres)] = F.normalize(centres, dim=1)

    def loss(self, batch: Batch) -> Step:
        """L_rep + L_cls, Eq. (3) and (5)."""
        opt = self.options
        o, (h,) = self.two_views(batch, self.projector, project_both=False)
        with torch.no_grad():
            (b,) = gather(len(batch.index), self.key(batch.views[1]))
            keys = self.queue.valid()[0]
            teacher, assigned = self._pseudo_labels(o, batch)
            extras = {"b": b, "assigned": assigned, **self._scores(b, keys, batch)}
            tau = self._temperature(extras, batch)

        # Representation, Eq. (2)-(3): the positive key is one more column beside the queue.
        rep, l_u, l_sup = self._representation(h, b, tau, batch)

        # Classification, Eq. (4)-(5): labels replace the teacher, and there is no other weighting.
        student = (o[0] / opt.tau_s, o[1] / opt.tau_s)
        probability = F.softmax(torch.cat(student), dim=1)
        extras |= {"l_u": l_u, "l_sup": l_sup, "confidence": probability[: len(b)].detach().amax(1)}
        return Step(
            {
                "representation": rep,
                "classification": losses.crossed_distillation(teacher, student),
                "entropy": opt.epsilon * losses.entropy_gap(probability),
            },
            extras,
        )

    def _pseudo_labels(self, o: tuple[Tensor, Tensor], batch: Batch) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Eq. (11): q = softmax((f(z') + lambda_var u) / tau_t), the label itself where there is one; class of S^c."""
        opt = self.options
        tau_t = teacher_temperature(batch.epoch, *opt.tau_t, opt.tau_t_epochs, opt.tau_t_shape)
        labelled = batch.target >= 0
        y = F.one_hot(batch.target.clamp_min(0), self.n_classes).float()
        q = []
        for logits in (o[0].detach(), o[1].detach()):
            mask = F.one_hot(logits.argmax(1), self.n_classes) if opt.u_mask == "top1" else 1.0
            soft = F.softmax((logits + opt.lambda_var * opt.u_scale * self.u * mask) / tau_t, dim=1)
            q.append(torch.where(labelled[:, None], y, soft))
        guess = q[0] if opt.pseudo_label == "teacher" else o[0].detach()
        return (q[0], q[1]), torch.where(labelled, batch.target, guess.argmax(1))

    def _scores(self, b: Tensor, keys: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Tailedness scores s_i of Eq. (7) and their range, on the queue and the prototypes before this step."""
        opt = self.options
        to_queue, to_batch = self.prototypes @ keys.T, self.prototypes @ b.T  # (M, Q), (M, B)
        if opt.score == "loss":
            s, low, high = self.loss_memory.score(batch.index)
        elif len(keys) == 0:
            s, low, high = b.new_zeros(len(b)), b.new_zeros(()), b.new_zeros(())
        else:
            d = neighbour_density(
                to_queue if opt.score == "prototype" else b @ keys.T,
                opt.n_neighbours,
                weighting=opt.knn_weighting,
                scale=opt.density_scale,
            )
            s, low, high = (d[to_batch.argmax(0)] if opt.score == "prototype" else d), d.min(), d.max()
        return {"to_queue": to_queue, "to_batch": to_batch, "s": s, "low": low, "high": high}

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

    @torch.no_grad()
    def after_step(self, batch: Batch, step: Step) -> None:
        """Key network, queue, prototypes (Eq. 8), and at the end of an epoch the class uncertainty (Eq. 10)."""
        opt, e = self.options, step.extras
        self.key.follow(nn.Sequential(self.tail, self.projector))
        slots = self.queue.slots(len(e["b"]))
        self.queue.push(e["b"], batch.target, batch.index)
        if opt.proto_update == "batch":
            members, assigned = e["b"], e["to_batch"].argmax(0)
        else:  # of the similarities to the queue only the new entries' columns have changed
            members = self.queue.valid()[0]
            to_queue = F.pad(e["to_queue"], (0, len(members) - e["to_queue"].shape[1]))
            to_queue[:, slots] = e["to_batch"][:, -len(slots) :]
            assigned = to_queue.argmax(0)
        self.prototypes.copy_(update_prototypes(self.prototypes, members, assigned, opt.lambda_tail))

        if opt.uncertainty == "confidence":
            self.statistics.add(e["confidence"], e["assigned"])
        elif e["to_queue"].shape[1]:  # against an empty queue there is no density
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
        """Density of each row's nearest prototype, by the key network: low = tail."""
        keys, _, _ = self.queue.valid()
        if len(keys) == 0:
            return None
        d = neighbour_density(self.prototypes @ keys.T, self.options.n_neighbours, weighting=self.options.knn_weighting)
        return d[(self.key(x) @ self.prototypes.T).argmax(1)]
