"""Is an image far from everything the model was trained on? Two distances, with limits calibrated on training rows.

In the space of unit features: one minus the cosine to the nearest training row, which notices the strange thing between classes,
and Mahalanobis' distance to the nearest class mean, which notices directions in which no training row ever differed. An image is
far when either is beyond its limit; the limits are such that about one in a hundred images of the kind the model was trained on
lies beyond one of them. Rows look closer than fresh ones to statistics they took part in: a row is never its own neighbour, each
fifth of the rows is measured by the means and covariance of the other four, and only unlabelled rows count where there are
enough of them, since training pulls labelled ones to their class.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

SHARE = 0.01  # of images like the training images that may be called far
SHRINK = 0.1  # of the covariance towards a multiple of the identity
FOLDS = 5
ENOUGH = 100  # unlabelled rows, for limits from them alone
BANK = 4096  # training rows that are kept to compare with
CHUNK = 2048
PIECE = 16_384  # rows looked at together, so that a million rows take no copy of themselves
MEASURED = 100_000  # rows that the limits are read from, at the most


class Far(nn.Module):
    """Unit features (B, d) -> the larger of the two distances in units of its limit (B,): above 1 is far."""

    centre: Tensor  # (d,) mean of all rows
    whiten: Tensor  # (d, d) the covariance within classes becomes the identity
    means: Tensor  # (K, d) class means, whitened
    bank: Tensor  # (R, d) unit features of training rows
    limits: Tensor  # (2,) of the distance to a class, and of the one to a row

    def __init__(self, centre: Tensor, whiten: Tensor, means: Tensor, bank: Tensor, limits: Tensor) -> None:
        super().__init__()
        parts = {"centre": centre, "whiten": whiten, "means": means, "bank": bank, "limits": limits}
        for name, value in parts.items():
            self.register_buffer(name, value)

    def to_class(self, z: Tensor) -> Tensor:
        """Mahalanobis' distance to the nearest class mean, (B, d) -> (B,)."""
        x = (z - self.centre) @ self.whiten
        squared = x.square().sum(1, keepdim=True) - 2 * x @ self.means.T + self.means.square().sum(1)
        return squared.amin(1).clamp_min(0).sqrt()

    def to_row(self, z: Tensor) -> Tensor:
        """One minus the cosine to the nearest row of the bank, (B, d) -> (B,)."""
        return 1 - (z @ self.bank.T).amax(1)

    def forward(self, z: Tensor) -> Tensor:
        """(B, d) -> (B,)."""
        return torch.maximum(self.to_class(z) / self.limits[0], self.to_row(z) / self.limits[1])


def _pieces(z: Tensor, rows: Tensor) -> Iterator[tuple[Tensor, slice]]:
    """Features of some rows, piece by piece, and which of `rows` they are."""
    for begin in range(0, len(rows), PIECE):
        here = slice(begin, min(begin + PIECE, len(rows)))
        yield z[rows[here]], here


def _statistics(z: Tensor, head: Tensor, bank: Tensor, rows: Tensor) -> Far:
    """The distances with limits 1, from features (N, d) and their classes (N,): of these rows alone."""
    present, place = head[rows].unique(return_inverse=True)
    sums, centre = torch.zeros(len(present), z.shape[1]), torch.zeros(z.shape[1])
    for piece, here in _pieces(z, rows):
        sums.index_add_(0, place[here], piece)
        centre += piece.mean(0) * (len(piece) / len(rows))
    means = sums / torch.bincount(place, minlength=len(present))[:, None]
    covariance = torch.zeros(z.shape[1], z.shape[1], dtype=torch.float64)
    for piece, here in _pieces(z, rows):
        rest = piece - means[place[here]]
        covariance += (rest.T @ rest).double()
    covariance /= len(rows)
    size = covariance.trace().clamp_min(1e-8) / len(covariance)
    covariance = (1 - SHRINK) * covariance + SHRINK * size * torch.eye(len(covariance), dtype=torch.float64)
    whiten = torch.linalg.inv(torch.linalg.cholesky(covariance)).T.float().contiguous()
    return Far(centre, whiten, (means - centre) @ whiten, bank, torch.ones(2))


