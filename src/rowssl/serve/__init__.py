"""`rowssl serve run/`: a page and a JSON API for a finished run, on this machine unless asked otherwise."""

from __future__ import annotations

import secrets
import socket
from pathlib import Path

from rowssl.core.errors import InputError

SHORTEST_TOKEN = 8


def serve(
    run: str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    encoder: str | None = None,
    device: str = "auto",
) -> None:
    """Serve a run until interrupted.

    Parameters
    ----------
    run
        Run directory.
    host, port
        Where to listen; port 0 takes a free one. Beyond the loopback every request needs the token.
    token
        The token; one is made where it is needed and not given.
    encoder, device
        As for `rowssl.load`.
    """
    try:
        import fastapi  # noqa: F401
        import python_multipart  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise InputError(
            f"`rowssl serve` needs packages that are not installed ({error.name}): pip install 'rowssl[serve]'."
        ) from error
    from rowssl.core.console import err, out
    from rowssl.core.memory import give_blocks_back
    from rowssl.serve.app import create_app
    from rowssl.serve.limits import server_of
    from rowssl.serve.security import is_loopback
    from rowssl.serve.session import Served

    give_blocks_back()
    token = _token(token, needed=not is_loopback(host))
    with _listen(host, port) as listener:  # before the model is loaded: a taken port is said at once
        err.print(f"loading {run}", markup=False, soft_wrap=True)
        served = Served(run, encoder=encoder, device=device)
        give_blocks_back()  # of what loading took, too
        app = create_app(served, host=host, token=token)
        place = f"http://{_shown(host)}:{listener.getsockname()[1]}/"
        out.print(f"{place}{f'?token={token}' if token else ''}", markup=False, soft_wrap=True, highlight=False)
        err.print("Ctrl+C ends it", markup=False)
        try:
            server_of(app).run(sockets=[listener])
        except KeyboardInterrupt:
            err.print("ended", markup=False)


def _token(token: str | None, *, needed: bool) -> str:
    """The token every request must carry; empty for none."""
    if token is None:
        return secrets.token_urlsafe(24) if needed else ""
    if len(token) < SHORTEST_TOKEN or not all(c.isascii() and (c.isalnum() or c in "-_.~") for c in token):
        raise InputError(
            f"--token must be at least {SHORTEST_TOKEN} letters, digits or any of -_.~ (leave it out to have one made)."
        )
    return token


def _listen(host: str, port: int) -> socket.socket:
    """A bound socket, or one sentence why not."""
    if not 0 <= port <= 65535:
        raise InputError(f"--port is a number from 0 to 65535, not {port}.")
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"Cannot listen at {host} port {port} ({reason}): choose another --port or --host.") from error


def _shown(host: str) -> str:
    """What to write into an address so that a browser finds the host."""
    if host in ("0.0.0.0", "::", ""):
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host
