"""The served API against its own description, by schemathesis, and what it says to requests that nobody should send."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from crowd import served
from fastapi.testclient import TestClient
from test_bad_images import bad_files, odd_files

from faults.test_determinism import train
from rowssl.serve.app import create_app
from rowssl.serve.session import Served

HERE = Path(__file__).parent


def examined(run: Path, scratch: Path, *options: str) -> int:
    """How many requests schemathesis made of a run that `rowssl serve` serves; every check that it has, and our own, must hold."""
    (scratch / "uploads").mkdir()
    for number, data in enumerate((odd_files() | bad_files()).values()):
        if len(data) < 50_000:
            (scratch / "uploads" / f"{number:02}").write_bytes(data)
    path = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "ROWSSL_UPLOADS": str(scratch / "uploads")}
    with served(run) as (_, port):
        command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(HERE / "schemathesis.toml"), "run"]
        command += [f"http://127.0.0.1:{port}/openapi.json", "--seed", "1", "--checks", "all", "--no-color", *options]
        done = subprocess.run(command, env=environment, cwd=scratch, capture_output=True, text=True, check=False)
    said = re.sub(r"(.{300}).+", r"\1 ...", done.stdout)  # some requests are megabytes
    assert done.returncode == 0, said[-8000:] + done.stderr[-2000:]
    found = re.search(r"([\d,]+) generated, ([\d,]+) passed", said)
    assert found, said[-2000:]
    assert found[1] == found[2], said[-2000:]
    return int(found[1].replace(",", ""))


def test_schemathesis_finds_nothing(
    own_run: Path, tmp_path: Path, full: bool, tally: Callable[[str, int, int], None]
) -> None:
    pytest.importorskip("schemathesis", reason="pip install 'rowssl[dev]'")
    (tmp_path / "scratch").mkdir()
    short = ("--max-examples", "2", "--phases", "coverage,fuzzing", "--exclude-checks", "Reached")
    done = examined(own_run, tmp_path / "scratch", *(("--max-examples", "150") if full else short))
    assert done > 200
    tally("schemathesis: requests made from the OpenAPI document, right and wrong, answered as it says", done, done)


def test_schemathesis_finds_nothing_on_embeddings(
    embeddings: Path, tmp_path: Path, full: bool, tally: Callable[[str, int, int], None]
) -> None:
    pytest.importorskip("schemathesis", reason="pip install 'rowssl[dev]'")
    if not full:
        pytest.skip("only with the full counts: make faults")
    train(embeddings, "simgcd", tmp_path / "run")
    (tmp_path / "scratch").mkdir()
    done = examined(tmp_path / "run", tmp_path / "scratch", "--max-examples", "50", "--exclude-checks", "Reached")
    tally("schemathesis: the same for a run on embeddings", done, done)


@pytest.fixture
def client(own_run: Path) -> Iterator[TestClient]:
    app = create_app(Served(own_run, device="cpu"))
    with TestClient(app, base_url="http://127.0.0.1:8000", raise_server_exceptions=False) as one:
        yield one


def test_methods_and_places_that_are_not_there(client: TestClient) -> None:
    for method in ("PUT", "DELETE", "TRACE", "OPTIONS", "CONNECT", "PROPFIND"):
        refused = client.request(method, "/classes/a")
        assert (refused.status_code, refused.headers["allow"]) == (405, "GET, PATCH"), method
    for body in ({"name": "x"}, {"others": ["b"]}):
        refused = client.patch("/classes/a/merge", json=body)
        assert (refused.status_code, refused.headers["allow"]) == (405, "POST")
    assert client.patch("/classes/a", json={"name": "a/merge"}).status_code == 200
    assert client.patch("/classes/a/merge", json={"name": "b/split"}).status_code == 200  # now it is a class
    assert client.get("/classes/b/split").json()["id"] == "a"
    for place in ("/..%2f..%2fetc/passwd", "/static/../../x", "/edits.json", "/model/manifest.json", "/%00", "/.git"):
        assert client.get(place).status_code in (404, 405), place
    assert client.put("/undo").headers["allow"] == "POST"
    assert client.put("/").headers["allow"] == "GET, HEAD"
