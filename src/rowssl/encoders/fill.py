"""Filling a trunk cache: by one process, or by several that each take the next part nobody has taken yet.

One process holds the lock of the cache and alone writes to it. Where others share the work it announces the parts; they leave
theirs as files beside the cache, and it puts them into their places, in order, once their hashes are right. What a part holds
depends on the part alone, so the cache has the same bytes whoever computed it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from rowssl.core import distributed
from rowssl.core.console import bar, err
from rowssl.core.errors import InputError
from rowssl.core.files import sync, write_text
from rowssl.core.memory import reused_blocks
from rowssl.data.views import all_views
from rowssl.encoders.cache import DTYPE, Shard, TrunkStore, readable_size

if TYPE_CHECKING:
    from pathlib import Path

    from rowssl.encoders.base import Encoder
    from rowssl.encoders.trunk import FreshSource

DIGEST = hashlib.sha256().digest_size
Piece = tuple[Shard, int]  # some rows of a shard, from this one on
HALF_MAX = 65504.0  # largest float16
SAVE_SECONDS = 2.0  # of work at a part that is not whole yet, at most, are lost by a kill
LOOK = 0.1  # seconds between looks at what others do


class Parts:
    """The parts beside one store."""

    def __init__(self, store: TrunkStore) -> None:
        self.store, self.folder = store, store.folder / "parts"
        self.plan = self.folder / "plan.json"
        self._held: dict[int, IO[bytes]] = {}

    def announce(self, shards: Sequence[Shard], job: dict[str, Any]) -> None:
        """Invite others to compute these shards; `job` tells a new process where the pictures are."""
        facts = {"key": self.store.key, "shards": [[shard.first, shard.runs()] for shard in shards]}
        write_text(self.plan, json.dumps({**facts, "job": job}))

    def announced(self) -> list[Shard]:
        """What there is to do; nothing if nobody announced anything, or it is over."""
        try:
            facts = json.loads(self.plan.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return []
        return [Shard.of(first, runs) for first, runs in facts["shards"]] if facts["key"] == self.store.key else []

    def withdraw(self) -> None:
        """Nobody is invited (any more)."""
        self.plan.unlink(missing_ok=True)

    def claimed(self, shards: Iterable[Shard]) -> Iterator[Shard]:
        """Those that are not done and that nobody is at work on; each is ours when it is yielded, until `release`."""
        done = self._placed()
        for shard in shards:
            if shard.first not in done and not self.has(shard) and self._claim(shard):
                yield shard

    def _claim(self, shard: Shard) -> bool:
        """Whether the shard is ours now and still to be computed."""
        import fcntl

        try:
            stream = open(self._path(shard).with_suffix(".lock"), "ab")  # noqa: SIM115 (closed by release)
        except FileNotFoundError:  # all is done, and the folder removed
            return False
        except OSError as error:
            raise InputError(f"{self.folder} cannot be written: {error.strerror or error}") from None
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            stream.close()
            return False
        self._held[shard.first] = stream
        # In this order: a part is removed after the manifest names it.
        if self.has(shard) or shard.first in self._placed():
            self.release(shard)
            return False
        return True

    def release(self, shard: Shard) -> None:
        """Give a claim back."""
        if stream := self._held.pop(shard.first, None):
            stream.close()

    def _placed(self) -> set[int]:
        """Shards that are in the cache already."""
        now = TrunkStore(self.store.folder, self.store.key, self.store.shape, self.store.about)
        now.read()
        return {shard.first for shard in now.shards if shard.sha256}

    def _path(self, shard: Shard) -> Path:
        """By place and rows: another plan has other parts."""
        rows = hashlib.sha256(shard.rows.astype("<i8").tobytes()).hexdigest()[:16]
        return self.folder / f"{shard.first:010d}-{rows}.f16"

    def has(self, shard: Shard) -> bool:
        """Whether somebody has computed it."""
        return self._path(shard).exists()

    def put(self, shard: Shard, values: np.ndarray) -> None:
        """Leave the values of a shard for the process that fills the cache."""
        values = np.ascontiguousarray(values, dtype=DTYPE)
        path = self._path(shard)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            temporary.unlink(missing_ok=True)
            with open(temporary, "xb") as stream:
                stream.write(values.data)
                stream.write(hashlib.sha256(values.reshape(-1).view(np.uint8).data).digest())
            sync(temporary)
            os.replace(temporary, path)
        except OSError as error:
            if self.folder.exists():
                raise InputError(f"{path} cannot be written: {error.strerror or error}") from None
            # Otherwise all is done: somebody else computed this part, too.

    def take(self, shard: Shard) -> np.ndarray | None:
        """The values of a shard, if they are there and are what was written; damaged ones are removed."""
        path = self._path(shard)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
        values, digest = memoryview(content)[:-DIGEST], content[-DIGEST:]
        shape = (len(shard.rows), *self.store.shape)
        if len(values) != shape[0] * self.store.row_bytes or hashlib.sha256(values).digest() != digest:
            err.print(f"{path} is damaged: it is computed again", markup=False, soft_wrap=True)
            self.drop(shard)
            return None
        return np.frombuffer(values, dtype=DTYPE).reshape(shape)

    def drop(self, shard: Shard) -> None:
        """Remove the file of a shard."""
        self._path(shard).unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove everything: the cache is filled."""
        shutil.rmtree(self.folder, ignore_errors=True)


