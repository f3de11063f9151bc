"""BaCon (Bai et al., NeurIPS 2023): a classification and a contrastive branch that help each other through an estimated prior.

The contrastive (CL) branch is `tail`: k-means on its features estimates the class distribution pi, and is the model at the
end. The classification (CE) branch has a tail and a cosine classifier of its own; it is regularised towards pi and gives
the contrastive branch its soft labels.
"""

from __future__ import annotations

import copy
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rowssl.clustering.assignment import hungarian
from rowssl.clustering.kmeans import kmeans
from rowssl.core.distributed import gather
from rowssl.core.errors import InputError
from rowssl.data.feed import Batch, Feed
from rowssl.methods import losses
from rowssl.methods.base import Method, Step, option, projector_sizes, teacher_temperature
from rowssl.methods.heads import CosineClassifier, contrastive_head
from rowssl.methods.kmeans import read_out


def class_sizes(cluster: Tensor, target: Tensor, n_old: int, n_classes: int, how: str) -> Tensor:
    """Estimated rows of each class (C,), at least 1, from clusters (N,) and targets (N,), -1 for unlabelled.

    Clusters and known classes are matched on the labelled rows' share of the cluster. The sizes of the matched clusters go
    to the known classes, by rank or as matched; those of the others to the novel heads, largest first.
    """
    size = torch.bincount(cluster, minlength=n_classes)
    known = target >= 0
    pairs = torch.bincount(cluster[known] * n_old + target[known], minlength=n_classes * n_old)
    share = pairs.view(n_classes, n_old) / size.clamp_min(1)[:, None]
    clusters, classes = hungarian(share.numpy())
    place = torch.empty(n_old, dtype=torch.long)
    place[torch.from_numpy(classes)] = torch.from_numpy(clusters)
    old = size[place]
    if how == "rank":
        labels = torch.bincount(target[known], minlength=n_old)
        old[labels.argsort(stable=True)] = old.sort().values
    rest = torch.ones(n_classes, dtype=torch.bool)
    rest[place] = False
    return torch.cat([old, size[rest].sort(descending=True).values]).clamp_min(1)


def true_sizes(truth: Tensor | None, n_old: int, n_classes: int) -> Tensor:
    """What `class_sizes` would be at best: the true sizes (C,), those of the novel classes largest first."""
    if truth is None:
        raise InputError("The oracle prior of BaCon needs the true class of every row (oracle_truth).")
    size = torch.bincount(truth, minlength=n_classes)
    return torch.cat([size[:n_old], size[n_old:].sort(descending=True).values])[:n_classes].clamp_min(1)


def keep_most_confident(confidence: Tensor, predicted: Tensor, drawn: Tensor, n_classes: int) -> Tensor:
    """Of each predicted class as many rows as were drawn, but the most confident ones: (n,), (n,), (n,) bool -> (n,) bool."""
    wanted = torch.bincount(predicted[drawn], minlength=n_classes)
    order = confidence.argsort(descending=True, stable=True)
    order = order[predicted[order].argsort(stable=True)]  # by class, the most confident first
    first = torch.bincount(predicted, minlength=n_classes).cumsum(0).roll(1)
    first[0] = 0
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device) - first[predicted[order]]
    return rank < wanted[predicted]


def debiased_entropy_gap(probability: Tensor, size: Tensor, power: float) -> Tensor:
    """R = log C - H(p~), p~ proportional to mean prediction / size^power: least when the prediction follows the estimate."""
    debiased = probability.mean(0) / size**power
    return losses.entropy_gap((debiased / debiased.sum())[None])


