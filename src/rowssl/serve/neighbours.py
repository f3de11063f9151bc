"""Which training images look most alike: among few by all of them, among many by those of the nearest classes first."""

from __future__ import annotations

import numpy as np

from rowssl.results import Answers

ALL_VALUES = 2**23  # of the features: so many are compared in about 3 ms
DIRECTIONS = 128  # in which rows are compared first
LOOKED_AT = 2**15  # rows, or the whole of the nearest class if that is more
CANDIDATES = 4096  # rows of these that are compared in full
SAMPLE = 8192  # rows that the directions are found from


class Neighbours:
    """Rows whose unit features have the largest cosine with another, in a time that does not grow with their number.

    Of many rows those of the nearest classes are looked at, by a few principal directions, and the best of them in full: what
    it finds is exact for them, and what it misses is in a class that is farther away, or differs in all other directions.
    """

    def __init__(self, answers: Answers) -> None:
        self.feature = answers.feature
        self.exact = self.feature.size <= ALL_VALUES
        if self.exact:
            return
        present = np.unique(answers.head)
        parts = [answers.rows_of(int(head)) for head in present]
        self.order, self.ends = np.concatenate(parts), np.cumsum([len(rows) for rows in parts])
        means = np.stack([self.feature[rows[:SAMPLE]].mean(0) for rows in parts])
        self.means = means / np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)
        some = self.feature[:: max(1, len(self.feature) // SAMPLE)].astype(np.float64)
        self.directions = np.linalg.eigh(some.T @ some)[1][:, -DIRECTIONS:].astype(np.float32)
        self.short = (self.feature @ self.directions)[self.order]

    def __call__(self, feature: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows and cosines of the `count` nearest to a unit feature (d,), nearest first."""
        rows = None if self.exact else self._candidates(feature)
        cosine = (self.feature if rows is None else self.feature[rows]) @ feature
        few = min(count, len(cosine))
        best = np.argpartition(-cosine, few - 1)[:few]
        best = best[np.argsort(-cosine[best], kind="stable")]
        return (best if rows is None else rows[best]), cosine[best]

    def _candidates(self, feature: np.ndarray) -> np.ndarray:
        short, begins = feature @ self.directions, np.r_[0, self.ends[:-1]]
        nearest = np.argsort(-(self.means @ feature), kind="stable")
        sizes = (self.ends - begins)[nearest]
        looked_at = nearest[: int(np.searchsorted(np.cumsum(sizes), LOOKED_AT)) + 1]
        places = np.concatenate([np.arange(begins[c], self.ends[c]) for c in looked_at])
        alike = np.concatenate([self.short[begins[c] : self.ends[c]] @ short for c in looked_at])
        few = min(CANDIDATES, len(alike))
        return self.order[places[np.argpartition(-alike, few - 1)[:few]]]
