"""A folder with every kind of bad and odd image, through check, fit, report, predict and serve: none is a crash, each is named."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from hostile import one_sentence, refused, within
from PIL import Image

from finished import digit_pictures
from rowssl.api import fit
from rowssl.config import build_config
from rowssl.core.text import printable
from rowssl.data.problem import load_problem
from rowssl.data.table import read_table

Command = Callable[..., tuple[int, str, str]]
GOOD = 60
SCRIPT = "<script>document.title='hit'<\u2215script>.png"  # a file name holds no slash


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def bomb(width: int, height: int) -> bytes:
    """A whole PNG of one grey, whatever its size: a line is a filter byte and a bit for each pixel."""
    packer, line = zlib.compressobj(9), bytes(1 + (width + 7) // 8)
    data = b"".join(packer.compress(line) for _ in range(height)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


@cache
def odd_files() -> dict[str | bytes, bytes]:
    """Images that are unusual and can be read."""
    noise = np.random.default_rng(0).integers(0, 256, (24, 20, 3), dtype=np.uint8)
    picture = Image.fromarray(noise)
    turned = Image.Exif()
    turned[0x0112] = 6
    frames = [picture, Image.new("RGB", picture.size, "red")]
    alpha = Image.fromarray(np.dstack([noise, noise[..., 0]]))
    return {
        "cmyk.jpg": encoded(picture.convert("CMYK"), "JPEG"),
        "16 bit.png": encoded(Image.fromarray(noise[..., 0].astype(np.uint16) * 257), "PNG"),
        "16 bit.tif": encoded(Image.fromarray(noise[..., 0].astype(np.uint16) * 257), "TIFF"),
        "floats.tiff": encoded(Image.fromarray(noise[..., 0].astype(np.float32) - 9), "TIFF"),
        "palette.png": encoded(picture.convert("P"), "PNG"),
        "palette with a hole.gif": encoded(picture.convert("P"), "GIF", transparency=3),
        "one bit.png": encoded(picture.convert("1"), "PNG"),
        "alpha.png": encoded(alpha, "PNG"),
        "grey alpha.png": encoded(alpha.convert("LA"), "PNG"),
        "turned.jpg": encoded(picture, "JPEG", exif=turned),
        "animated.gif": encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]),
        "animated.webp": encoded(frames[0], "WEBP", save_all=True, append_images=frames[1:]),
        "a png.jpg": encoded(picture, "PNG"),
        "one pixel.png": encoded(picture.crop((0, 0, 1, 1)), "PNG"),
        "thin.png": encoded(Image.new("RGB", (1, 9000)), "PNG"),
        "two\nlines.png": encoded(picture, "PNG"),
        "\"quotes' & $(touch RAN) `x`.png": encoded(picture, "PNG"),
        "\x1b[31mred.png": encoded(picture, "PNG"),
        SCRIPT: encoded(picture, "PNG"),
        "=cmd|' .png": encoded(picture, "PNG"),
        "-rf.png": encoded(picture, "PNG"),
        b"caf\xe9 \xff.png": encoded(picture, "PNG"),
    }


@cache
def bad_files() -> dict[str, bytes]:
    """Files with the ending of an image that cannot be read as one."""
    noise = Image.fromarray(np.random.default_rng(1).integers(0, 256, (64, 64, 3), dtype=np.uint8))
    return {
        "cut.jpg": encoded(noise, "JPEG")[:900],
        "cut.png": encoded(noise, "PNG")[:3000],
        "cut.gif": encoded(noise, "GIF")[:1000],
        "empty.png": b"",
        "text.jpg": b"I am a letter",
        "page.png": b"<!doctype html><script>alert(1)</script>",
        "archive.png": b"PK\x05\x06" + bytes(18),
        "script.eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
        "ghost.png": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
        "drawing.svg": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        "phone.heic": b"\0\0\0\x18ftypheic",
        "bomb.png": bomb(12_000, 12_000),
        "bomb that lies.png": bomb(64, 64).replace(struct.pack(">II", 64, 64), struct.pack(">II", 10**6, 10**6)),
        "<b>bad\n.png": b"no image",
    }


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Good digits in two classes, and everything else beside them; others may look at it, as pytest's own folders do not let."""
    base = Path(tempfile.mkdtemp(prefix="rowssl-images-"))
    base.chmod(0o755)
    root = base / "in"
    root.mkdir()
    pictures, digits = digit_pictures()
    lines = ["path,label"]
    for i in range(GOOD):
        pictures[i].save(root / f"{i:03d}.png")
        lines += [f"{i:03d}.png,{digits[i]}"] if digits[i] < 2 else []
    for name, data in (odd_files() | bad_files()).items():
        (Path(os.fsdecode(os.path.join(os.fsencode(root), os.fsencode(name))))).write_bytes(data)
    (root / "broken link.png").symlink_to(root / "nothing")
    (root / "loop.png").symlink_to(root / "loop.png")
    (root / "leads back").symlink_to(root)
    os.mkfifo(root / "pipe.png")
    (root / "folder.png").mkdir()
    (base / "labels.csv").write_text("\n".join(lines))
    yield base
    shutil.rmtree(base)


BAD = {printable(name) for name in bad_files()} | {"broken link.png", "loop.png", "pipe.png"}
ODD = {printable(os.fsdecode(os.fsencode(name))) for name in odd_files()}


