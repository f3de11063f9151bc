"""Uploads that never come, from real connections: the good are answered beside them."""

from __future__ import annotations

import http.client
import socket
from pathlib import Path

from crowd import multipart, served

from finished import Finished

ASKED = (
    b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: multipart/form-data; boundary=x\r\n"
    b"Content-Length: 1000\r\n\r\n"
)


def test_uploads_that_never_come_shut_nobody_out(own_run: Path, finished: Finished) -> None:
    body, headers = multipart((finished.pictures / "000.png").read_bytes())
    with served(own_run) as (_, port):
        silent = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(200)]
        for one in silent:
            one.sendall(ASKED)
        for _ in range(3):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            connection.request("POST", "/predict", body, headers)
            assert connection.getresponse().status == 200
            connection.close()
        for one in silent[:60]:  # given up for those that came later, with an answer, and closed
            answer = b"".join(iter(lambda one=one: one.recv(4096), b""))  # type: ignore[misc]
            assert answer.startswith(b"HTTP/1.1 503")
        for one in silent:
            one.close()
