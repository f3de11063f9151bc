"""A pool of threads with few places and a limit of time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from starlette.exceptions import HTTPException

Result = TypeVar("Result")


class Gate:
    """Runs work in `workers` threads; `queue` more may wait, everybody else is sent away with 503, and after `seconds` with 504.

    Work that takes too long keeps its place until it ends: a thread cannot be stopped, and its work is still a load.
    """

    def __init__(self, workers: int, queue: int, seconds: float) -> None:
        self.pool = ThreadPoolExecutor(workers, thread_name_prefix="rowssl-serve")
        self.room, self.seconds = workers + queue, seconds
        self.taken, self.lock, self.closed = 0, threading.Lock(), False

    async def run(self, work: Callable[..., Result], before: Callable[[], Awaitable[Any]] | None = None) -> Result:
        """`work()`, or `work(given)` with what awaiting `before` gives, which needs a place already: an upload, for example."""
        self._enter()
        waiting = True  # this coroutine has the place, not yet a thread
        try:
            async with asyncio.timeout(self.seconds):
                given = () if before is None else (await before(),)
                future = self.pool.submit(work, *given)
                waiting = False
                future.add_done_callback(lambda _: self._leave())
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise HTTPException(504, f"This took longer than {self.seconds:g} seconds and was given up.") from None
        finally:
            if waiting:
                self._leave()

    def close(self, *, wait: bool = False) -> None:
        """Take no more work."""
        self.closed = True
        self.pool.shutdown(wait=wait, cancel_futures=True)

    def _enter(self) -> None:
        with self.lock:
            if self.taken >= self.room or self.closed:
                raise HTTPException(503, "Too many requests at a time: try again in a moment.", {"Retry-After": "2"})
            self.taken += 1

    def _leave(self) -> None:
        with self.lock:
            self.taken -= 1