def test_check_lists_each_with_its_reason(folder: Path, run: Command) -> None:
    with within(megabytes=200, seconds=60):
        code, said, _ = run("check", folder / "in", "--labels", folder / "labels.csv", "--json")
    assert code == 0
    report = json.loads(said)
    skipped = {one["name"]: one["reason"] for one in report["skipped"]}
    assert set(skipped) == BAD
    assert report["rows"] == GOOD + len(ODD)
    assert "144.0 megapixels" in skipped["bomb.png"]
    assert "link to nothing" in skipped["broken link.png"]
    assert "0 bytes" in skipped["empty.png"]
    assert "not a regular file" in skipped["pipe.png"]
    assert all(one_sentence(reason) for reason in skipped.values())
    code, said, _ = run("check", folder / "in")
    assert code == 0
    assert "\x1b" not in said
    assert "17 inputs were left out" in said


def test_what_may_not_be_read_is_listed_too(folder: Path) -> None:
    locked, closed = folder / "in" / "locked.png", folder / "in" / "closed"
    shutil.copy(folder / "in" / "000.png", locked)
    closed.mkdir()
    locked.chmod(0)
    closed.chmod(0)
    root = os.geteuid() == 0
    try:
        if root:
            os.seteuid(65534)  # root may read everything, nobody may not
        skipped = {one.name: one.reason for one in read_table(folder / "in").skipped}
    finally:
        if root:
            os.seteuid(0)
        locked.unlink()
        closed.rmdir()
    assert "permission denied" in skipped.pop("locked.png")
    assert "cannot be read" in skipped.pop("closed/")
    assert set(skipped) == BAD


def test_more_than_five_in_a_hundred_are_refused_unless_told(folder: Path, run: Command, tmp_path: Path) -> None:
    source = ("fit", folder / "in", "--labels", folder / "labels.csv", "--out", tmp_path / "run")
    code, _, said = run(*source)
    assert code == 2
    last = one_sentence(said.strip().splitlines()[-1])
    share = re.search(r"17 of 99 images in .* cannot be read .*--max-bad (\d\.\d\d) goes on", last)
    assert share, last
    assert not (tmp_path / "run" / "model").exists()
    load_problem(build_config({"data": {"source": str(folder / "in"), "max_bad": float(share[1])}}).data)
    with refused("cannot be read"):
        load_problem(build_config({"data": {"source": str(folder / "in"), "max_bad": 0.17}}).data)


@pytest.fixture(scope="module")
def trained(folder: Path) -> Path:
    content = {
        "data": {"source": str(folder / "in"), "labels": str(folder / "labels.csv"), "max_bad": 1},
        "encoder": {"name": "pixels", "views": 1, "cache": str(folder / "cache")},
        "method": {"name": "kmeans"},
        "classes": 6,
    }
    with within(megabytes=400, seconds=120):
        fit(build_config(content), folder / "run")
    return folder / "run"


def test_the_report_names_them_as_text(trained: Path) -> None:
    text = (trained / "report.html").read_text(encoding="utf-8")
    listed = re.search(r'<ul class="skipped">(.*?)</ul>', text, re.S)
    assert listed
    found = {unescape(name) for name in re.findall(r"<li><code>(.*?)</code><span>.+?</span></li>", listed[1], re.S)}
    assert found == BAD
    assert "<script>document.title" not in text
    assert "<b>bad" not in text
    assert "\x1b" not in text
    table = (trained / "predictions.csv").read_text(encoding="utf-8")
    assert table.count("\n") == 1 + GOOD + len(ODD)
    assert "caf\\xe9 \\xff.png" in table


def test_predict_answers_for_the_rest(trained: Path, folder: Path, run: Command, tmp_path: Path) -> None:
    with within(megabytes=300, seconds=120):
        code, _, said = run("predict", trained, folder / "in", "--out", tmp_path / "answers.csv")
    assert code == 0
    assert f"{GOOD + len(ODD)} answered" in said
    assert "17 skipped" in said
    assert "\x1b" not in said
    for name in ("bomb.png", "empty.png", "pipe.png", "broken link.png"):
        code, _, said = run("predict", trained, folder / "in" / name)
        assert code == 2
        assert f"skipped {folder / 'in' / name}: " in said


def test_the_server_answers_for_each(trained: Path, folder: Path) -> None:
    from fastapi.testclient import TestClient

    from rowssl.serve.app import create_app
    from rowssl.serve.session import Served

    with TestClient(create_app(Served(trained, device="cpu")), base_url="http://127.0.0.1:8000") as client:
        for row in range(GOOD + len(ODD)):
            assert client.get(f"/thumb/{row}").headers["content-type"] == "image/jpeg"
        with within(megabytes=300, seconds=120):
            for name, data in (odd_files() | bad_files()).items():
                shown = "upload.png" if isinstance(name, bytes) else name
                answer = client.post("/predict", files={"image": (shown, data, "image/png")})
                assert answer.status_code in ((415, 422) if name in bad_files() else (200,)), (name, answer.text)
                one_sentence(answer.text)
        assert client.get("/classes").status_code == 200


@pytest.mark.parametrize("change", ["vanishes", "is cut", "is another", "is a folder"])
def test_a_file_that_changes_after_the_check_is_named(folder: Path, tmp_path: Path, change: str) -> None:
    shutil.copytree(folder / "in", tmp_path / "in", ignore=lambda _, names: [n for n in names if not n[:3].isdigit()])
    content = {
        "data": {"source": str(tmp_path / "in")},
        "encoder": {"name": "pixels", "views": 1, "cache": str(tmp_path)},
    }
    config = build_config({**content, "method": {"name": "kmeans"}, "classes": 4})
    problem = load_problem(config.data)
    victim = tmp_path / "in" / "017.png"
    if change == "is cut":
        victim.write_bytes(victim.read_bytes()[:60])
    elif change == "is another":
        Image.new("RGB", (8, 8)).save(victim)
    else:
        victim.unlink()
        victim.mkdir() if change == "is a folder" else None
    with refused("017.png", seconds=60, megabytes=200):
        fit(config, tmp_path / "run", problem=problem)
