"""k-means on the encoder's features, read out as nearest centroids: the paper's first baseline (section 4)."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from rowssl.clustering.assignment import hungarian
from rowssl.clustering.kmeans import kmeans
from rowssl.core import distributed
from rowssl.data.feed import Feed
from rowssl.methods.base import Method, option


class KMeans(Method):
    """Cluster labelled and unlabelled rows together; labels only tell which cluster to call which known class."""

    name: ClassVar[str] = "kmeans"
    label: ClassVar[str] = "k-means"

    trains: ClassVar[bool] = False

    class Options(Method.Options):
        """Hyper-parameters of k-means."""

        n_init: int = option(10, "starts of the k-means that reads the classes out")
        max_iter: int = option(300, "rounds of each start at the most")

    options: Options

    def __init__(self, tail: nn.Module, **arguments: Any) -> None:
        super().__init__(tail, **arguments)

    @torch.no_grad()
    def finish(self, feed: Feed) -> None:
        """Centroids of unit features become the classifier; the clusters of known classes come first."""
        features = self.unit_features(feed)
        rules: dict[str, Any] = {"seed": self.seed, "n_init": self.options.n_init, "max_iter": self.options.max_iter}
        found = kmeans(features, self.n_classes, **rules, to_the_end=True, progress=distributed.rank() == 0)
        order = known_first(found.labels.cpu(), feed.targets.cpu(), self.n_old, self.n_classes)
        self.classifier.set_centroids(found.centers[order])


def known_first(cluster: Tensor, target: Tensor, n_old: int, n_classes: int) -> Tensor:
    """Order of clusters such that place c < n_old is the cluster matched to known class c on the labelled rows.

    cluster (N,), target (N,) with -1 for unlabelled -> (n_classes,). The remaining clusters follow by size, largest first.
    """
    labelled = target >= 0
    pairs = cluster[labelled] * n_old + target[labelled]
    counts = torch.bincount(pairs, minlength=n_classes * n_old).view(n_classes, n_old)
    place = np.full(n_old, -1)
    clusters, classes = hungarian(counts.numpy())
    place[classes] = clusters
    sizes = torch.bincount(cluster, minlength=n_classes).numpy()
    rest = [c for c in np.argsort(-sizes, kind="stable") if c not in set(place[place >= 0])]
    order = [int(c) if c >= 0 else int(rest.pop()) for c in place] + [int(c) for c in rest]
    return torch.tensor(order[:n_classes])
