"""What stands between a request and the app: host, origin, token, the limits of a body, and the headers of every response.

Bodies have a limit of size and time each, and together one of number and bytes.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rowssl.serve.thread_pool import BUSY, too_slow

# A client that is silent would keep its connection, and these are few.
CLOSE = {"Connection": "close"}
COOKIE = "rowssl-token"
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; img-src 'self' blob: data:; style-src 'self'; script-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}
EVERYWHERE = ("0.0.0.0", "::", "")


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


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class Guard:
    """An ASGI application around another one.

    Parameters
    ----------
    app
        The application.
    host
        Where it is served: the Host header must name it, so that no other name can be made to point here (DNS rebinding). An
        address in numbers cannot be such a name, so any is right for a server that listens everywhere.
    token
        What every request must carry as `Authorization: Bearer`, cookie or `?token=`; empty for none.
    body, upload
        Largest body in bytes, in general and of POST /predict.
    bodies
        What all bodies together may take.
    """

    def __init__(self, app: ASGIApp, *, host: str, token: str, body: int, upload: int, bodies: Bodies) -> None:
        self.app, self.token, self.body, self.upload, self.bodies = app, token, body, upload, bodies
        self.any_address = host in EVERYWHERE
        self.names = {"localhost", "127.0.0.1", "::1", host.lower()}
        if self.any_address:
            self.names |= {name.lower() for name in (socket.gethostname(), socket.getfqdn())}
            self.names |= {f"{socket.gethostname().lower()}.local"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        refused = self.refuse(scope)
        if refused is not None:
            await refused(scope, receive, send_safely)
            return
        limit = self.limit(scope)
        # Whoever went away in the middle of a request needs no answer.
        with suppress(ClientDisconnect), self.bodies.received(receive, limit, too_large(limit)) as receive_some:
            await self.app(scope, receive_some, send_safely)

    def refuse(self, scope: Scope) -> Response | None:
        """The response to a request that goes no further."""
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self.right_host(hosts[0]):
            return _refusal(400, "The Host header names another server than this one.")
        if scope["method"] not in ("GET", "HEAD") and not _same_origin(headers, hosts[0]):
            return _refusal(403, "Only the page of this server may change anything: the request came from elsewhere.")
        if self.token:
            given = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [""])[0]
            if scope["path"] == "/" and self.right_token(given):
                response = RedirectResponse("/", 303)  # the token leaves the address line
                response.set_cookie(COOKIE, self.token, httponly=True, samesite="strict")
                return response
            if not any(map(self.right_token, (given, _bearer(headers), _cookie(headers)))):
                return _refusal(
                    401, "The token is missing: open the address that `rowssl serve` printed, with ?token= in it."
                )
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()) or len(length) > 18 or int(length) > self.limit(scope):
            return _refusal(413, too_large(self.limit(scope)))
        return None

    def right_host(self, text: str) -> bool:
        """Whether a Host header names this server, with any port: a tunnel may have another one."""
        try:
            name = (urlsplit(f"//{text}").hostname or "").lower()
        except ValueError:
            return False
        if name in self.names:
            return True
        try:
            return self.any_address and bool(ipaddress.ip_address(name))
        except ValueError:
            return False

    def right_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.token.encode())

    def limit(self, scope: Scope) -> int:
        return self.upload if scope["path"] == "/predict" else self.body


def too_large(limit: int) -> str:
    """What is said with a 413."""
    return f"The upload is above the limit of {limit / 2**20:.0f} MiB."


def _refusal(status: int, sentence: str) -> Response:
    return JSONResponse({"detail": sentence}, status)


def _same_origin(headers: Headers, host: str) -> bool:
    """Browsers say where a request comes from; programs without a page say nothing."""
    origin = headers.get("origin")
    if origin is not None:
        return origin.lower() in (f"http://{host}".lower(), f"https://{host}".lower())
    return headers.get("sec-fetch-site", "none") in ("same-origin", "none")


def _bearer(headers: Headers) -> str:
    kind, _, value = headers.get("authorization", "").partition(" ")
    return value.strip() if kind.lower() == "bearer" else ""


def _cookie(headers: Headers) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found else ""
