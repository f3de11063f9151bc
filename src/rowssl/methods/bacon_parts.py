"""The parts of BaCon as plain functions: the estimate of class sizes, the sampling, and the two losses that are its own."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from rowssl import losses
from rowssl.cluster import hungarian
from rowssl.errors import InputError


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
