"""Bodies that never come, or that come slowly, keep nobody else from being answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from test_limits import real_png

from finished import Finished
from rowssl.serve.app import Limits, create_app
from rowssl.serve.limits import Bodies
from rowssl.serve.session import Served

Receive = Callable[[], Awaitable[dict[str, Any]]]
HEAD = b'--x\r\nContent-Disposition: form-data; name="image"; filename="x.png"\r\n\r\n'


def scope(
    method: str = "POST", path: str = "/predict", kind: bytes = b"multipart/form-data; boundary=x"
) -> dict[str, Any]:
    return {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": path,
        "raw_path": path.encode(), "query_string": b"", "scheme": "http", "server": ("127.0.0.1", 8000),
        "headers": [(b"host", b"127.0.0.1:8000"), (b"content-type", kind)],
    }  # fmt: skip


async def asked(app: Any, receive: Receive, asked_for: dict[str, Any] | None = None) -> int:
    """The status of an answer."""
    said: list[int] = []

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            said.append(message["status"])

    await app(asked_for or scope(), receive, send)
    return said[0]


async def never() -> dict[str, Any]:
    await asyncio.Event().wait()
    raise AssertionError


def parts(*content: bytes, end: bool = True) -> Receive:
    """A body that comes in these parts; without `end` more is promised and never comes."""
    left = list(content)

    async def receive() -> dict[str, Any]:
        if not left:
            await never()
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left) or not end}

    return receive


@asynccontextmanager
async def silent(app: Any, count: int, receive: Callable[[], Receive], *asked_for: Any) -> AsyncIterator[list[Any]]:
    tasks = [asyncio.create_task(asked(app, receive(), *asked_for)) for _ in range(count)]
    for _ in range(20):
        await asyncio.sleep(0.01)
    yield tasks
    for task in tasks:
        task.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture(scope="module")
def served(finished: Finished) -> Served:
    return Served(finished.run, device="cpu")


def good() -> Receive:
    return parts(HEAD, real_png(), b"\r\n--x--\r\n")


def test_good_requests_are_answered_beside_silent_ones(served: Served) -> None:
    limits = Limits()

    async def crowd() -> None:
        app = create_app(served, limits=limits)
        patch = scope("PATCH", "/classes/a", b"application/json")
        async with silent(app, 100, lambda: never), silent(app, 100, lambda: never, patch) as tasks:
            assert await asked(app, good()) == 200
            assert len(app.bodies.coming) < limits.bodies
            async with silent(app, 200, lambda: never) as more:
                assert await asked(app, good()) == 200
                assert len(app.bodies.coming) <= limits.bodies  # the others have lost their connections
                assert {task.result() for task in (*tasks, *more) if task.done()} == {503}
        assert app.bodies.coming == {}
        assert app.bodies.bytes == 0

    asyncio.run(crowd())


def test_bodies_that_stop_half_way_make_room(served: Served) -> None:
    async def crowd() -> None:
        app = create_app(served, limits=Limits(held=2**21))
        half = [HEAD, bytes(2**19)]
        async with silent(app, 20, lambda: parts(*half, end=False)) as tasks:
            assert app.bodies.bytes <= 2**21
            assert await asked(app, parts(HEAD, real_png() + bytes(2**20), b"\r\n--x--\r\n")) == 200
            assert {task.result() for task in tasks if task.done()} == {503}
        assert app.bodies.bytes == 0

    asyncio.run(crowd())


def test_a_body_that_never_comes_is_504(served: Served) -> None:
    async def wait() -> None:
        app = create_app(served, limits=Limits(seconds=0.2))
        assert await asked(app, never) == 504
        assert await asked(app, parts(HEAD, end=False)) == 504
        assert await asked(app, never, scope("POST", "/predict", b"application/json")) == 504
        assert await asked(app, never, scope("PATCH", "/classes/a", b"application/json")) == 504

    asyncio.run(wait())


def test_bodies_that_have_come_are_not_given_up() -> None:
    async def fill() -> None:
        bodies = Bodies(most=2, held=10, seconds=60)
        with bodies.received(parts(bytes(8)), 100, "") as first, bodies.received(parts(bytes(8)), 100, "") as second:
            assert not (await first())["more_body"]
            with pytest.raises(HTTPException) as busy:
                await second()
            assert busy.value.status_code == 503
        assert bodies.bytes == 0
        with bodies.received(parts(bytes(8)), 100, "") as third:
            assert len((await third())["body"]) == 8

    asyncio.run(fill())
