"""How a method without heads ends: clusters of its features, the known classes' first, as one nearest-centroid classifier."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rowssl.clustering.constrained import semi_supervised_kmeans
from rowssl.clustering.kmeans import kmeans
from rowssl.core import distributed
from rowssl.data.feed import Feed
from rowssl.methods.base import Method
from rowssl.methods.kmeans import known_first

BEYOND = 4.0  # length of a centroid that no unit feature is nearest to


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
