"""PromptCAL (Zhang et al., CVPR 2023): auxiliary prompts, and contrastive affinity learning (CAL) in a second stage.

z is the feature of CLS and p that of the supervised prompts; h = g(z) and g'(p) are their embeddings, each with its own head.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rowssl import losses
from rowssl.affinity import cal_loss
from rowssl.data.loader import Feed
from rowssl.distributed import gather
from rowssl.methods.base import Method, projector_sizes
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
        bank_size: int = 4096,  # two views of an image are two entries
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
        size = min(bank_size, 2 * self.n_rows)
        self.bank, self.prompt_bank = Queue(size, self.out_dim), Queue(size, self.out_dim)
        self.initial = MomentumCopy(tail, 1.0) if distill else None
        self.register_buffer("key", torch.tensor(self.seed))
        self.prompt_weight, self.stage1_share, self.distill = prompt_weight, stage1_share, distill
        self.supervised_weight, self.tau_u, self.tau_c, self.tau_a = supervised_weight, tau_u, tau_c, tau_a
        self.affinity_weight, self.affinity_epochs = affinity_weight, affinity_epochs
        self.n_neighbours, self.quantile, self.n_negatives = n_neighbours, quantile, n_negatives
        self.readout, self.n_init, self.max_iter = check_choice("readout", readout, READOUTS), n_init, max_iter

    @staticmethod
    def wrap_tail(tail: nn.Module, options: dict[str, Any]) -> nn.Module:
        """The tail with prompts."""
        names = ("n_prompts", "n_supervised", "trained_blocks", "seed")
        return prompted(tail, **{name: options[name] for name in names if name in options})

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
        z, h, p, g = _encode(self._student(), batch)
        if age < 0:
            of_cls, of_prompts, extras = self._gcd(h, batch), self._gcd(g, batch), {}
            of_cls["affinity"] = z.sum() * 0.0
        else:
            with torch.no_grad():
                kz, kh, kp, kg = _encode(self.teacher.module, batch)
            extras = {"z": kz, "p": kp}
            of_cls, of_prompts = self._gcd(h, batch, kh, w), self._gcd(g, batch, kg, w)
            of_cls["affinity"] = (1 - self.supervised_weight) * w * self._cal(z, kz, self.bank, batch, 0)
            of_prompts["affinity"] = (1 - self.supervised_weight) * w * self._cal(p, kp, self.prompt_bank, batch, 1)
        of_cls["prompt"] = self.prompt_weight * torch.stack(list(of_prompts.values())).sum()
        if self.initial is not None:
            of_cls["distillation"] = self._distillation(z, batch)
        return Step(of_cls, extras)

    def _gcd(self, h: Tensor, batch: Batch, keys: Tensor | None = None, w: float = 0.0) -> dict[str, Tensor]:
        """Contrastive terms of one kind of token; the teacher's embeddings are the keys in stage 2."""
        first, second = h.chunk(2)
        contrastive = losses.info_nce_batch(first, second, self.tau_u, keys)
        supervised = losses.sup_con(first, second, batch.target, self.tau_c, keys)
        weight = self.supervised_weight
        return {"contrastive": (1 - weight) * (1 - w) * contrastive, "supervised_contrastive": weight * supervised}

    def _cal(self, z: Tensor, keys: Tensor, bank: Queue, batch: Batch, kind: int) -> Tensor:
        """CAL: positives are the teacher's feature of the other view, and the bank rows that belong to it."""
        entries, labels, _ = bank.valid()
        order = np.random.default_rng([int(self.key), 33, batch.step, kind]).permutation(len(entries))
        return cal_loss(
            z, keys.roll(len(keys) // 2, 0), entries, target=batch.target.repeat(2), bank_target=labels,
            k=self.n_neighbours, quantile=self.quantile, count=self.n_negatives,
            order=torch.from_numpy(order).to(z.device), tau=self.tau_a,
        )  # fmt: skip

    def _distillation(self, z: Tensor, batch: Batch) -> Tensor:
        """INKD: mean squared difference to the untrained encoder's unit features; the weight falls over 5 epochs."""
        assert self.initial is not None
        with torch.no_grad():
            local = F.normalize(self.initial(torch.cat(batch.views)), dim=1).chunk(2)
            before = torch.cat(gather(len(batch.index), *local))
        return self.distill * max(0.02, 1 - 0.98 * batch.epoch / 5) * F.mse_loss(z, before)

    @torch.no_grad()
    def after_step(self, batch: Batch, step: Step) -> None:
        """Stage 2: the teacher follows, and its features enter the banks."""
        if step.extras:
            self.teacher.follow(self._student())
            labels, rows = batch.target.repeat(2), batch.index.repeat(2)
            self.bank.push(step.extras["z"], labels, rows)
            self.prompt_bank.push(step.extras["p"], labels, rows)

    def finish(self, feed: Feed) -> None:
        """Semi-supervised k-means on the features of CLS."""
        read_out(self, feed, self.readout, n_init=self.n_init, max_iter=self.max_iter)


def _encode(parts: nn.Module, batch: Batch) -> tuple[Tensor, ...]:
    """Unit z, h, p and g'(p) of both views of the whole batch, each (2B, .)."""
    tail, projector, prompt_projector = parts.children()
    z, p = tail.with_prompts(torch.cat(batch.views))  # type: ignore[operator]
    local = (F.normalize(z, dim=1), projector(z), F.normalize(p, dim=1), prompt_projector(p))
    halves = gather(len(batch.index), *(half for part in local for half in part.chunk(2)))
    return tuple(torch.cat(pair) for pair in zip(halves[::2], halves[1::2], strict=True))
