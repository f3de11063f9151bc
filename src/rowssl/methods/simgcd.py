"""SimGCD (Wen et al., ICCV 2023): self-distillation with a cosine classifier, and contrastive learning in the batch."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from rowssl.data.feed import Batch, Feed
from rowssl.methods import losses
from rowssl.methods.base import Method, Step, check_choice, cosine, projector_sizes, teacher_temperature
from rowssl.methods.heads import Projector
from rowssl.methods.start import STARTS, start_classifier


class SimGCD(Method):
    """Component row (a) of the DTS paper: no momentum network, no tailedness."""

    def __init__(
        self,
        tail: nn.Module,
        *,
        projector_hidden: int | None = None,
        projector_out: int | None = None,
        epsilon: float = 1.0,  # weight of the mean-entropy regulariser; 4 in the paper for CIFAR-100, 1 elsewhere
        supervised_weight: float = 0.35,  # lambda: labelled terms get it, unlabelled ones 1 - lambda
        tau_s: float = 0.1,
        tau_t: tuple[float, float] = (0.07, 0.04),
        tau_t_epochs: int = 30,
        tau_u: float = 1.0,  # InfoNCE
        temperature: str = "constant",  # of InfoNCE: tau_u, or "cosine": a schedule from tau_u down to tau_min
        tau_min: float = 0.1,
        tau_c: float = 0.07,  # supervised contrastive
        classifier_init: str = "transfer",  # or kmeans, semi_kmeans, random: where the classifier begins
        **common: Any,
    ) -> None:
        super().__init__(tail, **common)
        hidden, out = projector_sizes(self.out_dim, projector_hidden, projector_out)
        self.projector = Projector(self.out_dim, hidden=hidden, out=out, generator=self.generator)
        self.epsilon, self.supervised_weight = epsilon, supervised_weight
        self.tau_s, self.tau_t, self.tau_t_epochs, self.tau_u, self.tau_c = tau_s, tau_t, tau_t_epochs, tau_u, tau_c
        self.temperature, self.tau_min = check_choice("temperature", temperature, ("constant", "cosine")), tau_min
        self.classifier_init = check_choice("classifier_init", classifier_init, STARTS)

    def start(self, feed: Feed) -> None:
        """The first directions of the classifier."""
        super().start(feed)
        start_classifier(self, feed, self.classifier_init)

    def loss(self, batch: Batch) -> Step:
        """0.65 (distillation + eps (log C - H) + InfoNCE) + 0.35 (cross-entropy + supervised contrastive)."""
        o, (h0, h1) = self.two_views(batch, self.projector, project_both=True)
        o0, o1 = o.chunk(2)
        tau_t = teacher_temperature(batch.epoch, *self.tau_t, self.tau_t_epochs)
        teacher = (F.softmax(o0.detach() / tau_t, dim=1), F.softmax(o1.detach() / tau_t, dim=1))
        student = (o0 / self.tau_s, o1 / self.tau_s)

        weight, tau_u = self.supervised_weight, self.tau_u
        if self.temperature == "cosine":
            tau_u = cosine(batch.epoch, batch.epochs, self.tau_u, self.tau_min)
        return Step(
            {
                "distillation": (1 - weight) * losses.crossed_distillation(teacher, student),
                "entropy": (1 - weight) * self.epsilon * losses.entropy_gap(F.softmax(torch.cat(student), dim=1)),
                "classification": weight * losses.labelled_cross_entropy(student, batch.target),
                "contrastive": (1 - weight) * losses.info_nce_batch(h0, h1, tau_u),
                "supervised_contrastive": weight * losses.sup_con(h0, h1, batch.target, self.tau_c),
            }
        )
