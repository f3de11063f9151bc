"""Trunk outputs: a cache computed once and shared by all runs, or the trunk itself on fresh views.

The trunk never changes, so its output for a view of a picture is computed once for all methods, seeds and epochs. What a
cache holds depends on (trunk weights, pictures, view recipe, seed of the views, number of views) and on nothing else: labels
may be edited, and a split takes its rows from the cache of the whole table.

The file of a cache, `trunk.f16`, holds one slot after another, each the clean view and the V augmented views of one row of a
table. A shard is a run of slots; its bytes are written and synced before `manifest.json`, replaced in one rename, says which rows
they are and what they hash to. The first rows of a shard may be written before the others: then the manifest names two shards,
one that is whole and one that is to be computed, until the rest is there. `kill -9` at any moment therefore costs what was
computed since the last writing, a few seconds, and nothing else. Slots are only ever added, so a process that reads is not
disturbed by one that writes, and a second split of the same table adds only the rows that the first did not have. What a shard
holds depends on the shard alone, so the file has the same bytes whoever computed it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from rowssl.core import distributed
from rowssl.core.console import bar, err, track
from rowssl.core.errors import InputError
from rowssl.core.files import lock, own_hash, tidy, write_text
from rowssl.core.memory import MEMORY_SHARE, available_memory, release, reused_blocks
from rowssl.data.table import Table
from rowssl.data.views import ViewRecipe, all_views, clean_view, cut_view, make_view, prepare

if TYPE_CHECKING:
    from PIL.Image import Image

    from rowssl.encoders.base import Encoder

FORMAT = 1
DTYPE = np.dtype("<f2")
SHARD_ROWS = 256  # at most so many rows, and so many bytes, are one entry of the manifest
SHARD_BYTES = 64 * 2**20
RESERVE = 64 * 2**20  # disk space left to others
HALF_MAX = 65504.0  # largest float16
SAVE_SECONDS = 2.0  # of work at a shard that is not whole yet, at most, are lost by a kill
REMEMBERED = 512  # rows whose resized pictures stay in memory between the two views of a batch


@dataclass(frozen=True)
class Shard:
    """Slots `first`, `first` + 1, ... hold these rows; no hash means that they have to be written (again)."""

    first: int
    rows: np.ndarray
    sha256: str | None = None

    @property
    def end(self) -> int:
        """The slot after the last one."""
        return self.first + len(self.rows)

    @classmethod
    def of(cls, first: int, runs: Sequence[Sequence[int]], sha256: str | None = None) -> Shard:
        """From [begin, end) runs of rows."""
        return cls(first, np.concatenate([np.arange(*run, dtype=np.int64) for run in runs]), sha256)

    def runs(self) -> list[list[int]]:
        """Its rows, which rise, as [begin, end) runs: a whole table is one run for each shard."""
        breaks = np.flatnonzero(np.diff(self.rows) != 1) + 1
        return [[int(run[0]), int(run[-1]) + 1] for run in np.split(self.rows, breaks)]


# Computes shards of the cache of this key in other places than this process, each whole, in any order, as far as it can.
Elsewhere = Callable[[str, Sequence[Shard]], Iterator[tuple[Shard, np.ndarray]]]
Piece = tuple[Shard, int]  # some rows of a shard, from this one on


def readable_size(count: float) -> str:
    """Bytes as people say it."""
    power = min(4, max(0, int(math.log(max(count, 1) * 1.0005, 1000))))  # 999.6 kB is 1.0 MB
    value, unit = count / 1000**power, ("bytes", "kB", "MB", "GB", "TB")[power]
    return f"{value:.1f} {unit}" if power and value < 9.95 else f"{value:.0f} {unit}"


class TrunkStore:
    """Rows of (1 + V, *trunk_shape) float16 under one key.

    Parameters
    ----------
    folder
        Its own folder.
    key
        The full hash of everything that decides the values.
    shape
        Of one row: (1 + V, *trunk_shape).
    about
        Facts for the human reader of the manifest.
    """

    def __init__(self, folder: Path, key: str, shape: tuple[int, ...], about: dict[str, Any]) -> None:
        self.folder, self.key, self.shape, self.about = folder, key, shape, about
        self.data, self.manifest = folder / "trunk.f16", folder / "manifest.json"
        self.row_bytes = math.prod(shape) * DTYPE.itemsize
        self.shards: list[Shard] = []
        self.damaged = False  # the manifest was there and cannot be trusted

    def read(self) -> None:
        """Take the shards from the manifest; those that the data file is too short for must be written again."""
        self.shards = self._parse()
        size = self.data.stat().st_size if self.data.is_file() else 0
        self.shards = [s if s.end * self.row_bytes <= size else replace(s, sha256=None) for s in self.shards]

    def _parse(self) -> list[Shard]:
        """A manifest that is absent, damaged or of something else is an empty one: the cache can be computed again."""
        try:
            facts = json.loads(self.manifest.read_text(encoding="utf-8"))
            self.damaged = own_hash(facts) != facts["self"]
            if self.damaged or (facts["format"], facts["key"], tuple(facts["shape"])) != (FORMAT, self.key, self.shape):
                return []
            shards: list[Shard] = []
            for entry in facts["shards"]:
                sha256 = entry["sha256"] if isinstance(entry["sha256"], str) else None
                shards.append(Shard.of(shards[-1].end if shards else 0, entry["rows"], sha256))
            return shards
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            self.damaged = self.manifest.exists()
            return []

    def _save(self) -> None:
        """Replace the manifest."""
        entries = [{"rows": shard.runs(), "sha256": shard.sha256} for shard in self.shards]
        facts = {"format": FORMAT, "key": self.key, "dtype": DTYPE.str, "shape": self.shape, "about": self.about}
        content = {**facts, "shards": entries}
        write_text(self.manifest, json.dumps({**content, "self": own_hash(content)}))

    def reserve(self, shards: Sequence[Shard]) -> None:
        """Give the new shards of a plan their places, so that they may be written in any order."""
        end = self.shards[-1].end if self.shards else 0
        self.shards = [*self.shards, *(replace(shard, sha256=None) for shard in shards if shard.first >= end)]
        self._save()

    def slots(self, rows: np.ndarray) -> np.ndarray:
        """The slot of each row, -1 where it is still to be computed."""
        whole = [shard for shard in self.shards if shard.sha256]
        highest = max([int(rows.max(initial=-1)), *(int(shard.rows.max()) for shard in whole)])
        slot_of = np.full(highest + 1, -1, dtype=np.int64)
        for shard in whole:
            slot_of[shard.rows] = np.arange(shard.first, shard.end)
        return slot_of[rows]

    def verify(self, *, progress: bool = True) -> int:
        """Hash all shards; those that are not what the manifest says must be written again. How many they are."""
        whole = [shard for shard in self.shards if shard.sha256]
        if not whole:
            return 0
        data = self.map()
        good: dict[int, bool] = {}

        def check(shard: Shard) -> None:
            good[shard.first] = _sha256(data[shard.first : shard.end]) == shard.sha256

        with (
            ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool,
            bar("checking the trunk cache", len(whole), enabled=progress) as display,
        ):
            for _ in pool.map(check, whole):
                display.advance()
        self.shards = [s if good.get(s.first, True) else replace(s, sha256=None) for s in self.shards]
        return sum(not value for value in good.values())

    def plan(self, rows: np.ndarray) -> list[Shard]:
        """What has to be computed so that `rows` are there: damaged shards in their place, then new ones."""
        again = [shard for shard in self.shards if not shard.sha256]
        missing = np.unique(rows[self.slots(rows) < 0])
        if again:
            missing = np.setdiff1d(missing, np.concatenate([shard.rows for shard in again]))
        size = max(1, min(SHARD_ROWS, SHARD_BYTES // self.row_bytes))
        first = self.shards[-1].end if self.shards else 0
        new = [Shard(first + begin, missing[begin : begin + size]) for begin in range(0, len(missing), size)]
        return again + new

    def require_space(self, todo: Sequence[Shard]) -> None:
        """An InputError when the disk has no room for these shards."""
        size = self.data.stat().st_size if self.data.is_file() else 0
        needed = max(0, max(shard.end for shard in todo) * self.row_bytes - size)
        free = shutil.disk_usage(self.folder).free
        if needed + RESERVE > free:
            raise InputError(
                f"the trunk cache needs {readable_size(needed)} more and {self.folder} has {readable_size(free)} free: "
                "ask for fewer --views, use none with --views 0, or set ROWSSL_CACHE to a folder with more room"
            )

    def write(self, shard: Shard, values: np.ndarray) -> None:
        """Store the values (rows, *shape) of a shard of the plan, or of its first rows; only then does the manifest name them.

        More of the same shard, from its first row on, may follow.
        """
        there = [other for other in self.shards if shard.first <= other.first < shard.end]
        values = np.ascontiguousarray(values, dtype=DTYPE)
        kept = len(there[0].rows) if there and there[0].sha256 else 0  # of these very values, so they are not touched
        try:
            if there:
                self._save()  # says what of this shard is not whole, before its bytes change
            elif shard.first == 0:  # a data file without a manifest: others may still read it, so begin a new one
                self.data.unlink(missing_ok=True)
            with open(self.data, "r+b" if self.data.exists() else "w+b") as stream:
                stream.seek((shard.first + kept) * self.row_bytes)
                stream.write(values[kept:].data)
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise InputError(f"{self.data} cannot be written: {error.strerror or error}") from None
        done = Shard(shard.first, shard.rows[: len(values)], _sha256(values))
        rest = [Shard(done.end, shard.rows[len(values) :])] if done.end < shard.end else []
        before = [other for other in self.shards if other.first < shard.first]
        after = [other for other in self.shards if other.first >= shard.end]
        self.shards = [*before, done, *rest, *after]
        self._save()

    def map(self) -> np.ndarray:
        """All slots that the manifest names, memory-mapped: (slots, *shape) float16, read-only."""
        slots = max((shard.end for shard in self.shards if shard.sha256), default=0)
        if not slots:
            return np.empty((0, *self.shape), dtype=DTYPE)
        # A plain array: every indexing of a np.memmap pays for its class.
        return np.asarray(np.memmap(self.data, dtype=DTYPE, mode="r", shape=(slots, *self.shape)))

    @contextmanager
    def lock(self, waiting: str) -> Iterator[None]:
        """One process at a time; `waiting` is said before waiting for another, whose death frees the lock too."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"the cache folder {self.folder} cannot be written: {error.strerror or error} (ROWSSL_CACHE sets another)"
            ) from None
        without = f"{self.folder} has no file locks: set ROWSSL_CACHE to another, or use --views 0"
        with lock(self.folder / "lock", busy="", seconds=None, waiting=waiting, without=without):
            tidy(self.folder)
            yield


