"""Connections whose clients are too slow are closed, and the others are not."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from rowssl.serve.limits import server_of

HEAD, REQUEST = 0.6, 1.5
ASK = b"GET %s HTTP/1.1\r\nHost: here\r\n\r\n"


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A server with short limits."""

    async def soon(_: Request) -> Response:
        return PlainTextResponse("yes")

    async def slow(_: Request) -> Response:
        await asyncio.sleep(1)
        return PlainTextResponse("yes")

    async def never(_: Request) -> Response:
        await asyncio.sleep(4)
        return PlainTextResponse("no")

    async def large(_: Request) -> Response:
        return Response(bytes(2**26))

    routes = [Route("/soon", soon), Route("/slow", slow), Route("/never", never), Route("/large", large)]
    server = server_of(Starlette(routes=routes), head=HEAD, request=REQUEST)
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    yield listener.getsockname()[1]
    server.should_exit = True
    thread.join(10)
    assert not thread.is_alive()


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=10)


def seconds_until_closed(client: socket.socket, received: list[int] | None = None) -> float:
    began = time.monotonic()
    try:
        while part := client.recv(2**16):
            if received is not None:
                received.append(len(part))
    except ConnectionResetError:
        pass
    return time.monotonic() - began


@pytest.mark.parametrize("sent", [b"", b"GET /soon HTTP/1.1\r\nHost: he", ASK % b"/soon"])
def test_a_request_that_does_not_come(port: int, sent: bytes) -> None:
    with connect(port) as client:
        client.sendall(sent)
        assert seconds_until_closed(client) < HEAD + 5


def test_bytes_one_by_one_do_not_help(port: int) -> None:
    began = time.monotonic()
    with connect(port) as client:
        try:
            for byte in b"GET /soon HTTP/1.1\r\nX: " + b"a" * 200:
                client.sendall(bytes([byte]))
                time.sleep(0.05)
        except OSError:  # as soon as the other side is known to be gone
            pass
    assert time.monotonic() - began < HEAD + 5


def test_an_answer_that_takes_too_long(port: int) -> None:
    with connect(port) as client:
        client.sendall(ASK % b"/never")
        assert REQUEST - 0.2 < seconds_until_closed(client) < REQUEST + 5


def test_an_answer_that_is_not_read(port: int) -> None:
    with connect(port) as client:
        client.sendall(ASK % b"/large")
        time.sleep(REQUEST + 1)
        assert seconds_until_closed(client, received := []) < 5
        assert sum(received) < 2**26


def test_one_connection_for_several_requests(port: int) -> None:
    """Each has its own time: the answers together take longer than a head may."""
    with connect(port) as client:
        for _ in range(2):
            client.sendall(ASK % b"/slow")
            read(client, 1)
        client.sendall(ASK % b"/slow" * 2)  # both at once
        read(client, 2)


def read(client: socket.socket, answers: int) -> None:
    """So many answers, or an error where the connection is closed before."""
    said = b""
    while said.count(b"yes") < answers:
        part = client.recv(1000)
        assert part
        said += part
