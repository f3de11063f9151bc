"""Parts of a trunk cache that several processes compute: what is to do, who does it, and what is done, as files.

The folder `parts` beside the cache holds `plan.json`, and for each part a lock file, which whoever computes the part has locked
(the system unlocks it when that process dies, in whatever way), and the part itself: its values and their sha256, written
under another name and renamed once. Files of their own, and not places in one file, since network file systems may lose
bytes where two machines write into one page. Should locks not hold between machines, a part is computed twice, to the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from rowssl.checkpoint import sync, write_text
from rowssl.errors import InputError
from rowssl.nn.trunk_cache import DTYPE, Shard, TrunkStore
from rowssl.progress import err

DIGEST = hashlib.sha256().digest_size


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