def soft_contrastive(first: Tensor, second: Tensor, label: Tensor, temperature: float) -> Tensor:
    """Supervised contrastive loss whose positives weigh as much as the soft labels agree: (n, d), (n, d), (n, C) -> scalar.

    w_ij = <label_i, label_j>, and 1 for the two views of a row; 0 when there is no row.
    """
    features = torch.cat([first, second])
    if len(features) == 0:
        return features.sum()
    itself = torch.eye(len(features), dtype=torch.bool, device=features.device)
    log_probability = F.log_softmax((features @ features.T / temperature).masked_fill(itself, -torch.inf), dim=1)
    agreement = (label @ label.T).fill_diagonal_(1.0).repeat(2, 2).masked_fill(itself, 0.0)
    return -((agreement * log_probability.masked_fill(itself, 0.0)).sum(1) / agreement.sum(1)).mean()


class BaCon(Method):
    """Two tails, one estimate of how many rows each class has."""

    name: ClassVar[str] = "bacon"
    label: ClassVar[str] = "BaCon"

    size: Tensor  # estimated rows of each class, (C,)
    draw_seed: Tensor  # of the sampling

    class Options(Method.Options):
        """Hyper-parameters of BaCon."""

        projector_hidden: int | None = option(
            None, "width of the projector's hidden layers; by default as the feature's width asks"
        )
        projector_out: int | None = option(
            None, "length of the projector's embedding; by default as the feature's width asks"
        )
        head_outputs: int = option(0, "directions on top of the projector, 65,536 in the paper; 0: none")
        supervised_weight: float = option(0.35, "lambda: labelled terms get it, unlabelled ones 1 - lambda")
        epsilon: float = option(1.0, "weight of the debiasing regulariser")
        debias_power: float = option(1.1, "the mean prediction is divided by size^debias_power")
        adjust_power: float = option(0.5, "soft labels are softmax(o / tau_s - adjust_power log pi)")
        alpha: float = option(0.0, "sampling rate (min size / size)^alpha of classes with a label in the batch")
        beta: float = option(0.5, "sampling rate (min size / size)^beta of the other classes")
        soft_from: int = option(1, "first epoch with the soft contrastive term")
        estimate_every: int = option(10, "epochs between estimates of the class distribution")
        class_prior: Literal["rank", "matched", "oracle"] = option(
            "rank",
            "sizes of the clusters matched to known classes: rank (published) hands them out in the order of the labelled "
            "counts, so labelled and unlabelled rows must agree on it; matched: as they are; oracle: all true sizes",
        )
        tau_s: float = option(0.1, "student temperature")
        tau_t: tuple[float, float] = option(
            (0.07, 0.04), "teacher temperature, in the first epoch and from tau_t_epochs on"
        )
        tau_t_epochs: int = option(30, "epochs in which the teacher temperature falls")
        tau_u: float = option(1.0, "temperature of InfoNCE")
        tau_c: float = option(0.07, "temperature of the supervised and the soft contrastive loss")
        readout: Literal["kmeans", "semi_kmeans", "classifier"] = option(
            "kmeans", "clusters of the features, or classifier: the CE branch answers, which the paper discards"
        )
        n_init: int = option(10, "starts of the k-means that reads the classes out")
        max_iter: int = option(300, "rounds of each start at the most")

    options: Options

    def __init__(self, tail: nn.Module, *, oracle_truth: Tensor | None = None, **arguments: Any) -> None:
        super().__init__(tail, **arguments)
        opt = self.options
        hidden, out = projector_sizes(self.out_dim, opt.projector_hidden, opt.projector_out)
        self.projector = contrastive_head(
            self.out_dim, hidden=hidden, out=out, outputs=opt.head_outputs, generator=self.generator
        )
        self.ce_tail = copy.deepcopy(tail)
        self.ce_classifier = CosineClassifier(self.out_dim, self.n_classes, generator=self.generator)
        self.register_buffer("size", torch.full((self.n_classes,), self.n_rows / self.n_classes))
        self.register_buffer("draw_seed", torch.tensor(self.seed))
        if opt.class_prior == "oracle":
            self.size.copy_(true_sizes(oracle_truth, self.n_old, self.n_classes))

    def start(self, feed: Feed) -> None:
        """Both branches start as the same network."""
        super().start(feed)
        self.ce_tail.load_state_dict(self.tail.state_dict())

    @torch.no_grad()
    def begin_epoch(self, feed: Feed, epoch: int) -> None:
        """Estimate the class distribution by k-means on the contrastive branch's features."""
        opt = self.options
        if opt.class_prior != "oracle" and epoch % opt.estimate_every == 0:
            k = min(self.n_classes, len(feed))
            found = kmeans(self.unit_features(feed), k, seed=feed.seed, n_init=opt.n_init, max_iter=opt.max_iter)
            cluster, target = torch.as_tensor(found.labels).cpu(), feed.targets.cpu()
            self.size.copy_(class_sizes(cluster, target, self.n_old, self.n_classes, opt.class_prior))

    def loss(self, batch: Batch) -> Step:
        """CE: (1 - lambda) (distillation + epsilon R) + lambda cross-entropy; CL: GCD's two terms and the soft one."""
        opt = self.options
        x = batch.both_views
        o0, o1, h0, h1 = gather(
            len(batch.index), *self.ce_classifier(self.ce_tail(x)).chunk(2), *self.projector(self.tail(x)).chunk(2)
        )
        tau_t = teacher_temperature(batch.epoch, *opt.tau_t, opt.tau_t_epochs)
        teacher = (F.softmax(o0.detach() / tau_t, dim=1), F.softmax(o1.detach() / tau_t, dim=1))
        student = (o0 / opt.tau_s, o1 / opt.tau_s)
        regulariser = debiased_entropy_gap(F.softmax(torch.cat(student), dim=1), self.size, opt.debias_power)

        weight = share = opt.supervised_weight
        soft = h0.sum() * 0.0
        if batch.epoch >= opt.soft_from:  # half of the weight of the labels goes to the soft labels
            label, kept = self._soft_labels(student, batch)
            soft, share = soft_contrastive(h0[kept], h1[kept], label[kept], opt.tau_c), weight / 2
        return Step(
            {
                "distillation": (1 - weight) * losses.crossed_distillation(teacher, student),
                "debiasing": (1 - weight) * opt.epsilon * regulariser,
                "classification": weight * losses.labelled_cross_entropy(student, batch.target),
                "contrastive": (1 - weight) * losses.info_nce_batch(h0, h1, opt.tau_u),
                "supervised_contrastive": share * losses.sup_con(h0, h1, batch.target, opt.tau_c),
                "soft_contrastive": share * soft,
            }
        )

    @torch.no_grad()
    def _soft_labels(self, student: tuple[Tensor, Tensor], batch: Batch) -> tuple[Tensor, Tensor]:
        """Debiased soft labels (B, C) of the rows, and which rows take part: all labelled, sampled unlabelled ones (B,)."""
        opt = self.options
        adjust = opt.adjust_power * (self.size / self.size.sum()).log()
        label = (F.softmax(student[0] - adjust, dim=1) + F.softmax(student[1] - adjust, dim=1)) / 2
        unlabelled = batch.target < 0
        present = torch.zeros_like(self.size, dtype=torch.bool)
        present[batch.target[~unlabelled]] = True
        scarce = self.size.min() / self.size
        rate = torch.where(present, scarce**opt.alpha, scarce**opt.beta)
        confidence, predicted = label[unlabelled].max(1)
        chance = np.random.default_rng([int(self.draw_seed), 31, batch.step]).random(len(predicted))
        drawn = torch.from_numpy(chance).to(rate.device) < rate[predicted]
        kept = ~unlabelled
        kept[unlabelled] = keep_most_confident(confidence, predicted, drawn, self.n_classes)
        return label, kept

    def finish(self, feed: Feed) -> None:
        """The model is the contrastive branch with clusters of its features, or the classification branch."""
        opt = self.options
        if opt.readout == "classifier":
            self.tail.load_state_dict(self.ce_tail.state_dict())
            self.classifier.load_state_dict(self.ce_classifier.state_dict())
        else:
            read_out(self, feed, opt.readout, n_init=opt.n_init, max_iter=opt.max_iter)
