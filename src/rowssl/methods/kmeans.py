"""k-means on the encoder's features, read out as nearest centroids: the paper's first baseline (section 4).

How every method without heads ends: clusters of its features, the known classes' first, as one nearest-centroid classifier.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from rowssl.clustering.assignment import hungarian
from rowssl.clustering.kmeans import kmeans, semi_supervised_kmeans
from rowssl.core import distributed
from rowssl.data.feed import Feed
from rowssl.methods.base import Method, option

BEYOND = 4.0  # length of a centroid that no unit feature is nearest to


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

    def finish(self, feed: Feed) -> None:
        """Centroids of unit features become the classifier; the clusters of known classes come first."""
        read_out(self, feed, "kmeans", n_init=self.options.n_init, max_iter=self.options.max_iter)


@torch.no_grad()
def read_out(method: Method, feed: Feed, how: str, *, n_init: int, max_iter: int) -> None:
    """Cluster the unit features of all training rows and write the centroids into the method's classifier."""
    features, target = method.unit_features(feed), feed.targets.cpu()
    sizes = {"n_old": method.n_old, "n_classes": method.n_classes}
    rules = {"seed": method.seed, "n_init": n_init, "max_iter": max_iter, "progress": distributed.rank() == 0}
    centres = class_centres(features, target, how, **sizes, **rules, to_the_end=True)
    method.classifier.set_centroids(centres)


def class_centres(features: Tensor, target: Tensor, how: str, *, n_old: int, n_classes: int, **rules: Any) -> Tensor:
    """Centroids (C, d) of features (N, d), those of the known classes first; target (N,) has -1 for unlabelled rows.

    "semi_kmeans" keeps labelled rows in the cluster of their class. "kmeans" clusters without labels, which then only tell
    which cluster to call which known class. Clusters for which there are no rows get a centroid out of reach. `rules` are
    those of both functions.
    """
    if how == "semi_kmeans":
        labelled = target[target >= 0]
        k = min(n_classes, len(labelled.unique()) + len(target) - len(labelled))
        centres = torch.as_tensor(semi_supervised_kmeans(features, target, k, **rules).centers)
    else:
        k = min(n_classes, len(features))
        found = kmeans(features, k, **rules)
        order = known_first(torch.as_tensor(found.labels).cpu(), target, n_old, k)
        centres = torch.as_tensor(found.centers)[order.to(found.centers.device)]
    missing = centres.new_full((n_classes - k, centres.shape[1]), BEYOND * centres.shape[1] ** -0.5)
    return torch.cat([centres, missing])


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
