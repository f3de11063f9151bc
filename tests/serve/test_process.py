"""`rowssl serve` as a process: the token it prints, what it keeps when it is interrupted."""

from __future__ import annotations

import http.client
import signal
import subprocess
import sys
from pathlib import Path

import httpx

from rowssl.runs.edits import Edits


def status_of_a_promised_gigabyte(port: int, token: str) -> int:
    """The answer comes before the body is sent."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    headers = {"Content-Length": str(2**30), "Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    connection.request("POST", "/predict", headers=headers)
    return connection.getresponse().status


def test_a_server_for_others_has_a_token_and_ends_cleanly(own_run: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "rowssl",
        "serve",
        str(own_run),
        "--port",
        "0",
        "--host",
        "0.0.0.0",
        "--device",
        "cpu",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = httpx.URL(process.stdout.readline().strip())
            here, token = f"http://127.0.0.1:{address.port}", address.params["token"]
            assert len(token) > 20
            assert httpx.get(f"{here}/classes").status_code == 401
            wrong = httpx.patch(f"{here}/classes/a", json={"name": "x"}, headers={"Authorization": "Bearer wrong"})
            assert wrong.status_code == 401
            allowed = {"Authorization": f"Bearer {token}"}
            named = httpx.patch(f"{here}/classes/a", json={"name": "Named by the API"}, headers=allowed)
            assert named.status_code == 200
            assert status_of_a_promised_gigabyte(address.port or 0, token) == 413
        finally:
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert token not in said
    assert "Traceback" not in said
    assert Edits.load(own_run).names["a"] == "Named by the API"
    assert "Named by the API" in (own_run / "report.html").read_text()
