"""The file behind the trunk cache: float16 rows appended shard by shard, and a manifest of what is whole.

`trunk.f16` holds one slot after another, each the clean view and the V augmented views of one row of a table. A shard is a
run of slots; its bytes are written and synced before `manifest.json`, replaced in one rename, says which rows they are
and what they hash to. The first rows of a shard may be written before the others: then the manifest names two shards, one that
is whole and one that is to be computed, until the rest is there. `kill -9` at any moment therefore costs what was computed
since the last writing, a few seconds, and nothing else. Slots are only ever added, so a process that reads is not disturbed by
one that writes, and a second split of the same table adds only the rows that the first did not have.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from rowssl.core.console import bar, track
from rowssl.core.errors import InputError
from rowssl.core.files import own_hash, tidy, write_text
from rowssl.core.memory import release

FORMAT = 1
DTYPE = np.dtype("<f2")
SHARD_ROWS = 256  # at most so many rows, and so many bytes, are one entry of the manifest
SHARD_BYTES = 64 * 2**20
RESERVE = 64 * 2**20  # disk space left to others


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

    def mark(self) -> None:
        """Have the manifest say which shards are not whole, before others look at it."""
        if any(not shard.sha256 for shard in self.shards):
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
    def lock(self, waiting: Callable[[], None], meanwhile: Callable[[], object] | None = None) -> Iterator[None]:
        """One process at a time; `waiting` is called before waiting for another, whose death frees the lock too.

        `meanwhile`, if given, is called again and again as long as another has it.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            stream = open(self.folder / "lock", "ab")  # noqa: SIM115 (closed below, with the lock)
        except OSError as error:
            raise InputError(
                f"the cache folder {self.folder} cannot be written: {error.strerror or error} (ROWSSL_CACHE sets another)"
            ) from None
        with stream:
            if not self._take_lock(stream, wait=False):
                waiting()
                while not self._take_lock(stream, wait=meanwhile is None):
                    if meanwhile is not None:
                        meanwhile()
            tidy(self.folder)
            yield

    def _take_lock(self, stream: IO[bytes], *, wait: bool) -> bool:
        """Whether we have it; always, if we wait."""
        try:
            import fcntl

            fcntl.flock(stream, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            return False
        except (ImportError, OSError):  # Windows, some network file systems
            raise InputError(
                f"{self.folder} has no file locks: set ROWSSL_CACHE to another, or use --views 0"
            ) from None


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
