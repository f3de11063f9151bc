"""SimGCD (Wen et al., ICCV 2023): self-distillation with a cosine classifier, and contrastive learning in the batch."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import nn

from rowssl.data.feed import Batch, Feed
from rowssl.methods import losses
from rowssl.methods.base import Method, Step, cosine, option, projector_sizes, teacher_temperature
from rowssl.methods.heads import Projector
from rowssl.methods.start import start_classifier


class SimGCD(Method):
    """Component row (a) of the DTS paper: no momentum network, no tailedness."""

    name: ClassVar[str] = "simgcd"
    label: ClassVar[str] = "SimGCD"

    class Options(Method.Options):
        """Hyper-parameters of SimGCD."""

        projector_hidden: int | None = option(
            None, "width of the projector's hidden layers; by default as the feature's width asks"
        )
        projector_out: int | None = option(
            None, "length of the projector's embedding; by default as the feature's width asks"
        )
        epsilon: float = option(
            1.0, "weight of the mean-entropy regulariser; 4 in the paper for CIFAR-100, 1 elsewhere"
        )
        supervised_weight: float = option(0.35, "lambda: labelled terms get it, unlabelled ones 1 - lambda")
        tau_s: float = option(0.1, "student temperature")
        tau_t: tuple[float, float] = option(
            (0.07, 0.04), "teacher temperature, in the first epoch and from tau_t_epochs on"
        )
        tau_t_epochs: int = option(30, "epochs in which the teacher temperature falls")
        tau_u: float = option(1.0, "temperature of InfoNCE")
        temperature: Literal["constant", "cosine"] = option(
            "constant", "of InfoNCE: tau_u, or cosine: a schedule from tau_u down to tau_min"
        )
        tau_min: float = option(0.1, "where the cosine schedule of InfoNCE ends")
        tau_c: float = option(0.07, "temperature of the supervised contrastive loss")
        classifier_init: Literal["random", "kmeans", "semi_kmeans", "transfer"] = option(
            "transfer", "where the classifier begins: random, clusters of the features, or the answer of transfer"
        )

    options: Options

    def __init__(self, tail: nn.Module, **arguments: Any) -> None:
        super().__init__(tail, **arguments)
        opt = self.options
        hidden, out = projector_sizes(self.out_dim, opt.projector_hidden, opt.projector_out)
        self.projector = Projector(self.out_dim, hidden=hidden, out=out, generator=self.generator)

    def start(self, feed: Feed) -> None:
        """The first directions of the classifier."""
        super().start(feed)
        start_classifier(self, feed, self.options.classifier_init)

    def loss(self, batch: Batch) -> Step:
        """0.65 (distillation + eps (log C - H) + InfoNCE) + 0.35 (cross-entropy + supervised contrastive)."""
        opt = self.options
        o, (h0, h1) = self.two_views(batch, self.projector, project_both=True)
        o0, o1 = o.chunk(2)
        tau_t = teacher_temperature(batch.epoch, *opt.tau_t, opt.tau_t_epochs)
        teacher = (F.softmax(o0.detach() / tau_t, dim=1), F.softmax(o1.detach() / tau_t, dim=1))
        student = (o0 / opt.tau_s, o1 / opt.tau_s)

        weight, tau_u = opt.supervised_weight, opt.tau_u
        if opt.temperature == "cosine":
            tau_u = cosine(batch.epoch, batch.epochs, opt.tau_u, opt.tau_min)
        return Step(
            {
                "distillation": (1 - weight) * losses.crossed_distillation(teacher, student),
                "entropy": (1 - weight) * opt.epsilon * losses.entropy_gap(F.softmax(torch.cat(student), dim=1)),
                "classification": weight * losses.labelled_cross_entropy(student, batch.target),
                "contrastive": (1 - weight) * losses.info_nce_batch(h0, h1, tau_u),
                "supervised_contrastive": weight * losses.sup_con(h0, h1, batch.target, opt.tau_c),
            }
        )
