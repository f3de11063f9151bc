"""What clients may take of the server: connections and their time, bodies and their bytes, threads and their time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rowssl.core.errors import InputError

if TYPE_CHECKING:
    import uvicorn

Result = TypeVar("Result")
CONNECTIONS = 256  # at a time; more are answered with 503
HEAD_SECONDS = 10.0  # until the head of a request is complete
REQUEST_SECONDS = 60.0  # until a request is answered and the answer is taken
CLOSE = {"Connection": "close"}  # a client that sends nothing would keep its connection, and these are few
BUSY = "Too many requests at a time: try again in a moment."


def too_slow(seconds: float) -> str:
    """What is said with a 504."""
    return f"This took longer than {seconds:g} seconds and was given up."


def too_large(limit: int) -> str:
    """What is said with a 413."""
    return f"The upload is above the limit of {limit / 2**20:.0f} MiB."


def _busy() -> HTTPException:
    return HTTPException(503, BUSY, {"Retry-After": "2", **CLOSE})


def server_of(app: ASGIApp, **seconds: float) -> uvicorn.Server:
    """A server of an application with these limits on connections; `seconds` are those of `Deadlines`."""
    import uvicorn

    deadlines = Deadlines(app, **seconds)
    config = uvicorn.Config(
        deadlines,
        http="h11",
        ws="none",
        limit_concurrency=CONNECTIONS,
        proxy_headers=False,  # a client could claim to be another one
        log_level="error",
        access_log=False,  # an address may hold the token
        server_header=False,
    )
    config.load()
    config.http_protocol_class = deadlines.watching(config.http_protocol_class)  # type: ignore[assignment]
    return uvicorn.Server(config)


class Deadlines:
    """An ASGI application around another one that closes connections of clients that are too slow, as long as they are few.

    uvicorn has no time limit for the head of a request, or for an answer that is not read: clients that send nothing could hold all
    connections. `watching` puts a protocol of asyncio in front of the server's own and so knows when a connection begins; the
    application knows when it is asked and when it has answered.
    """

    def __init__(self, app: ASGIApp, *, head: float = HEAD_SECONDS, request: float = REQUEST_SECONDS) -> None:
        self.app, self.head, self.request = app, head, request
        self.open: dict[Any, asyncio.Transport] = {}
        self.timers: dict[Any, asyncio.TimerHandle] = {}
        self.busy: Counter[Any] = (
            Counter()
        )  # requests under way: the next one may begin before the last has quite ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = tuple(scope.get("client") or ())
        if client not in self.open:
            await self.app(scope, receive, send)
            return
        self.busy[client] += 1
        self.within(client, self.request)
        try:
            await self.app(scope, receive, send)
        finally:
            self.busy[client] -= 1
            if not self.busy[client]:
                del self.busy[client]
                self.within(client, self.head)  # until the next request

    def watching(self, protocol: Callable[..., asyncio.Protocol]) -> Callable[..., asyncio.Protocol]:
        """A server's protocol with these limits."""
        return lambda **arguments: Watched(protocol(**arguments), self)

    def within(self, client: Any, seconds: float) -> None:
        """Close the connection at once unless it gets on within so many seconds."""
        self.stop(client)
        if client in self.open:  # an answer that nobody reads would keep a polite end waiting
            self.timers[client] = asyncio.get_running_loop().call_later(seconds, self.open[client].abort)

    def stop(self, client: Any) -> None:
        """No deadline for now."""
        timer = self.timers.pop(client, None)
        if timer is not None:
            timer.cancel()


class Watched(asyncio.Protocol):
    """A connection with a deadline, and behind it the server's protocol."""

    def __init__(self, inner: asyncio.Protocol, deadlines: Deadlines) -> None:
        self.inner, self.deadlines = inner, deadlines

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """From now on a request is expected."""
        assert isinstance(transport, asyncio.Transport)
        peer = transport.get_extra_info("peername")
        self.client = tuple(peer[:2]) if peer else (self,)
        self.deadlines.open[self.client] = transport
        self.deadlines.within(self.client, self.deadlines.head)
        self.inner.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """There is nothing left to watch."""
        self.deadlines.open.pop(self.client, None)
        self.deadlines.stop(self.client)
        self.inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self.inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self.inner.eof_received()

    def pause_writing(self) -> None:
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        self.inner.resume_writing()


@dataclass(eq=False)
class Body:
    """One body: the bytes of it that have come, and the moment when it is given up."""

    read: int = 0
    timer: asyncio.Timeout | None = None
    until: float | None = None  # None: nobody has asked for it yet
    complete: bool = False
    given_up: bool = False  # to make room for others


class Bodies:
    """What is coming in, and what has come in and is still held.

    Where there is no room for one more, the one that has been coming for the longest time is given up: clients that send slowly,
    or nothing at all, cannot shut others out, however many they are.
    """

    def __init__(self, most: int, held: int, seconds: float) -> None:
        self.most, self.held, self.seconds = most, held, seconds
        self.coming: dict[Body, None] = {}  # in the order in which they began
        self.bytes = 0

    @contextmanager
    def received(self, receive: Receive, limit: int, too_large: str) -> Iterator[Receive]:
        """`receive` with these limits, `limit` bytes whatever the header said of the length; the body is held until the end."""
        body = Body()

        async def receive_some() -> Message:
            if body.complete:
                return await receive()
            message = await self._next(body, receive)
            if message["type"] == "http.request":
                size = len(message.get("body", b""))
                body.read, self.bytes = body.read + size, self.bytes + size
                if body.read > limit:
                    raise HTTPException(413, too_large)  # not closed: its client may still read the answer
                self._make_room(body)
                body.complete = not message.get("more_body", False)
            if body.complete or message["type"] == "http.disconnect":
                self.coming.pop(body, None)
            return message

        try:
            yield receive_some
        finally:
            self._forget(body)

    async def _next(self, body: Body, receive: Receive) -> Message:
        """The next part of a body, in its time."""
        if body.until is None:
            body.until = asyncio.get_running_loop().time() + self.seconds
            self.coming[body] = None
            self._make_room(body)
        try:
            if body.given_up:
                raise TimeoutError
            async with asyncio.timeout_at(body.until) as body.timer:
                return await receive()
        except TimeoutError:
            if body.given_up:
                raise _busy() from None
            raise HTTPException(504, too_slow(self.seconds), CLOSE) from None
        finally:
            body.timer = None

    def _make_room(self, body: Body) -> None:
        """Give up others until this one has room; 503 if nothing can be given up."""
        while len(self.coming) > self.most or self.bytes > self.held:
            few = len(self.coming) <= self.most  # then it is the bytes, and who has sent none frees none
            oldest = next((one for one in self.coming if one is not body and (one.read or not few)), None)
            if oldest is None:
                raise _busy()
            self._forget(oldest)
            oldest.given_up = True
            if oldest.timer is not None:
                oldest.timer.reschedule(asyncio.get_running_loop().time())

    def _forget(self, body: Body) -> None:
        self.coming.pop(body, None)
        self.bytes, body.read = self.bytes - body.read, 0


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
    """Runs work in `workers` threads; `queue` more may wait, all others are refused with 503, and after `seconds` with 504.

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
