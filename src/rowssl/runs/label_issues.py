"""Labels that the pictures speak against, each judged without its own help.

A model has seen every label, so it agrees with nearly all of them, wrong ones too. Three things make its stored features a
judge: the metric is found anew from the unlabelled rows alone, since the spread of labelled ones was trained away; a labelled
row is taken out of the mean of its own class; and how much a cosine says is learnt from all other labels. A label is doubted
where another class is 1000 times as likely, or a novel one 2000 times, which has no labels to vouch for it.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rowssl.methods.transfer import whitening

RATIO = 1000.0  # of likelihoods, above which a label is doubted
NOVEL_RATIO = 2000.0
SHRINK = 0.005  # of the covariance towards the identity
SAMPLE = 20_000  # unlabelled rows that the covariance is found from, and labelled ones that the temperature is
PIECE = 4_096  # rows that are looked at together
TEMPERATURES = np.geomspace(0.01, 0.5, 25)
WRONG = 0.2  # share of labels that may be anything when the temperature is chosen: else wrong ones would choose it


def label_issues(
    feature: np.ndarray, head: np.ndarray, targets: np.ndarray, *, n_old: int, n_classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """For every row the class its picture speaks for against its label, and how strongly.

    Parameters
    ----------
    feature : (N, d) unit features.
    head : (N,) class of every row, its label where it has one.
    targets : (N,) labels, -1 = unlabelled.
    n_old, n_classes : known classes, which come first, and all classes.

    Returns
    -------
    issue : (N,) int64, -1 where nothing speaks against the label or there is none.
    doubt : (N,) float32, log of how many times likelier that class is than the label; 0 where there is no issue.

    Notes
    -----
    A label that is the only one of its class is not judged: without it nothing is known of the class.
    """
    issue, doubt = np.full(len(head), -1, dtype=np.int64), np.zeros(len(head), dtype=np.float32)
    counts = np.bincount(targets[targets >= 0], minlength=n_classes)
    rows = np.flatnonzero((targets >= 0) & (counts[targets] > 1))
    if not len(rows) or n_classes < 2:
        return issue, doubt
    space = _space(feature, head, targets, n_classes)
    sums = torch.zeros(n_classes, feature.shape[1])
    for begin in range(0, len(head), PIECE):
        part = slice(begin, begin + PIECE)
        sums.index_add_(0, torch.from_numpy(head[part]), _in_space(feature[part], space))

    def cosine_of(some: np.ndarray) -> tuple[Tensor, Tensor]:
        """Labels (n,), and the cosine with every class mean, that of the own class taken without the row: (n, C)."""
        z, label = _in_space(feature[some], space), torch.from_numpy(targets[some])
        own = (z * F.normalize(sums[label] - z, dim=1)).sum(1)
        return label, (z @ F.normalize(sums, dim=1).T).scatter_(1, label[:, None], own[:, None])

    label, cosine = cosine_of(rows[:: max(1, -(-len(rows) // SAMPLE))])
    temperature = _temperature(cosine[:, :n_old], label)
    handicap = torch.zeros(n_classes)
    handicap[n_old:] = float(np.log(NOVEL_RATIO / RATIO))
    handicap[torch.from_numpy(np.bincount(head, minlength=n_classes) == 0)] = torch.inf
    for begin in range(0, len(rows), PIECE):
        some = rows[begin : begin + PIECE]
        label, cosine = cosine_of(some)
        gain = (cosine - cosine.gather(1, label[:, None])) / temperature - handicap
        best, other = (part.numpy() for part in gain.scatter_(1, label[:, None], -torch.inf).max(1))
        found = best > np.log(RATIO)
        issue[some[found]], doubt[some[found]] = other[found], best[found]
    return issue, doubt


def _in_space(feature: np.ndarray, space: Tensor) -> Tensor:
    """Unit features in the metric `space`, (n, d)."""
    return F.normalize(torch.from_numpy(feature) @ space, dim=1)


def _space(feature: np.ndarray, head: np.ndarray, targets: np.ndarray, n_classes: int) -> Tensor:
    """W^-1/2 of the spread of unlabelled rows within their classes, (d, d); the identity where there are too few."""
    width = feature.shape[1]
    rows = np.flatnonzero(targets < 0)
    rows = rows[:: max(1, -(-len(rows) // SAMPLE))]
    counts = np.bincount(head[rows], minlength=n_classes)
    rows = rows[counts[head[rows]] > 1]
    if len(rows) < 2:
        return torch.eye(width)
    z, place, count = torch.from_numpy(feature[rows]), torch.from_numpy(head[rows]), torch.from_numpy(counts)
    means = torch.zeros(n_classes, width).index_add_(0, place, z) / count.clamp_min(1)[:, None]
    rest = z - means[place]
    weight = (count / (count - 1).clamp_min(1))[place]  # a mean of few rows is drawn to each of them
    within = ((rest * weight[:, None]).T @ rest).double()
    return whitening(within, SHRINK)


def _temperature(cosine: Tensor, label: Tensor) -> float:
    """The temperature under which the labels are likeliest among the known classes, (n, K)."""
    chance = WRONG / cosine.shape[1]
    score = []
    for temperature in TEMPERATURES:
        p = F.softmax(cosine / temperature, dim=1).gather(1, label[:, None])
        score.append(float(torch.log((1 - WRONG) * p + chance).mean()))
    return float(TEMPERATURES[int(np.argmax(score))])
