"""A pool of threads with few places and a limit of time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from starlette.exceptions import HTTPException

from rowssl.core.errors import InputError

Result = TypeVar("Result")
BUSY = "Too many requests at a time: try again in a moment."


def too_slow(seconds: float) -> str:
    """What is said with a 504."""
    return f"This took longer than {seconds:g} seconds and was given up."


class Ticket:
    """The time of one request, and whether what it asks for was given up, or has begun to be saved: never both."""

    def __init__(self, seconds: float) -> None:
        self.until = time.monotonic() + seconds
        self.lock, self.claimed, self.given_up = threading.Lock(), False, False

    def left(self) -> float:
        """Seconds, below 0 when they are over."""
        return self.until - time.monotonic()

    def claim(self) -> None:
        """From here on it is carried out, and its answer waited for; InputError if it was given up before."""
        with self.lock:
            if self.given_up:
                raise InputError("This was given up before it was carried out.")
            self.claimed = True

    def give_up(self) -> bool:
        """Whether it was still time to."""
        with self.lock:
            self.given_up = not self.claimed
            return self.given_up


class Gate:
    """Runs work in `workers` threads; `queue` more may wait, everybody else is sent away with 503, and after `seconds` with 504.

    Work that takes too long keeps its place until it ends: a thread cannot be stopped, and its work is still a load. Work that
    changes something claims its ticket first: after a 504 it cannot, and once it has, its answer is waited for.
    """

    def __init__(self, workers: int, queue: int, seconds: float) -> None:
        self.pool = ThreadPoolExecutor(workers, thread_name_prefix="rowssl-serve")
        self.room, self.seconds = workers + queue, seconds
        self.taken, self.lock, self.closed = 0, threading.Lock(), False

    async def run(self, work: Callable[[], Result], ticket: Ticket | None = None) -> Result:
        """`work()`, in the time that the ticket has left."""
        ticket = ticket or Ticket(self.seconds)
        self._enter()
        try:
            future = self.pool.submit(work)
        except BaseException:
            self._leave()
            raise
        future.add_done_callback(lambda _: self._leave())
        try:
            async with asyncio.timeout(ticket.left()):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            if ticket.give_up():
                raise HTTPException(504, too_slow(self.seconds)) from None
        return await asyncio.wrap_future(future)

    def close(self, *, wait: bool = False) -> None:
        """Take no more work."""
        self.closed = True
        self.pool.shutdown(wait=wait, cancel_futures=True)

    def _enter(self) -> None:
        with self.lock:
            if self.taken >= self.room or self.closed:
                raise HTTPException(503, BUSY, {"Retry-After": "2"})
            self.taken += 1

    def _leave(self) -> None:
        with self.lock:
            self.taken -= 1
