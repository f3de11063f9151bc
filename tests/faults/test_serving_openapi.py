"""The API against its own description, and what it says to requests that nobody should send."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient
from openapi import Document
from test_bad_images import bad_files, odd_files

from rowssl.serve.app import create_app
from rowssl.serve.served import Served

HERE = "http://127.0.0.1:8000"


@pytest.fixture
def client(own_run: Path) -> Iterator[TestClient]:
    app = create_app(Served(own_run, device="cpu"))
    with TestClient(app, base_url=HERE, raise_server_exceptions=False) as one:
        yield one


def test_every_answer_is_as_the_document_says(
    client: TestClient, full: bool, tally: Callable[[str, int, int], None], own_run: Path
) -> None:
    rng = np.random.default_rng(3)
    files = [data for data in (odd_files() | bad_files()).values() if len(data) < 50_000]
    document = Document(client.get("/openapi.json").json(), rng, lambda: files[int(rng.integers(len(files)))])
    statuses: Counter[int] = Counter()
    tries = 20_000 if full else 400
    for number, case in enumerate(document.cases(tries)):
        if number % 200 == 0:
            (own_run / "edits.json").unlink(missing_ok=True)  # otherwise all classes are one in the end
        answer = client.request(case.method, case.path, content=case.body, headers=case.headers)
        wrong = document.problem(case, answer.status_code, answer.headers.get("content-type", ""), answer.content)
        assert not wrong, (wrong, case.method, case.path[:300], (case.body or b"")[:300], answer.text[:300])
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        statuses[answer.status_code] += 1
    assert statuses[200] > tries / 5
    assert statuses[422] > tries / 50
    assert statuses[404] > tries / 50
    tally("requests made from the OpenAPI document, right and wrong: answered as it says", statuses.total(), tries)


def test_methods_and_places_that_are_not_there(client: TestClient) -> None:
    for method in ("PUT", "DELETE", "TRACE", "OPTIONS", "CONNECT", "PROPFIND"):
        assert client.request(method, "/classes/a").status_code in (404, 405), method
    for place in (
        "/..%2f..%2fetc/passwd",
        "/static/../../x",
        "/edits.json",
        "/model/manifest.json",
        "/%00",
        "/.git",
    ):
        assert client.get(place).status_code in (404, 405), place
