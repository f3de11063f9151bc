"""What a served run refuses: other hosts and origins, requests without the token, too large, too many, too slow, no image."""

from __future__ import annotations

import asyncio
import io
import struct
import sys
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from PIL import Image
from starlette.exceptions import HTTPException

from finished import Finished
from rowssl.core.errors import InputError
from rowssl.runs.edits import Edits
from rowssl.serve import serve
from rowssl.serve.app import ENVELOPE, Limits, create_app
from rowssl.serve.limits import Gate
from rowssl.serve.session import Served

HERE = "http://127.0.0.1:8000"
LIMIT = 10 * 2**20


@pytest.fixture(scope="module")
def served(finished: Finished) -> Served:
    return Served(finished.run, device="cpu")


@pytest.fixture
def client(served: Served) -> Iterator[TestClient]:
    with TestClient(create_app(served), base_url=HERE) as one:
        yield one


@pytest.fixture
def own(own_run: Path) -> Iterator[TestClient]:
    with TestClient(create_app(Served(own_run, device="cpu")), base_url=HERE) as one:
        yield one


def upload(client: TestClient, data: bytes, name: str = "x.png") -> Any:
    return client.post("/predict", files={"image": (name, data, "image/png")})


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_of_size(width: int, height: int) -> bytes:
    """A header that promises a picture, without its pixels."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def real_png() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), "grey").save(buffer, "PNG")
    return buffer.getvalue()


def test_an_upload_above_10_mib_is_413(client: TestClient) -> None:
    padding = b"\0" * (LIMIT - len(real_png()))  # after the end of a PNG anything may follow
    assert upload(client, real_png() + padding).status_code == 200
    for size in (LIMIT + 1, LIMIT + ENVELOPE + 1):
        answer = upload(client, b"\0" * size)
        assert answer.status_code == 413
        assert "10 MiB" in answer.json()["detail"]


def test_a_body_without_a_length_is_stopped_on_the_way(served: Served) -> None:
    """Sent in pieces without Content-Length, as nothing stops a client from sending for ever."""
    taken, said = 0, []
    head = b'--x\r\nContent-Disposition: form-data; name="image"; filename="x.png"\r\n\r\n'

    async def receive() -> dict[str, Any]:
        nonlocal taken
        taken += 1
        return {"type": "http.request", "body": head if taken == 1 else b"\0" * 2**20, "more_body": True}

    async def send(message: dict[str, Any]) -> None:
        said.append(message)

    headers = [(b"host", b"127.0.0.1:8000"), (b"content-type", b"multipart/form-data; boundary=x")]
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "path": "/predict",
        "raw_path": b"/predict", "query_string": b"", "headers": headers, "scheme": "http", "server": ("127.0.0.1", 8000),
    }  # fmt: skip
    asyncio.run(create_app(served)(scope, receive, send))
    assert said[0]["status"] == 413
    assert taken <= 13


def test_json_bodies_have_a_limit_too(own: TestClient) -> None:
    answer = own.patch(
        "/classes/a", content=b'{"name": "' + b"x" * 2**20 + b'"}', headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 413
    assert own.get("/classes").json()["last_edit"] == ""


@pytest.mark.parametrize("size", [(10_000, 5_001), (60_000, 60_000)])
def test_above_50_megapixels_is_422_before_decoding(client: TestClient, size: tuple[int, int]) -> None:
    answer = upload(client, png_of_size(*size))
    assert answer.status_code == 422
    assert "50 megapixels" in answer.json()["detail"]


@pytest.mark.parametrize("data", [b"", b"hello", b"%!PS-Adobe-3.0 EPSF-3.0\n", b"<svg/>", real_png()[:40]])
def test_not_an_image_is_415(client: TestClient, data: bytes) -> None:
    answer = upload(client, data)
    assert answer.status_code == 415
    assert "image" in answer.json()["detail"]
    assert upload(client, real_png()).status_code == 200


def test_other_kinds_of_body_are_415(client: TestClient) -> None:
    assert client.post("/predict", content=real_png(), headers={"Content-Type": "image/png"}).status_code == 415
    assert client.post("/predict").status_code == 415


def test_only_the_hosts_that_are_served(client: TestClient) -> None:
    for host in ("127.0.0.1:8000", "localhost", "localhost:9999", "[::1]:8000"):
        assert client.get("/health", headers={"Host": host}).status_code == 200, host
    for host in ("evil.example", "127.0.0.1.evil.example", "evil.example:8000", "10.0.0.1", "", "a b", "[::1"):
        assert client.get("/health", headers={"Host": host}).status_code == 400, host


def test_a_page_elsewhere_cannot_edit(own: TestClient, own_run: Path) -> None:
    elsewhere = [
        {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": "http://127.0.0.1:3000"},
        {"Origin": "http://localhost:8000"}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"},
    ]  # fmt: skip
    for headers in elsewhere:
        assert own.patch("/classes/a", json={"name": "x"}, headers=headers).status_code == 403, headers
        assert own.post("/undo", headers=headers).status_code == 403
        assert own.post("/move", json={"files": ["017.png"], "class_id": "a"}, headers=headers).status_code == 403
    assert Edits.load(own_run).history == ()
    assert own.patch("/classes/a", json={"name": "x"}, headers={"Origin": HERE}).status_code == 200
    # a form of another page can only send text: no JSON, no edit
    assert (
        own.post("/classes/a/merge", content=b'{"others": ["b"]}', headers={"Content-Type": "text/plain"}).status_code
        == 422
    )


def test_headers_are_on_every_response(client: TestClient) -> None:
    for answer in (client.get("/"), client.get("/nothing"), client.get("/health", headers={"Host": "evil.example"})):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "http" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"


def test_every_request_needs_the_token(served: Served) -> None:
    app = create_app(served, host="0.0.0.0", token="right-token")
    with TestClient(app, base_url="http://192.168.0.7:8000") as client:
        for path in (
            "/",
            "/health",
            "/classes",
            "/classes.csv",
            "/thumb/0",
            "/openapi.json",
            "/page.js",
            "/?token=wrong",
        ):
            assert client.get(path).status_code == 401, path
        assert client.post("/predict").status_code == 401
        assert client.get("/health", headers={"Authorization": "Bearer right-token"}).status_code == 200
        assert client.get("/health", headers={"Authorization": "Bearer right-tokené".encode()}).status_code == 401
        assert client.get("/health?token=right-token").status_code == 200
        assert client.get("/health", headers={"Host": "evil.example"}).status_code == 400
        opened = client.get("/?token=right-token", follow_redirects=False)
        assert opened.headers["location"] == "/"
        assert "HttpOnly" in opened.headers["set-cookie"]
        assert "samesite=strict" in opened.headers["set-cookie"].lower()
        assert client.get("/").status_code == 200  # by the cookie
        assert client.get("/thumb/0").status_code == 200


def test_too_many_and_too_slow() -> None:
    free, begun = threading.Event(), threading.Event()

    def work() -> str:
        begun.set()
        free.wait(20)
        return "done"

    async def crowd() -> None:
        gate = Gate(workers=1, queue=1, seconds=0.3)
        first = asyncio.create_task(gate.run(work))
        second = asyncio.create_task(gate.run(lambda: "second"))
        await asyncio.sleep(0.05)
        with pytest.raises(HTTPException) as busy:
            await gate.run(lambda: "third")
        assert busy.value.status_code == 503
        for task in (first, second):
            with pytest.raises(HTTPException) as slow:
                await task
            assert slow.value.status_code == 504
        assert gate.taken == 1  # the thread that cannot be stopped; what only waited is gone
        free.set()
        while gate.taken:
            await asyncio.sleep(0.01)
        assert await gate.run(lambda: "again") == "again"
        gate.close()

    asyncio.run(crowd())
    assert begun.is_set()


def test_a_full_queue_is_503_for_the_client(served: Served) -> None:
    with TestClient(create_app(served, limits=Limits(workers=1, queue=-1)), base_url=HERE) as client:
        answer = upload(client, real_png())
        assert answer.status_code == 503
        assert answer.headers["retry-after"]
        assert client.get("/classes").status_code == 200  # looking at classes does not wait for answers


def test_a_run_trained_again_is_noticed(own: TestClient, own_run: Path) -> None:
    from rowssl.core.files import read_directory, write_directory

    tensors, facts = read_directory(own_run / "model")
    write_directory(own_run / "model", tensors, facts | {"identity": "another"})
    answer = own.get("/classes")
    assert answer.status_code == 503
    assert "start `rowssl serve` again" in answer.json()["detail"]


def test_what_serve_refuses(finished: Finished, tmp_path: Path, monkeypatch) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(InputError, match="--port"):
        serve(finished.run, port=taken.getsockname()[1])
    with pytest.raises(InputError, match="0 to 65535"):
        serve(finished.run, port=70_000)
    with pytest.raises(InputError, match="--token"):
        serve(finished.run, host="0.0.0.0", port=0, token="short")
    with pytest.raises(InputError, match="--host"):
        serve(finished.run, host="no such host", port=0)
    with pytest.raises(InputError, match="does not exist"):
        serve(tmp_path / "nothing", port=0)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    with pytest.raises(InputError, match=r"pip install 'rowssl\[serve\]'"):
        serve(finished.run, port=0)


def test_help_imports_nothing_heavy() -> None:
    import subprocess

    code = (
        "import sys; sys.argv = ['rowssl', 'serve', '--help']\nfrom rowssl import cli\n"
        "try: cli.main()\nexcept SystemExit: pass\n"
        "assert not {'fastapi', 'torch', 'uvicorn'} & set(sys.modules), 'heavy'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--port" in done.stdout
