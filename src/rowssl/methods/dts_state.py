"""What DTS knows of tailedness (section 3.2): queue, prototypes, density, class uncertainty, and how they follow the training.

The losses that use it are in `dts.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rowssl.cluster import kmeans
from rowssl.data.loader import Feed
from rowssl.density import (
    ClassStatistics,
    nearest_prototype,
    neighbour_density,
    refresh_uncertainty,
    to_queue,
    update_prototypes,
)
from rowssl.errors import InputError
from rowssl.methods.base import Method, joined, projector_sizes, seeded_rows
from rowssl.methods.dts_choices import ClassPrior, LossMemory
from rowssl.methods.dts_options import dts_options
from rowssl.methods.start import START_ROWS, start_classifier
from rowssl.nn.heads import Projector
from rowssl.nn.state import MomentumCopy, Queue
from rowssl.resting import Resting
from rowssl.types import Batch, Step


class TailednessState(Method):
    """The networks of DTS and everything it remembers between steps."""

    may_lack = ("resting.",)  # nothing rests, then
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
        self.resting = Resting(len(self.prototypes), self.queue.size, opt.n_neighbours)
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

    def _scores(self, b: Tensor, keys: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Tailedness scores s_i of Eq. (7) and their range, on the queue and the prototypes before this step."""
        opt = self.options
        similarity = to_queue(self.prototypes, b)  # (M, B)
        chosen = nearest_prototype(similarity)  # (B,)
        d, queue_prototype = self.resting.ask(self.prototypes, keys, opt.knn_weighting, opt.density_scale)
        s = d[chosen]
        if opt.score == "instance":
            d = s = neighbour_density(
                to_queue(b, keys), opt.n_neighbours, weighting=opt.knn_weighting, scale=opt.density_scale
            )
        low, high = d.min(), d.max()
        if opt.score == "loss":
            s, low, high = self.loss_memory.score(batch.index)
        found = {"batch_similarity": similarity, "batch_prototype": chosen, "queue_prototype": queue_prototype}
        return {**found, "s": s, "low": low, "high": high}

    @torch.no_grad()
    def after_step(self, batch: Batch, step: Step) -> None:
        """Key network, queue, prototypes (Eq. 8), and at the end of an epoch the class uncertainty (Eq. 10)."""
        opt, e = self.options, step.extras
        self.key.follow(nn.Sequential(self.tail, self.projector))
        slots, filled = self.queue.slots(len(e["b"])), self.queue.filled
        self.queue.push(e["b"], batch.target, batch.index)
        members, latest = self.queue.valid()[0], slice(-len(slots), None)
        if opt.proto_update == "batch":
            moving, assigned = e["b"], e["batch_prototype"]
        else:  # the entries that are new are the batch's; the others are nearest to what they were
            moving, assigned = members, slots.new_empty(len(members))
            assigned[:filled] = e["queue_prototype"]
            assigned[slots] = e["batch_prototype"][latest]
        still = torch.bincount(assigned, minlength=len(self.prototypes)) == 0
        if self.resting.worth_it and filled == self.queue.size:
            self.resting.follow(self.prototypes, members, slots, e["batch_similarity"][:, latest], still)
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
