"""Which training images look most alike: among few by all of them, among many by those around first."""

from __future__ import annotations

import numpy as np

from rowssl.clustering.kmeans import kmeans

ALL_VALUES = 2**23  # of the features: so many are compared in about 3 ms
CELL, CELLS = 4096, 128  # rows that lie together, on average, but so many times at the most
DIRECTIONS = 128  # in which rows are compared first
LOOKED_AT = 2**15  # rows, or the whole of the nearest cell if that is more
CANDIDATES = 4096  # rows of these that are compared in full
SAMPLE = 8192  # rows that the directions are found from
PIECE = 16_384  # rows looked at together


class Neighbours:
    """Rows whose unit features (N, d) have the largest cosine with another.

    Many rows are divided into cells by k-means. Those of the nearest cells are looked at, by their principal directions, and
    the best of them in full: what is missed is in a cell that is farther away, or differs in all other directions. Cells
    know nothing of classes: what a person makes of these changes nothing here.
    """

    def __init__(self, feature: np.ndarray) -> None:
        self.exact = feature.size <= ALL_VALUES
        if self.exact:
            return
        found = kmeans(feature, min(CELLS, max(2, len(feature) // CELL)), n_init=1, max_iter=5)
        cells = found.labels.numpy()
        self.centres = found.centers.numpy()
        self.order = np.argsort(cells, kind="stable")
        self.ends = np.cumsum(np.bincount(cells, minlength=len(self.centres)))
        some = feature[:: max(1, len(feature) // SAMPLE)].astype(np.float64)
        self.directions = np.linalg.eigh(some.T @ some)[1][:, -DIRECTIONS:].astype(np.float32)
        self.short = np.empty((len(feature), self.directions.shape[1]), dtype=np.float32)
        for begin in range(0, len(feature), PIECE):
            self.short[begin : begin + PIECE] = feature[self.order[begin : begin + PIECE]] @ self.directions

    def __call__(self, feature: np.ndarray, asked: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows and cosines of the `count` nearest to a unit feature (d,), nearest first; `feature` as it was divided."""
        rows = None if self.exact else self._candidates(asked)
        cosine = (feature if rows is None else feature[rows]) @ asked
        few = min(count, len(cosine))
        best = np.argpartition(-cosine, few - 1)[:few]
        best = best[np.argsort(-cosine[best], kind="stable")]
        return (best if rows is None else rows[best]), cosine[best]

    def _candidates(self, asked: np.ndarray) -> np.ndarray:
        short, begins = asked @ self.directions, np.r_[0, self.ends[:-1]]
        far = np.square(self.centres).sum(1) - 2 * self.centres @ asked
        nearest = np.argsort(far, kind="stable")
        rows = np.cumsum((self.ends - begins)[nearest])
        looked_at = nearest[: int(np.searchsorted(rows, LOOKED_AT)) + 1]
        places = np.concatenate([np.arange(begins[c], self.ends[c]) for c in looked_at])
        alike = np.concatenate([self.short[begins[c] : self.ends[c]] @ short for c in looked_at])
        few = min(CANDIDATES, len(alike))
        return self.order[places[np.argpartition(-alike, few - 1)[:few]]]
