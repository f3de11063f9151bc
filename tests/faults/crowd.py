"""Clients of a served run, good and hostile, each a thread with connections of its own."""

from __future__ import annotations

import http.client
import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

BOUNDARY = "xxBOUNDARYxx"
PATIENCE = 60.0


@contextmanager
def served(run: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """`rowssl serve` as a process of its own: the process and its port. It is ended with SIGTERM if it still lives."""
    command = [sys.executable, "-m", "rowssl", "serve", str(run), "--port", "0", "--device", "cpu", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        said: list[str] = []
        assert process.stderr is not None
        reader = threading.Thread(target=lambda: said.extend(process.stderr), daemon=True)  # type: ignore[arg-type]
        reader.start()
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert address.startswith("http"), "".join(said)
            yield process, urlsplit(address).port or 0
        finally:
            process.terminate()
            process.wait(60)
            reader.join(10)
            process.stdout.close()
    assert "Traceback" not in "".join(said), "".join(said)[-4000:]


def memory(process: subprocess.Popen[str]) -> float:
    """What a process has in memory now, in MB."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found
    return int(found[1]) / 1024


def multipart(data: bytes) -> tuple[bytes, dict[str, str]]:
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="image"; filename="x.png"\r\n\r\n'.encode()
    body = head + data + f"\r\n--{BOUNDARY}--\r\n".encode()
    return body, {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}


@dataclass
class Seen:
    """What all clients saw."""

    good: Counter[int] = field(default_factory=Counter)
    hostile: Counter[int] = field(default_factory=Counter)
    slowest: float = 0.0
    wrong: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Client:
    """Sends good and hostile requests in turn, by chance, until the time or the number of requests is up."""

    def __init__(self, number: int, port: int, seen: Seen, good: list[bytes], bad: list[bytes]) -> None:
        self.rng, self.port, self.seen = np.random.default_rng([7, number]), port, seen
        self.number, self.good, self.bad, self.turn = number, good, bad, 0

    def run(self, seconds: float, most: int) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.turn < most:
            self.turn += 1
            is_good = self.rng.random() < 0.5
            began = time.monotonic()
            try:
                status, what = self.good_request() if is_good else self.hostile_request()
            except Exception as error:  # a connection that was refused or dropped
                status, what = (-1, f"{type(error).__name__}: {error}") if is_good else (0, "")
            taken = time.monotonic() - began
            with self.seen.lock:
                (self.seen.good if is_good else self.seen.hostile)[status] += 1
                if is_good:
                    self.seen.slowest = max(self.seen.slowest, taken)
                if status >= 500 or (is_good and status != 200):
                    self.seen.wrong.append(f"{status} {what}")

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            content = answer.read()
            return answer.status, f"{method} {path[:80]} {content[:200]!r}"
        finally:
            connection.close()

    def good_request(self) -> tuple[int, str]:
        match int(self.rng.integers(9)):
            case 0 | 1 | 2:
                body, headers = multipart(self.good[int(self.rng.integers(len(self.good)))])
                return self.ask("POST", "/predict", body, headers)
            case 3:
                return self.ask("GET", "/classes")
            case 4:
                return self.ask("GET", f"/classes/{'abcde'[int(self.rng.integers(5))]}?order=doubtful&limit=20")
            case 5:
                return self.ask("GET", f"/thumb/{int(self.rng.integers(500))}")
            case 6:
                return self.ask(
                    "GET", ("/", "/page.js", "/health", "/docs", "/openapi.json")[int(self.rng.integers(5))]
                )
            case 7:
                return self.ask("GET", "/classes.csv")
            case _:
                name = json.dumps({"name": f"name {self.number} {self.turn}"}).encode()
                place = "abcde"[int(self.rng.integers(5))]
                return self.ask("PATCH", f"/classes/{place}", name, {"Content-Type": "application/json"})

    def hostile_request(self) -> tuple[int, str]:
        json_kind = {"Content-Type": "application/json"}
        match int(self.rng.integers(16)):
            case 0 | 1 | 2:
                body, headers = multipart(self.bad[int(self.rng.integers(len(self.bad)))])
                return self.ask("POST", "/predict", body, headers)
            case 3:
                return self.ask("POST", "/predict", *multipart(bytes(11 * 2**20)))
            case 4:
                deep = (b"[" * 50_000, b'{"others": [' + b"[" * 9000, b'{"name": "\\ud800"}', b"\xff", b"")
                return self.ask("POST", "/classes/a/merge", deep[int(self.rng.integers(5))], json_kind)
            case 5:
                return self.ask(
                    "PATCH", "/classes/a", b'{"name": "evil"}', {**json_kind, "Origin": "http://evil.example"}
                )
            case 6:
                return self.ask("GET", "/classes", headers={"Host": "evil.example"})
            case 7:
                places = (
                    "/..%2f..%2fetc%2fpasswd",
                    "/thumb/" + "9" * 300,
                    "/classes/%00%ff%fe",
                    "/" + "a" * 60_000,
                    "//evil.example/%2e%2e",
                )
                return self.ask("GET", places[int(self.rng.integers(5))])
            case 8:
                return self.ask("POST", "/move", b'{"files": [' + b'"x",' * 9000 + b'"x"], "class_id": "a"}', json_kind)
            case 9:
                method = ("PUT", "DELETE", "TRACE", "OPTIONS", "BREW")[int(self.rng.integers(5))]
                return self.ask(method, "/classes/a", b"x" * 100)
            case 10:
                return self.ask("POST", "/undo", b"{}", {"Sec-Fetch-Site": "cross-site"})
            case 11:
                return self.ask("GET", "/classes", headers={f"X-{i}": "y" * 900 for i in range(90)})
            case _:
                return self.raw(RAW[int(self.rng.integers(len(RAW)))])

    def raw(self, data: bytes) -> tuple[int, str]:
        """Bytes that need not be HTTP; the client may go away at any moment."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
            connection.sendall(data)
            if self.rng.random() < 0.3:
                return 0, ""
            answer = connection.recv(4096)
        found = re.match(rb"HTTP/1\.[01] (\d{3})", answer)
        return (int(found[1]) if found else 0), f"{data[:80]!r} {answer[:200]!r}"


HOST, POST = b"Host: 127.0.0.1\r\n", b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\n"
FORM, CHUNKED = b"Content-Type: multipart/form-data; boundary=", b"Transfer-Encoding: chunked\r\n"
RAW = [
    b"GET / HTTP/1.1\r\n",
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1",
    POST + b"Content-Length: 1000000000000\r\n\r\n",
    POST + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n",
    POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
    POST + b"Content-Length: 5\r\n" + CHUNKED + b"\r\n0\r\n\r\nGET /health HTTP/1.1\r\n\r\n",
    POST + CHUNKED + b"\r\nFFFFFFFFFFFF\r\n",
    POST + FORM + b"x" * 5000 + b"\r\nContent-Length: 3\r\n\r\n--x",
    POST + FORM + b"x\r\nContent-Length: 90\r\n\r\n--x\r\nContent-Disposition: ",
    (b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n") * 50,
    b"GET / HTTP/1.1\r\n" + HOST + b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + HOST + HOST + b"\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET / HTTP/0.9\r\n\r\n",
    b"GET //evil.example/%2e%2e HTTP/1.1\r\n" + HOST + b"\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
    b"\xff" * 3000,
    b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"y" * 200_000 + b"\r\n\r\n",
]