class Crew(Protocol):
    """Processes that help to fill a cache."""

    @property
    def job(self) -> dict[str, Any]: ...  # from which each of them makes its own source
    def start(self, plan: Path, parts: int) -> None: ...
    def tend(self) -> bool:
        """Replace those that were killed; after a moment, whether anyone is still at work."""
        ...

    def stop(self) -> None: ...


def fill(store: TrunkStore, source: FreshSource, *, progress: bool, crew: Crew | None = None) -> None:
    """Fill the store, whose lock is held, with what it lacks of the source's rows; what is computed is safe a moment later."""
    pending = deque(store.plan(source.rows))
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
    parts, mine = Parts(store), set[int]()
    parts.withdraw()
    with bar("computing the trunk cache", images, enabled=progress) as display:

        def collect() -> None:
            """Put into place what is there and next in order; parts of a process that was killed long ago, too."""
            while pending and (values := parts.take(pending[0])) is not None:
                shard = pending.popleft()
                store.write(shard, values)
                parts.drop(shard)
                display.advance(0 if shard.first in mine else len(shard.rows))

        collect()
        shared = len(pending) > 1 and (crew is not None or distributed.world() > 1)
        if shared:
            store.mark()
            parts.announce(list(pending), {} if crew is None else crew.job)
        if shared and crew is not None:
            try:
                crew.start(parts.plan, len(pending))
                while pending and crew.tend():
                    collect()
            finally:
                crew.stop()
            collect()
        while pending:  # alone; beside the other processes of torchrun; or what is left when nobody else is
            begun, todo = len(pending), list(pending)
            with _conditions(), _keeping(store, pending, alone=not shared) as keep:
                free = parts.claimed(todo) if shared else (shard for shard in todo if not parts.has(shard))
                for shard, values in _computed(free, source, store, display.advance):
                    keep(shard, values)
                    if len(values) < len(shard.rows):
                        continue
                    mine.add(shard.first)
                    if pending and shard is pending[0]:
                        store.write(shard, values)
                        pending.popleft()
                    else:  # one before it is still with somebody else
                        parts.put(shard, values)
                    parts.release(shard)
                    collect()
            collect()
            if len(pending) == begun:
                time.sleep(LOOK)
    parts.clear()


def help_out(store: TrunkStore, source: FreshSource) -> int:
    """Compute parts that another process has announced and nobody has taken, as long as there are any. How many it were."""
    parts, count = Parts(store), 0
    free = parts.claimed(parts.announced())
    first = next(free, None)
    if first is None:  # whoever waits asks often: nothing is set up for nothing
        return 0
    with _conditions():
        for shard, values in _computed(chain([first], free), source, store):
            if len(values) < len(shard.rows):
                continue
            parts.put(shard, values)
            parts.release(shard)
            count += 1
    return count


@contextmanager
def _conditions() -> Iterator[None]:
    """Pillow's warnings about odd files would be printed across the bar; what cannot be read raises."""
    with warnings.catch_warnings(action="ignore"), torch.inference_mode(), reused_blocks():
        yield


@contextmanager
def _keeping(store: TrunkStore, pending: deque[Shard], *, alone: bool) -> Iterator[Callable[[Shard, np.ndarray], None]]:
    """Stores what there is of a part that is not whole: every few seconds, and when the work ends in whatever way.

    The block says what it has, again and again. Where several processes share the work, parts are stored whole: the next
    place in the file may be another's.
    """
    last: tuple[Shard, np.ndarray] | None = None
    saved = time.monotonic()

    def keep(shard: Shard, values: np.ndarray) -> None:
        nonlocal last, saved
        last = shard, values
        if len(values) == len(shard.rows):
            saved = time.monotonic()  # it is stored at once
        elif alone and time.monotonic() - saved > SAVE_SECONDS:
            store.write(shard, values)
            saved = time.monotonic()

    try:
        yield keep
    except BaseException:  # Ctrl-C, which is no Exception, above all
        if alone and last is not None and pending and last[0] is pending[0]:
            with suppress(InputError):  # such as a full disk, which is what ended the work
                store.write(*last)
        raise


def _computed(
    shards: Iterable[Shard], source: FreshSource, store: TrunkStore, advance: Callable[[int], None] = lambda rows: None
) -> Iterator[tuple[Shard, np.ndarray]]:
    """Shards with the values (rows, *shape) float16 of their first rows, more each time, at last of all.

    The next shard is asked for a little before one is complete.
    """
    views = store.shape[0] - 1
    step = max(
        1, source.batch_size // (1 + views)
    )  # no batch holds rows of two shards: a shard does not depend on others

    def load(piece: Piece) -> np.ndarray:
        shard, begin = piece
        rows, options = shard.rows[begin : begin + step].tolist(), {"seed": source.seed, "count": views}
        return np.concatenate([all_views(source.table.image(r), source.recipe, index=r, **options) for r in rows])

    values = np.empty((0, *store.shape), dtype=np.float16)
    pieces = ((shard, begin) for shard in shards for begin in range(0, len(shard.rows), step))
    for (shard, begin), pictures in _prefetch(load, pieces, source.workers):
        if begin == 0:
            values = np.empty((len(shard.rows), *store.shape), dtype=np.float16)
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
