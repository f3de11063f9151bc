"""A connection that is given up when its client is too slow: places are few, and holding them all would shut others out."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0  # until the head of a request is complete
REQUEST_SECONDS = 60.0  # until a request is answered and the answer is taken
TICK = 1.0


class Connection(H11Protocol):
    """One connection; a watch looks at it every second."""

    watch: asyncio.TimerHandle | None = None
    since = 0.0  # when what it is waiting for began
    served: object = None  # the request that was under way when the watch looked last

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to watch."""
        super().connection_made(transport)
        self.since = self.loop.time()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing left to watch."""
        if self.watch is not None:
            self.watch.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """From now on it waits for the next request."""
        self.since = self.loop.time()
        super().on_response_complete()

    def _look(self) -> None:
        now = self.loop.time()
        if self.cycle is not self.served:
            self.served, self.since = self.cycle, now
        busy = self.cycle is not None and not self.cycle.response_complete
        if now - self.since > (REQUEST_SECONDS if busy else HEAD_SECONDS):
            self.transport.abort()  # at once: an answer that nobody takes would keep a polite end waiting
            return
        self.watch = self.loop.call_later(TICK, self._look)