def _bank_rows(head: np.ndarray, seed: int) -> np.ndarray:
    """At most BANK rows: a fair share of every class, however rare, then others by chance."""
    order = np.random.default_rng([seed, 52]).permutation(len(head))
    if len(order) <= BANK:
        return np.sort(order)
    shuffled = head[order]
    by_class = np.argsort(shuffled, kind="stable")
    starts = np.r_[0, np.flatnonzero(np.diff(shuffled[by_class])) + 1]
    rank = np.empty(len(order), dtype=np.int64)  # of a row within its class
    rank[by_class] = np.arange(len(order)) - np.repeat(starts, np.diff(np.r_[starts, len(order)]))
    return np.sort(order[np.argsort(rank >= BANK // len(starts), kind="stable")[:BANK]])


@torch.no_grad()
def fit_far(feature: np.ndarray, head: np.ndarray, targets: np.ndarray, *, seed: int) -> tuple[Far, dict[str, Any]]:
    """The distances and their calibrated limits, and a few words on how these were chosen.

    Parameters
    ----------
    feature, head
        Unit features (N, d) of the training rows, and the class the model gives them (N,).
    targets
        (N,) labels, -1 = unlabelled.
    seed
        Deals the rows into fifths, and picks those to compare with where there are many.
    """
    z = torch.from_numpy(np.asarray(feature, dtype=np.float32))
    classes = torch.from_numpy(np.asarray(head, dtype=np.int64))
    kept = _bank_rows(np.asarray(head), seed)
    far = _statistics(z, classes, z[kept].contiguous(), torch.arange(len(z)))

    folds = min(FOLDS, len(z))
    order = np.random.default_rng([seed, 51]).permutation(len(z))
    fold, measured = torch.from_numpy(order % folds), torch.from_numpy(order < MEASURED)
    to_class = torch.zeros(len(z))
    for number in range(folds):
        out = fold == number
        others, rows = _statistics(z, classes, far.bank, (~out).nonzero()[:, 0]), (out & measured).nonzero()[:, 0]
        for piece, here in _pieces(z, rows):
            to_class[rows[here]] = others.to_class(piece)
    to_row = torch.zeros(len(z))
    own = torch.full((len(z),), -1, dtype=torch.int64)
    own[kept] = torch.arange(len(kept))
    rows = measured.nonzero()[:, 0]
    for part in rows.split(CHUNK):
        cosine, itself = z[part] @ far.bank.T, own[part]
        inside = itself >= 0
        cosine[inside.nonzero()[:, 0], itself[inside]] = -1.0
        to_row[part] = 1 - cosine.amax(1)

    unlabelled = torch.from_numpy(np.asarray(targets) < 0) & measured
    counted = unlabelled if int(unlabelled.sum()) >= ENOUGH else measured
    both = torch.stack([to_class, to_row])[:, counted]
    limits = torch.stack([_limit(distance, 2 * SHARE) for distance in both])  # the scales of the two
    far.limits.copy_(limits * _limit((both / limits[:, None]).amax(0), SHARE))
    facts = {
        "method": "Mahalanobis distance to the nearest class mean, or cosine distance to the nearest training row",
        "limits": far.limits.tolist(),
        "share": SHARE,
        "rows": int(counted.sum()),
        "folds": folds,
    }
    return far, facts


def _limit(distance: Tensor, share: float) -> Tensor:
    """The (1 - share)(n + 1)-th smallest: of rows like these, a fresh one exceeds it with probability `share` at the most."""
    rank = min(len(distance), int(np.ceil((1 - share) * (len(distance) + 1))))
    return distance.sort().values[rank - 1].clamp_min(1e-6)
