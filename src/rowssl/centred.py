"""Rows of a large matrix as clustering sees them: minus the mean without a copy, and a sample to try starts on."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

COPY_VALUES = 2**26  # floats of a matrix that may be copied for speed: 256 MB
SAMPLE_ROWS, SAMPLE_EACH = 50_000, 64  # starts are tried on so many rows, or so many for each cluster if that is more,
SAMPLE_FROM = 1.25  # where there are so many times as many rows


class Centred:
    """Rows of a matrix minus a mean, made when they are asked for: (N, d) without a copy of it."""

    def __init__(self, x: Tensor, mean: Tensor, rows: Tensor | None = None) -> None:
        self.x, self.mean, self.rows = x, mean, rows

    def __len__(self) -> int:
        return len(self.x) if self.rows is None else len(self.rows)

    def __getitem__(self, which: slice | Tensor | int) -> Tensor:
        return self.x[which if self.rows is None else self.rows[which]] - self.mean


Rows = Tensor | Centred


def centred(x: Tensor, mean: Tensor, rows: Tensor | None = None) -> Rows:
    """Some rows (or all) minus the mean: in memory, or made block by block where that would take much of it."""
    lazy = Centred(x, mean, rows)
    return lazy if x.numel() > COPY_VALUES else lazy[:]


def squared_norms(x: Rows) -> Tensor:
    """(N,), in blocks."""
    parts = [x[i : i + 1024].square().sum(1) for i in range(0, len(x), 1024)]
    return torch.cat(parts) if parts else x[:].new_zeros(0)


def sample_for(rows: int, k: int, seed: int) -> Tensor | None:
    """Rows on which starts are tried where there are many more than it takes to tell good from bad, in order; else None."""
    size = max(SAMPLE_ROWS, SAMPLE_EACH * k)
    if rows < SAMPLE_FROM * size:
        return None
    return torch.from_numpy(np.sort(np.random.default_rng([seed, 71]).permutation(rows)[:size]))
