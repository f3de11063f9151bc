"""PromptCAL (Zhang et al., CVPR 2023): auxiliary prompts, and contrastive affinity learning (CAL) in a second stage.

z is the feature of CLS and p that of the supervised prompts; h = g(z) and g'(p) are their embeddings, each with its own head.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rowssl import losses
from rowssl.affinity import cal_loss
from rowssl.data.loader import Feed
from rowssl.methods.base import Method, projector_sizes
from rowssl.methods.promptcal_parts import distillation, encode
from rowssl.methods.readout import READOUTS, check_choice, read_out
from rowssl.nn.heads import contrastive_head
from rowssl.nn.prompts import prompted
from rowssl.nn.state import MomentumCopy, Queue
from rowssl.types import Batch, Step


class PromptCAL(Method):
    """Stage 1 is GCD's loss on CLS and on the prompts; stage 2 adds positives that a graph over a memory bank finds."""

    key: Tensor  # seed of the draws of a step

    def __init__(
        self,
        tail: nn.Module,
        *,
        n_prompts: int = 5,  # in every block
        n_supervised: int = 2,  # of them, for the auxiliary feature
        trained_blocks: int = 0,  # of a tail of blocks; 0: all, 1: the last, as published
        prompt_weight: float = 0.35,  # of the loss on the prompts
        stage1_share: float = 200 / 270,  # of the epochs
        supervised_weight: float = 0.35,  # lambda
        tau_u: float = 1.0,  # InfoNCE
        tau_c: float = 0.07,  # supervised contrastive
        tau_a: float = 0.07,  # CAL
        affinity_weight: float = 0.6,  # w: how much of the unlabelled part is CAL instead of InfoNCE
        affinity_epochs: int = 2,  # in which w rises from 0
        n_neighbours: int = 10,  # K of the graph
        quantile: float = 0.5,  # of large affinities, above which a bank row is a positive
        n_negatives: int = 1024,  # with the positives
        bank_size: int = 2048,  # 4096 in the paper, for five times the images; two views of an image are two entries
        teacher_momentum: float = 0.999,
        distill: float = 0.0,  # weight that keeps z near the untrained encoder's (0.5 in the paper, on ImageNet); falls
        projector_hidden: int | None = None,
        projector_out: int | None = None,
        head_outputs: int = 0,  # directions on top of the projector, 65,536 in the paper; 0: none
        readout: str = "semi_kmeans",
        n_init: int = 10,
        max_iter: int = 200,
        **common: Any,
    ) -> None:
        sizes = {"n_prompts": n_prompts, "n_supervised": n_supervised, "trained_blocks": trained_blocks}
        super().__init__(self.wrap_tail(tail, {**sizes, "seed": common.get("seed", 0)}), **common)
        hidden, out = projector_sizes(self.out_dim, projector_hidden, projector_out)
        self.projector, self.prompt_projector = (
            contrastive_head(self.out_dim, hidden=hidden, out=out, outputs=head_outputs, generator=self.generator)
            for _ in range(2)
        )
        self.teacher = MomentumCopy(self._student(), teacher_momentum)
        self.bank, self.prompt_bank = (Queue(min(bank_size, 2 * self.n_rows), self.out_dim) for _ in range(2))
        self.initial = MomentumCopy(tail, 1.0) if distill else None
        self.register_buffer("key", torch.tensor(self.seed))
        self.prompt_weight, self.stage1_share, self.distill = prompt_weight, stage1_share, distill
        self.supervised_weight, self.affinity_weight = supervised_weight, affinity_weight
        self.tau_u, self.tau_c, self.tau_a, self.affinity_epochs = tau_u, tau_c, tau_a, affinity_epochs
        self.n_neighbours, self.quantile, self.n_negatives = n_neighbours, quantile, n_negatives
        self.readout, self.n_init, self.max_iter = check_choice("readout", readout, READOUTS), n_init, max_iter

    @staticmethod
    def wrap_tail(tail: nn.Module, options: dict[str, Any]) -> nn.Module:
        """The tail with prompts."""
        taken = {"n_prompts", "n_supervised", "trained_blocks", "seed"} & options.keys()
        return prompted(tail, **{name: options[name] for name in taken})

    def _student(self) -> nn.ModuleList:
        return nn.ModuleList([self.tail, self.projector, self.prompt_projector])

    @torch.no_grad()
    def start(self, feed: Feed) -> None:
        """The untrained encoder gets the scale of its input too."""
        super().start(feed)
        if self.initial is not None:
            self.initial.follow(self.tail.tail)  # type: ignore[arg-type]

    def _stage2(self, epochs: int) -> int:
        """First epoch of stage 2."""
        return round(self.stage1_share * epochs)

    @torch.no_grad()
    def begin_epoch(self, feed: Feed, epoch: int) -> None:
        """The teacher starts stage 2 as the student."""
        if epoch == self._stage2(feed.epochs):
            self.teacher.module.load_state_dict(self._student().state_dict())

    def loss(self, batch: Batch) -> Step:
        """(1 - lambda) [(1 - w) InfoNCE + w CAL] + lambda SupCon on CLS, and 0.35 times the same on the prompts."""
        age = batch.epoch - self._stage2(batch.epochs)  # epochs of stage 2
        w = self.affinity_weight * min(1.0, (age + 0.5) / max(1, self.affinity_epochs)) if age >= 0 else 0.0
        z, h, p, g = encode(self._student(), batch)
        if age < 0:
            of_cls, of_prompts, extras = self._gcd(h, batch), self._gcd(g, batch), {}
            of_cls["affinity"] = z.sum() * 0.0
        else:
            with torch.no_grad():
                kz, kh, kp, kg = encode(self.teacher.module, batch)
            extras = {"z": kz, "p": kp}
            of_cls, of_prompts = self._gcd(h, batch, kh, w), self._gcd(g, batch, kg, w)
            of_cls["affinity"] = (1 - self.supervised_weight) * w * self._cal(z, kz, self.bank, batch, 0)
            of_prompts["affinity"] = (1 - self.supervised_weight) * w * self._cal(p, kp, self.prompt_bank, batch, 1)
        of_cls["prompt"] = self.prompt_weight * torch.stack(list(of_prompts.values())).sum()
        if self.initial is not None:
            of_cls["distillation"] = self.distill * distillation(self.initial, z, batch)
        return Step(of_cls, extras)

    def _gcd(self, h: Tensor, batch: Batch, keys: Tensor | None = None, w: float = 0.0) -> dict[str, Tensor]:
        """Contrastive terms of one kind of token; the teacher's embeddings are the keys in stage 2."""
        first, second = h.chunk(2)
        contrastive = (1 - self.supervised_weight) * (1 - w) * losses.info_nce_batch(first, second, self.tau_u, keys)
        supervised = self.supervised_weight * losses.sup_con(first, second, batch.target, self.tau_c, keys)
        return {"contrastive": contrastive, "supervised_contrastive": supervised}

    def _cal(self, z: Tensor, keys: Tensor, bank: Queue, batch: Batch, kind: int) -> Tensor:
        """CAL: positives are the teacher's feature of the other view, and the bank rows that belong to it."""
        entries, labels, _ = bank.valid()
        order = np.random.default_rng([int(self.key), 33, batch.step, kind]).permutation(len(entries))
        return cal_loss(
            z, keys.roll(len(keys) // 2, 0), entries, target=batch.target.repeat(2), bank_target=labels,
            k=self.n_neighbours, quantile=self.quantile, count=self.n_negatives,
            order=torch.from_numpy(order).to(z.device), tau=self.tau_a,
        )  # fmt: skip

    @torch.no_grad()
    def after_step(self, batch: Batch, step: Step) -> None:
        """Stage 2: the teacher follows, and its features enter the banks."""
        if step.extras:
            self.teacher.follow(self._student())
            for bank, name in ((self.bank, "z"), (self.prompt_bank, "p")):
                bank.push(step.extras[name], batch.target.repeat(2), batch.index.repeat(2))

    def finish(self, feed: Feed) -> None:
        """Semi-supervised k-means on the features of CLS."""
        read_out(self, feed, self.readout, n_init=self.n_init, max_iter=self.max_iter)