def cache_folder() -> Path:
    """Where caches are kept: `trunk` in $ROWSSL_CACHE, else in ~/.cache/rowssl."""
    return Path(os.environ.get("ROWSSL_CACHE") or Path.home() / ".cache" / "rowssl") / "trunk"


class CachedSource:
    """Trunk outputs read from a cache; see `open_trunk_cache`.

    Attributes
    ----------
    shape, n_views
        Of one trunk output; augmented views per row.
    folder
        Where the cache is.
    nbytes
        Size of the rows of this source on disk.
    """

    def __init__(self, data: np.ndarray, slots: np.ndarray, folder: Path) -> None:
        self._data, self._slots, self.folder = data, slots, folder  # data: (slots, 1 + V, *shape) float16
        self.shape: tuple[int, ...] = data.shape[2:]
        self.n_views = data.shape[1] - 1
        self.nbytes = len(slots) * data[:1].nbytes

    def __len__(self) -> int:
        return len(self._slots)

    def clean(self, rows: np.ndarray) -> Tensor:
        """Of the clean view, (n, *shape) float32."""
        return torch.from_numpy(self._data[self._slots[rows], 0]).float()

    def view(self, rows: np.ndarray, views: np.ndarray, epoch: int) -> Tensor:
        """Of view `views[i]` of row `rows[i]`, the same in every epoch, (n, *shape) float32; clean if there are none."""
        if self.n_views == 0:
            return self.clean(rows)
        return torch.from_numpy(self._data[self._slots[rows], np.asarray(views) + 1]).float()

    def release(self) -> None:
        """Give back the memory that pages of the cache take; they are read again when they are asked for."""
        release(self._data)

    def load(self, *, progress: bool = True) -> CachedSource:
        """The same source with its rows in memory."""
        data = np.empty((len(self), *self._data.shape[1:]), dtype=DTYPE)
        step = max(1, 2**26 // max(1, data[:1].nbytes))
        for begin in track(range(0, len(self), step), "reading the trunk cache", enabled=progress):
            data[begin : begin + step] = self._data[self._slots[begin : begin + step]]
        return CachedSource(data, np.arange(len(self)), self.folder)


def _sha256(values: np.ndarray) -> str:
    """Of the bytes of a contiguous array."""
    return hashlib.sha256(values.reshape(-1).view(np.uint8).data).hexdigest()


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
        keep = self.recipe.kind != "strong" and len(rows) <= REMEMBERED
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
    elsewhere: Elsewhere | None = None,
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
    elsewhere
        Computes shards in the place of this process, as a cluster does.

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
        waiting = f"waiting for another process that computes {store.folder}" if first else ""
        with store.lock(waiting):
            store.read()
            if damaged:
                store.verify(progress=first)
            fill(store, fresh, progress=progress, elsewhere=elsewhere)
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


def fill(store: TrunkStore, source: FreshSource, *, progress: bool, elsewhere: Elsewhere | None = None) -> None:
    """Fill the store, whose lock is held, with what it lacks of the source's rows; what is computed is safe a moment later."""
    pending = store.plan(source.rows)
    if not pending:  # another process did it while this one waited
        return
    images = sum(len(shard.rows) for shard in pending)
    store.require_space(pending)
    there = int((store.slots(source.rows) >= 0).sum())
    views = store.shape[0] - 1
    kept = f"the clean and {views} augmented views of each" if views else "the clean view of each"
    say(
        f"trunk cache: {images:,} images{f' ({there:,} more are there)' if there else ''}, {kept}, "
        f"{readable_size(images * store.row_bytes)} in {store.folder}",
        progress,
    )
    with bar("computing the trunk cache", images, enabled=progress) as display:
        if elsewhere is not None:
            store.reserve(pending)
            for shard, values in elsewhere(store.key, pending):
                store.write(shard, values)
                display.advance(len(shard.rows))
            pending = store.plan(source.rows)  # what nobody else could compute
        with _conditions(), _keeping(store) as keep:
            for shard, values in computed(pending, source, store.shape, display.advance):
                keep(shard, values)


@contextmanager
def _conditions() -> Iterator[None]:
    """Pillow's warnings about odd files would be printed across the bar; what cannot be read raises."""
    with warnings.catch_warnings(action="ignore"), torch.inference_mode(), reused_blocks():
        yield


@contextmanager
def _keeping(store: TrunkStore) -> Iterator[Callable[[Shard, np.ndarray], None]]:
    """Stores a shard when it is whole, what there is of it every few seconds, and when the work ends in whatever way."""
    unsaved: tuple[Shard, np.ndarray] | None = None
    saved = time.monotonic()

    def keep(shard: Shard, values: np.ndarray) -> None:
        nonlocal unsaved, saved
        unsaved = shard, values
        if len(values) == len(shard.rows) or time.monotonic() - saved > SAVE_SECONDS:
            store.write(shard, values)
            unsaved, saved = None, time.monotonic()

    try:
        yield keep
    except BaseException:  # Ctrl-C, which is no Exception, above all
        if unsaved is not None:
            with suppress(InputError):  # such as a full disk, which is what ended the work
                store.write(*unsaved)
        raise


def computed(
    shards: Iterable[Shard],
    source: FreshSource,
    shape: tuple[int, ...],
    advance: Callable[[int], None] = lambda rows: None,
) -> Iterator[tuple[Shard, np.ndarray]]:
    """Shards with the values (rows, *shape) float16 of their first rows, more each time, at last of all.

    A pool of threads decodes and augments while the trunk computes.
    """
    views = shape[0] - 1
    # No batch holds rows of two shards: a shard does not depend on others.
    step = max(1, source.batch_size // (1 + views))

    def load(piece: Piece) -> np.ndarray:
        shard, begin = piece
        rows, options = shard.rows[begin : begin + step].tolist(), {"seed": source.seed, "count": views}
        return np.concatenate([all_views(source.table.image(r), source.recipe, index=r, **options) for r in rows])

    values = np.empty((0, *shape), dtype=np.float16)
    pieces = ((shard, begin) for shard in shards for begin in range(0, len(shard.rows), step))
    for (shard, begin), pictures in _prefetch(load, pieces, source.workers):
        if begin == 0:
            values = np.empty((len(shard.rows), *shape), dtype=np.float16)
        part = values[begin : begin + step]
        part[...] = _half(source, pictures, shard.rows[begin:]).reshape(part.shape)
        advance(len(part))
        yield shard, values[: begin + step]


def _half(source: FreshSource, pictures: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Trunk outputs of all views of these rows as float16; an InputError names the picture for which they do not fit."""
    outputs = run_trunk(source.encoder, pictures)
    peaks = outputs.flatten(1).abs().amax(dim=1)
    bad = torch.nonzero(~(peaks <= HALF_MAX))  # NaN is not <= anything
    if len(bad):
        first = int(bad[0])
        raise InputError(
            f"encoder {source.encoder.name} gives {float(peaks[first]):g} for image "
            f"{source.table.names[rows[first // (1 + source.n_views)]]}, which a cache of float16 (up to {HALF_MAX:g}) "
            "cannot hold: use --views 0"
        )
    return outputs.half().cpu().numpy()


def run_trunk(encoder: Encoder, pictures: np.ndarray) -> Tensor:
    """Crops, uint8 (n, H, W, 3) -> float32 (n, *trunk_shape) on the trunk's device."""
    here = torch.from_numpy(pictures).to(distributed.device_of(encoder.trunk))
    return encoder.trunk_forward(encoder.normalise(here)).float()


def _prefetch(
    load: Callable[[Piece], np.ndarray], pieces: Iterable[Piece], workers: int
) -> Iterator[tuple[Piece, np.ndarray]]:
    """Pieces with their pictures in order, made by threads that keep a few pieces ahead of the trunk."""
    pool = ThreadPoolExecutor(workers)
    pending: deque[tuple[Piece, Future[np.ndarray]]] = deque()
    try:
        for piece in pieces:
            pending.append((piece, pool.submit(load, piece)))
            if len(pending) > 2 * workers:
                done, future = pending.popleft()
                yield done, future.result()
        while pending:
            done, future = pending.popleft()
            yield done, future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def say(sentence: str, enabled: bool = True) -> None:
    """One line on standard error."""
    if enabled:
        err.print(sentence, markup=False, soft_wrap=True)
