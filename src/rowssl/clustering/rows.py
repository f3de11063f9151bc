"""Rows of a large matrix as clustering sees them: minus the mean without a copy, and a sample to try starts on."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

COPY_VALUES = 3 * 2**20  # floats of a matrix that may be copied: 12 MB
SAMPLE_ROWS, SAMPLE_EACH = 25_600, 64  # starts are tried on so many rows, or so many for each cluster if that is more,
SAMPLE_ABOVE, SAMPLE_FROM = 62_500, 1.25  # where there are so many rows, and so many times as many
BLOCK_CELLS = 2**22  # floats that one block of distances may hold: 16 MB, and as fast as any larger block
SMALL_CELLS = 2**17  # floats that a block of small data may hold: half a MB
MOST_ROWS = 1024  # of a block; larger ones only cost the product's own buffers
SLICE = 128  # rows that are made float64 at a time, and the smallest block
FAR = 8.0  # a mean so many times as long as the rows' spread would cost a product of rows as they are too many digits


class Centred:
    """Rows of a matrix minus a mean, made when they are asked for: (N, d) without a copy of it.

    Products need not be made of them: x'c = xc - mc, and `near` says whether that keeps the digits.
    """

    def __init__(self, x: Tensor, mean: Tensor, rows: Tensor | None = None) -> None:
        self.x, self.mean, self.rows = x, mean, rows

    @cached_property
    def near(self) -> bool:
        """Whether the mean is no longer than a few times the spread, by some of the rows."""
        some = torch.arange(0, len(self), max(1, len(self) // 1024), device=self.x.device)
        return bool(
            self.mean.square().sum() <= FAR**2 * self[some].square().sum(1).mean()
        )  # of no rows: no number, False

    def __len__(self) -> int:
        return len(self.x) if self.rows is None else len(self.rows)

    def __getitem__(self, which: slice | Tensor | int) -> Tensor:
        given = self.as_given(which)
        picked = which.ndim > 0 if isinstance(which, Tensor) else self.rows is not None and isinstance(which, slice)
        return given.sub_(self.mean) if picked else given - self.mean  # in place only what is not the matrix itself

    def as_given(self, which: slice | Tensor | int) -> Tensor:
        """Rows as they are in the matrix; numbers of rows count from 0 and are on its device."""
        chosen = which if self.rows is None else self.rows[which]
        if isinstance(chosen, Tensor) and chosen.ndim == 1:
            return self.x.index_select(0, chosen)  # in a third of the time of x[chosen]
        return self.x[chosen]


Rows = Tensor | Centred


def centred(x: Tensor, mean: Tensor, rows: Tensor | None = None) -> Rows:
    """Some rows (or all) minus the mean: in memory, or made block by block where that would take much of it."""
    lazy = Centred(x, mean, rows)
    return lazy if x.numel() > COPY_VALUES else lazy[:]


def factor(x: Rows, which: slice) -> Tensor:
    """What to multiply with centred points in the place of these rows: where it can be the rows as they are, it costs nothing."""
    return x.as_given(which) if isinstance(x, Centred) and x.near else x[which]


def products_of(x: Rows) -> Callable[[Tensor], Tensor]:
    """What takes a few points (k, d) to the products of all rows with them, as those of `factor`, (k, N).

    Rows that are most of a matrix are not copied for it: the products of all its rows are made instead.
    """
    if isinstance(x, Centred) and x.near and x.rows is not None and 2 * len(x.rows) > len(x.x):
        whole, rows = x.x, x.rows
        return lambda points: (whole @ points.T).index_select(0, rows).T.contiguous()
    all_rows = factor(x, slice(None))
    return lambda points: (all_rows @ points.T).T.contiguous()  # faster than the product in the other order


def surplus(x: Rows, points: Tensor) -> Tensor | float:
    """What the products of `factor` with these points (k, d) hold too much, (k,)."""
    return points @ x.mean if isinstance(x, Centred) and x.near else 0.0


def block_rows(n: int, k: int, d: int) -> int:
    """So many of n rows x d, and their distances to k centres, are looked at together: of few rows a block is small, too."""
    cells = min(BLOCK_CELLS, max(SMALL_CELLS, n * d // 16))
    return max(SLICE, min(MOST_ROWS, cells // max(k, d)))


def squared_norms(x: Rows) -> Tensor:
    """(N,), in blocks."""
    first = x[:1]
    norms, size = first.new_empty(len(x)), block_rows(len(x), 1, first.shape[1])
    for i in range(0, len(x), size):  # small results kept between large ones freed would leave holes that nothing fits
        torch.norm(x[i : i + size], dim=1, out=norms[i : i + size])
    return norms.square_()


def sample_for(rows: int, k: int, seed: int, each: int = SAMPLE_EACH, among: int | None = None) -> Tensor | None:
    """Rows on which starts are tried where there are many more than it takes to tell good from bad, in order; else None.

    There are `among` so many rows in all, where only some of them may be drawn.
    """
    return None if (among or rows) < SAMPLE_ABOVE else some_rows(rows, max(SAMPLE_ROWS, each * k), seed)


def some_rows(rows: int, size: int, seed: int) -> Tensor | None:
    """So many rows drawn at random, in order; None where they are nearly all."""
    if rows < SAMPLE_FROM * size:
        return None
    return torch.from_numpy(np.sort(np.random.default_rng([seed, 71]).permutation(rows)[:size]))
