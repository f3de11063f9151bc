"""Wide pooled features made short: unit length, then the leading principal components of the clean training rows.

A 2048-d feature of 11,000 images has few directions that carry anything, and with 256 of them a training step costs a tenth.
The projection is fitted without labels, on training rows alone, and is a part of the model: a new image goes through it too.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from errno import ENOSPC
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rowssl.core import distributed
from rowssl.core.console import track
from rowssl.core.errors import InputError
from rowssl.core.memory import MEMORY_SHARE, available_memory
from rowssl.data.feed import ArraySource, Source, makes_views

CHUNK = 1024
SAMPLE = 50_000  # rows the components are fitted on, at the most
ALWAYS = 2**26  # bytes of features that go into memory in any case


class Reduction(nn.Module):
    """x -> (x / |x| - mean) components: (B, D) -> (B, d)."""

    mean: Tensor
    components: Tensor

    def __init__(self, mean: Tensor, components: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("components", components)

    def forward(self, x: Tensor) -> Tensor:
        """(B, D) -> (B, d)."""
        return (F.normalize(x, dim=1) - self.mean) @ self.components


def fit_reduction(source: Source, dim: int) -> Reduction:
    """Principal components of the clean rows, largest first; signs fixed so that the same data give the same bits."""
    rows = np.arange(len(source))
    if len(rows) > SAMPLE:
        rows = np.sort(np.random.default_rng(41).permutation(len(rows))[:SAMPLE])
    width = source.shape[0]
    total, square = torch.zeros(width, dtype=torch.float64), torch.zeros(width, width, dtype=torch.float64)
    for begin in range(0, len(rows), CHUNK):
        x = F.normalize(source.clean(rows[begin : begin + CHUNK]), dim=1)
        total += x.sum(0, dtype=torch.float64)
        square += (x.T @ x).double()
    mean = total / len(rows)
    _, vectors = torch.linalg.eigh(square / len(rows) - mean[:, None] * mean)
    components = vectors[:, -dim:].flip(1)
    largest = components.abs().argmax(0)
    components = components * components[largest, torch.arange(components.shape[1])].sign()
    return Reduction(mean.float(), components.float().contiguous())


class ReducedViews:
    """Clean rows that were shortened once; views that are made anew in every epoch, through the reduction."""

    def __init__(self, source: Source, clean: ArraySource, reduction: Reduction) -> None:
        self.source, self.clean, self.release, self.reduction = source, clean.clean, clean.release, reduction
        self.shape, self.n_views, self.makes_views = clean.shape, source.n_views, True

    def __len__(self) -> int:
        return len(self.source)

    def view(self, rows: np.ndarray, views: np.ndarray, epoch: int) -> Tensor:
        """(n, d) float32."""
        return self.reduction(self.source.view(rows, views, epoch))


def reduce_source(source: Source, reduction: Reduction, *, what: str, folder: Path) -> Source:
    """Clean rows and all cached views through the reduction, once, as float16; views made anew, when asked for.

    They are kept in memory, or where they are too large for it, in a file in `folder` that goes with the process.
    """
    count, dim = len(source), reduction.components.shape[1]
    kept = 0 if makes_views(source) else source.n_views
    room = roomy((1 + kept, count, dim), folder)
    clean, views = room[0], room[1:]
    for begin in track(range(0, count, CHUNK), f"reducing {what}"):
        rows = np.arange(begin, min(begin + CHUNK, count))
        clean[rows] = reduction(source.clean(rows)).numpy()
        for view in range(kept):
            views[view, rows] = reduction(source.view(rows, np.full(len(rows), view), 0)).numpy()
    reduced = ArraySource(clean, views if kept else None)
    return ReducedViews(source, reduced, reduction) if makes_views(source) else reduced


def roomy(shape: tuple[int, ...], folder: Path) -> np.ndarray:
    """An array of float16 to be filled: in memory, or where it would take much of that, in a file without a name in `folder`."""
    size = 2 * math.prod(shape)
    if size <= max(ALWAYS, MEMORY_SHARE * available_memory() / distributed.world()):
        return np.empty(shape, dtype=np.float16)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            # A full disk shall be an error now, and not a signal when a page is written.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            elif shutil.disk_usage(folder).free < size:
                raise OSError(ENOSPC, os.strerror(ENOSPC))
            return np.asarray(np.memmap(file, np.float16, "w+", shape=shape))
    except OSError as error:
        raise InputError(
            f"{folder} cannot hold {size / 1e9:.1f} GB of features: {error.strerror or error}; choose another place with "
            "--cache, or fewer --views."
        ) from error
