"""A crowd at a served run, good and hostile: nobody breaks it, the good are answered throughout, no edit is lost to `kill -9`."""

from __future__ import annotations

import http.client
import io
import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from crowd import Client, Seen, memory, multipart, served
from test_bad_images import bad_files, bomb, odd_files

from finished import Finished
from rowssl.runs.edits import Edits

CLIENTS = 32
MINUTES = 10


def png(image: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")  # type: ignore[attr-defined]
    return buffer.getvalue()


def test_a_crowd(own_run: Path, finished: Finished, full: bool, tally: Callable[[str, int, int], None]) -> None:
    good = [png(image) for image in finished.fresh[:40]] + list(odd_files().values())
    bad = [*bad_files().values(), bomb(6000, 6000)]  # the last is a picture, of 36 megapixels
    seconds, most = (MINUTES * 60.0, 10**6) if full else (5.0, 400)
    with served(own_run) as (process, port):
        warm = Seen()
        one = Client(99, port, warm, good, bad)
        for data in [*good[-3:], *bad]:
            one.ask("POST", "/predict", *multipart(data))
        for path in ("/", "/classes", "/classes/a", "/classes.csv", "/openapi.json", "/docs"):
            assert one.ask("GET", path)[0] == 200
        before, seen = memory(process), Seen()
        threads = [
            threading.Thread(target=Client(i, port, seen, good, bad).run, args=(seconds, most)) for i in range(CLIENTS)
        ]
        began, peak = time.monotonic(), 0.0
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            peak = max(peak, memory(process))
            time.sleep(0.25)
        taken = time.monotonic() - began
        time.sleep(1)
        grown = memory(process) - before
        assert one.ask("GET", "/health")[0] == 200
    total = seen.good.total() + seen.hostile.total()
    print(
        f"{total:,} requests of {CLIENTS} clients in {taken:.0f} s: good {dict(seen.good)}, hostile {dict(seen.hostile)}; slowest "
        f"good answer {seen.slowest:.1f} s; memory {before:.0f} MB before, {grown:+.0f} MB after, {peak - before:+.0f} MB at most"
    )
    assert not seen.wrong, (len(seen.wrong), seen.wrong[:5])
    assert seen.good.total() > CLIENTS
    assert seen.hostile.total() > CLIENTS
    assert grown < 100, f"{grown:.0f} MB"
    assert peak - before < 500, f"{peak - before:.0f} MB"  # two pictures of 36 megapixels at a time
    Edits.load(own_run)
    tally(f"good requests of {CLIENTS} clients beside hostile ones: answered", seen.good[200], seen.good.total())
    tally("hostile requests: no server error", sum(n for s, n in seen.hostile.items() if s < 500), seen.hostile.total())


def test_an_edit_that_was_answered_survives_kill_9(
    own_run: Path, full: bool, tally: Callable[[str, int, int], None]
) -> None:
    rng, kept, kills = np.random.default_rng(5), 0, 20 if full else 2
    for number in range(kills):
        answered: list[str] = []
        stop = threading.Event()
        with served(own_run) as (process, port):

            def edit(letter: str, number: int = number, port: int = port, answered: list[str] = answered) -> None:
                turn = 0
                while not stop.is_set():  # noqa: B023 (one event for each kill)
                    turn += 1
                    name = f"{letter} {number} {turn}"
                    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
                    try:
                        body = json.dumps({"name": name}).encode()
                        connection.request("PATCH", f"/classes/{letter}", body, {"Content-Type": "application/json"})
                        if connection.getresponse().status == 200:
                            answered.append(name)
                    except (OSError, http.client.HTTPException):
                        return
                    finally:
                        connection.close()

            threads = [threading.Thread(target=edit, args=(letter,)) for letter in "abcde"]
            for thread in threads:
                thread.start()
            end = time.monotonic() + 60
            while len(answered) < 3 and time.monotonic() < end:
                time.sleep(0.02)
            time.sleep(float(rng.uniform(0, 0.5)))
            process.kill()
            stop.set()
            for thread in threads:
                thread.join()
        history = {one["name"] for one in Edits.load(own_run).history if one["do"] == "rename"}
        assert answered
        kept += set(answered) <= history
    tally("server killed -9 while classes are renamed: every answered edit is there", kept, kills)


def test_what_a_killed_server_left_undone_is_done_by_the_next(own_run: Path) -> None:
    """Killed after an edit was saved: the tables are those before it, a temporary lies about, the report is old."""
    run = shutil.copytree(own_run, own_run.parent / "killed")
    dead = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True, check=True
    )
    (run / f".edits.json.{dead.stdout.strip()}.tmp").write_text("{")
    (run / ".somebody's.tmp").write_text("not ours")
    Edits.load(run).rename("a", "left undone").save(run)
    with served(run) as (process, port):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", "/classes.csv")
        assert "left undone" in connection.getresponse().read().decode()
        connection.close()
        assert "left undone" in (run / "predictions.csv").read_text()
        assert sorted(path.name for path in run.glob(".*.tmp")) == [".somebody's.tmp"]
        assert "left undone" not in (run / "report.html").read_text()
        process.send_signal(signal.SIGINT)
        process.wait(60)
    assert "left undone" in (run / "report.html").read_text()


def test_slow_clients_are_given_up(own_run: Path) -> None:
    """Connections that never complete a request do not hold their places: others are answered, and they are closed."""
    with served(own_run) as (_, port):
        slow = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(240)]
        for i, connection in enumerate(slow):
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: 127" if i % 2 else b"")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", "/health")
        assert connection.getresponse().status == 200
        connection.close()
        began = time.monotonic()
        assert sum(_closed(one) for one in slow) == len(slow)
        assert time.monotonic() - began < 25
        for one in slow:
            one.close()


def _closed(connection: socket.socket) -> bool:
    """Whether the server has gone away, sooner or later: the end of the stream, or a reset."""
    try:
        return connection.recv(100) == b""
    except ConnectionResetError:
        return True
