"""Where a learnt classifier begins: at random, at clusters of the features, or at the answer of the closed form `transfer`."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor

from rowssl.data.feed import Feed, sample_rows
from rowssl.encoders.tails import is_from_scratch
from rowssl.methods.base import Method, joined
from rowssl.methods.kmeans import class_centres
from rowssl.methods.transfer import Transfer

START_ROWS = 100_000  # rows that clusters are found from, at the most


@torch.no_grad()
def start_classifier(method: Method, feed: Feed, how: str) -> None:
    """Give the classifier its first directions in the space of the tail's features; "random" leaves them as they are."""
    if how == "transfer" and is_from_scratch(method.tail):
        return  # features of a network that has learnt nothing have no answer to begin with
    if how == "transfer":
        method.classifier.set_directions(transferred(method, feed))
    elif how != "random":
        target = feed.targets.cpu()
        sizes = {"n_old": method.n_old, "n_classes": method.n_classes}
        if len(feed) > START_ROWS:
            some = sample_rows(target.numpy(), method.n_old, START_ROWS, method.seed)
            target = target[torch.from_numpy(some)]
            features = joined((F.normalize(method.tail(x), dim=1) for _, x in feed.chunks(some)), len(some))
        else:
            features = method.unit_features(feed)
        centres = class_centres(features, target, how, **sizes, seed=method.seed, n_init=10, max_iter=100)
        method.classifier.set_directions(centres)


def transferred(method: Method, feed: Feed) -> Tensor:
    """Mean unit feature of the rows that the closed form puts in each class, labelled rows in their own: (C, d).

    The closed form looks at the features in a metric of its own; what it says of the rows holds in any space. A class that it
    leaves empty keeps the direction it has.
    """
    closed = Transfer(
        copy.deepcopy(method.tail), tune=False,
        n_old=method.n_old, n_classes=method.n_classes, n_rows=method.n_rows, seed=method.seed,
    ).to(feed.device)  # fmt: skip
    closed.finish(feed)
    closed.to(method.classifier.weight.dtype)
    sums = torch.zeros_like(method.classifier.weight)
    for rows, x in feed.chunks():
        target = feed.targets[torch.from_numpy(rows).to(feed.device)]
        label = torch.where(target >= 0, target, closed.predict_logits(x).argmax(1))
        sums.index_add_(0, label, F.normalize(method.tail(x), dim=1))
    empty = sums.norm(dim=1, keepdim=True) < 1e-9
    return torch.where(empty, method.classifier.weight, F.normalize(sums, dim=1))
