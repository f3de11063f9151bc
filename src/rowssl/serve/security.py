"""What stands between a request and the app: host, origin, token, the size of the body, and the headers of every response."""

from __future__ import annotations

import hmac
import ipaddress
import socket
from contextlib import suppress
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rowssl.serve.limits import Bodies, too_large

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
        # A client that disconnected in the middle of a request needs no answer.
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
