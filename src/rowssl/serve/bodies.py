"""Bodies of requests on their way in: each has a limit of size and time, and all together one of number and bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.types import Message, Receive

from rowssl.serve.gate import BUSY, too_slow

# A client that is silent would keep its connection, and these are few.
CLOSE = {"Connection": "close"}


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


def _busy() -> HTTPException:
    return HTTPException(503, BUSY, {"Retry-After": "2", **CLOSE})
