"""Where trunk outputs come from: a cache computed once and shared by all runs, or the trunk itself on fresh views.

The trunk never changes, so its output for a view of a picture is computed once for all methods, seeds and epochs. What a
cache holds depends on (trunk weights, pictures, view recipe, seed of the views, number of views) and on nothing else: labels
may be edited, and a split takes its rows from the cache of the whole table.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from rowssl.core import distributed
from rowssl.core.errors import InputError
from rowssl.core.memory import MEMORY_SHARE, available_memory
from rowssl.data.table import Table
from rowssl.data.views import ViewRecipe, clean_view, cut_view, make_view, prepare
from rowssl.encoders.cache import FORMAT, CachedSource, TrunkStore, cache_folder
from rowssl.encoders.fill import LOOK, Crew, fill, help_out, run_trunk, say

if TYPE_CHECKING:
    from PIL.Image import Image

    from rowssl.encoders.base import Encoder

__all__ = ["CachedSource", "FreshSource", "cache_facts", "cache_folder", "open_store", "open_trunk_cache"]

_REMEMBERED = 512  # rows whose resized pictures stay in memory between the two views of a batch


class FreshSource:
    """Trunk outputs of views that are made when asked for, other ones in every epoch.

    Parameters
    ----------
    table, rows
        The pictures; row i of the source is row `rows[i]` of the table (all by default).
    encoder, recipe
        The trunk and how views are made.
    seed
        With the epoch, the row of the table and the number of the view, it decides a view.
    fixed_views
        Make this many views that are the same in every epoch: exactly those that a cache of the same seed holds.
    workers, batch_size
        Threads that make views; pictures in one pass through the trunk.
    """

    def __init__(
        self,
        table: Table,
        encoder: Encoder,
        recipe: ViewRecipe,
        seed: int,
        *,
        rows: np.ndarray | None = None,
        fixed_views: int | None = None,
        workers: int | None = None,
        batch_size: int = 64,
    ) -> None:
        if not table.has_images:
            raise InputError(f"{table.source or 'the table'} holds embeddings and no images: it needs no trunk")
        if recipe.size != encoder.image_size:
            raise InputError(f"encoder {encoder.name} takes {encoder.image_size} px, not views of {recipe.size} px")
        self.table, self.encoder, self.recipe, self.seed = table, encoder, recipe, seed
        self.rows = np.arange(len(table)) if rows is None else np.arange(len(table))[rows]
        self.workers, self.batch_size = workers or min(8, os.cpu_count() or 1), batch_size
        self._fixed = fixed_views is not None
        self.makes_views = fixed_views is None
        self._prepared: dict[int, Image] = {}
        self.shape: tuple[int, ...] = encoder.trunk_shape
        self.n_views = 2 if fixed_views is None else fixed_views

    def __len__(self) -> int:
        return len(self.rows)

    def clean(self, rows: np.ndarray) -> Tensor:
        """Of the clean view, (n, *shape) float32."""
        return self._encode(lambda row, _: clean_view(self.table.image(row), self.recipe), rows, np.zeros_like(rows))

    def view(self, rows: np.ndarray, views: np.ndarray, epoch: int) -> Tensor:
        """Of view `views[i]` of row `rows[i]` in an epoch, (n, *shape) float32; clean if `fixed_views` is 0."""
        if self.n_views == 0:
            return self.clean(rows)
        epoch = 0 if self._fixed else epoch
        # A batch asks for one view of each row and then for another: the second time nothing is decoded or resized.
        keep = self.recipe.kind != "strong" and len(rows) <= _REMEMBERED
        wanted = {int(self.rows[row]) for row in rows} if keep else set()
        self._prepared = {row: image for row, image in self._prepared.items() if row in wanted}

        def make(row: int, view: int) -> np.ndarray:
            key = (self.seed, epoch, row, view)
            if not keep:
                return make_view(self.table.image(row), self.recipe, key)
            image = self._prepared.get(row) or prepare(self.table.image(row), self.recipe)
            self._prepared[row] = image
            return cut_view(image, self.recipe, key)

        return self._encode(make, rows, views)

    def _encode(self, make: Callable[[int, int], np.ndarray], rows: np.ndarray, views: np.ndarray) -> Tensor:
        """Pictures made by threads, ahead of the trunk."""
        pairs = [(int(self.rows[row]), int(view)) for row, view in zip(rows, views, strict=True)]
        outputs = [torch.empty(0, *self.shape)]
        with ThreadPoolExecutor(self.workers) as pool:
            pictures = pool.map(lambda pair: make(*pair), pairs)
            while batch := list(islice(pictures, self.batch_size)):
                # Not inference mode: the tail's backward pass keeps these tensors.
                outputs.append(run_trunk(self.encoder, np.stack(batch)).cpu())
        return torch.cat(outputs[1:] or outputs)


def open_trunk_cache(
    table: Table,
    encoder: Encoder,
    *,
    recipe: ViewRecipe,
    n_views: int,
    seed: int,
    rows: np.ndarray | None = None,
    folder: Path | None = None,
    workers: int | None = None,
    batch_size: int = 64,
    in_memory: bool | None = None,
    verify: bool = True,
    progress: bool = True,
    crew: Crew | None = None,
) -> CachedSource:
    """Trunk outputs of the clean view and `n_views` augmented views of each row, computed where they are missing.

    Parameters
    ----------
    table, rows
        The pictures; row i of the source is row `rows[i]` of the table (all by default). Sources of different rows of
        one table share a cache, and each computes only what the others did not.
    encoder, recipe, seed
        View v of row r is the one with the key (seed, 0, r, v).
    n_views
        0 keeps the clean view alone, as a test set needs.
    folder
        Of all caches; by default `cache_folder()`. Each has its own subfolder, named by the hash of what decides it.
    workers, batch_size
        Threads that decode and augment; pictures in one pass through the trunk.
    in_memory
        Read everything into memory; by default if it takes less than a quarter of what is free.
    verify
        Compare all hashes and compute damaged parts again; the default. Without it only the size of the file is checked.
    progress
        Say on standard error what is done, with a bar.
    crew
        Processes that compute in the place of this one. The processes of torchrun share the work by themselves.

    Raises
    ------
    InputError
        The disk is too small, a picture has vanished, or the trunk's outputs do not fit into float16.
    """
    if n_views < 0:
        raise InputError(f"--views {n_views} is less than 0")
    fresh = FreshSource(
        table, encoder, recipe, seed, rows=rows, fixed_views=n_views, workers=workers, batch_size=batch_size
    )
    rows = fresh.rows
    store = open_store(fresh, folder or cache_folder())
    if in_memory is None:
        in_memory = len(rows) * store.row_bytes < MEMORY_SHARE * available_memory() / distributed.world()
    first = progress and distributed.rank() == 0  # under torchrun one process speaks, or the one that computes
    store.read()
    if store.damaged:
        say(f"{store.manifest} is damaged: the trunk cache is computed again", first)
    damaged = store.verify(progress=first) if verify else 0
    if damaged:
        say(f"{store.data} is damaged: {damaged} of its {len(store.shards)} parts are computed again", first)
    if damaged or (store.slots(rows) < 0).any():
        together = distributed.world() > 1
        waits = f"{'sharing the work with' if together else 'waiting for'} another process that computes {store.folder}"

        def share() -> None:
            if not help_out(store, fresh):
                time.sleep(LOOK)

        with store.lock(lambda: say(waits, first), share if together else None):
            store.read()
            if damaged:
                store.verify(progress=first)
            fill(store, fresh, progress=progress, crew=None if together else crew)
    source = CachedSource(store.map(), store.slots(rows), store.folder)
    return source.load(progress=first) if in_memory else source


def open_store(source: FreshSource, folder: Path) -> TrunkStore:
    """The store of what a source with fixed views makes, in a subfolder of `folder`; nothing is read yet."""
    facts = cache_facts(source.table, source.encoder, source.recipe, source.n_views, source.seed)
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    about = {**facts, "name": source.encoder.name, "source": source.table.source}
    shape = (1 + source.n_views, *source.encoder.trunk_shape)
    return TrunkStore(folder / key[:16], key, shape, about)


def cache_facts(table: Table, encoder: Encoder, recipe: ViewRecipe, n_views: int, seed: int) -> dict[str, Any]:
    """Everything that decides the values of a cache; the labels do not, nor the augmentation where there is none."""
    unlabelled = np.full(len(table), -1)
    pictures = replace(table, labels=unlabelled, class_names=(), embeddings=None, views=None, truth=None, test=None)
    return {
        "format": FORMAT,
        "encoder": encoder.fingerprint,
        "table": pictures.fingerprint(),
        "recipe": recipe.describe(clean_only=n_views == 0),
        "seed": seed if n_views else None,
        "views": n_views,
    }
