"""Odd, damaged and hostile pictures, made for real with Pillow."""

from __future__ import annotations

import base64
import io
import os
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rowssl.core.errors import ImageError
from rowssl.core.text import printable
from rowssl.data import images
from rowssl.data.images import data_uri, open_image, thumbnail, unreadable

RED, WHITE = (255, 0, 0), (255, 255, 255)


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def photograph(side: int = 64) -> Image.Image:
    """Noise, so that a truncated file really lacks data."""
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8))


def png_header(width: int, height: int) -> bytes:
    """A PNG of any claimed size with hardly any data in it."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")
    )


def refusal(source: Path | bytes | np.ndarray, name: str = "odd.png") -> str:
    with pytest.raises(ImageError) as caught:
        open_image(source, name=name)
    text = str(caught.value)
    assert text.startswith(f"cannot read image {name}: ")
    assert "\n" not in text
    return text


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM"])
def test_usual_formats_open_as_rgb(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "picture"
    Image.new("RGB", (20, 10), RED).save(path, kind)
    for source in (path, path.read_bytes()):
        image = open_image(source)
        assert (image.mode, image.size) == ("RGB", (20, 10))
        assert np.abs(np.asarray(image).astype(int) - RED).max() <= 3


@pytest.mark.parametrize("kind", ["EPS", "TGA", "PCX", "ICO"])
def test_formats_off_the_list_are_refused(kind: str) -> None:
    assert "not an image of a known type" in refusal(encoded(Image.new("RGB", (32, 32), RED), kind))


def test_palette_one_bit_and_grey() -> None:
    red = Image.new("RGB", (4, 4), RED)
    assert open_image(encoded(red.convert("P", palette=Image.Palette.ADAPTIVE))).getpixel((1, 1)) == RED
    assert open_image(encoded(Image.new("1", (4, 4), 1))).getpixel((1, 1)) == WHITE
    assert open_image(encoded(Image.new("L", (4, 4), 77))).getpixel((1, 1)) == (77, 77, 77)


def test_transparency_is_laid_on_white() -> None:
    assert open_image(encoded(Image.new("RGBA", (4, 4), (*RED, 0)))).getpixel((0, 0)) == WHITE
    assert open_image(encoded(Image.new("RGBA", (4, 4), (0, 0, 0, 128)))).getpixel((0, 0)) == (127, 127, 127)
    assert open_image(encoded(Image.new("LA", (4, 4), (0, 0)))).getpixel((0, 0)) == WHITE
    palette = Image.new("P", (4, 4), 0)
    palette.putpalette([255, 0, 0, 0, 255, 0])
    assert open_image(encoded(palette, transparency=0)).getpixel((0, 0)) == WHITE
    assert open_image(encoded(palette, transparency=1)).getpixel((0, 0)) == RED
    assert open_image(encoded(Image.new("L", (4, 4), 9), transparency=9)).getpixel((0, 0)) == WHITE


def test_cmyk_becomes_rgb() -> None:
    cmyk = Image.new("CMYK", (8, 8), (0, 255, 255, 0))
    for kind in ("JPEG", "TIFF"):
        red, green, blue = open_image(encoded(cmyk, kind)).getpixel((2, 2))
        assert red > 240
        assert max(green, blue) < 15


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_sixteen_bit_grey_is_scaled_not_clipped(kind: str) -> None:
    values = np.array([[0, 257, 128 * 257, 65535]], dtype=np.uint16)
    grey = np.asarray(open_image(encoded(Image.fromarray(values), kind)))[0, :, 0]
    assert grey.tolist() == [0, 1, 128, 255]


def test_floats_and_wide_integers_have_a_sensible_range() -> None:
    unit = Image.fromarray(np.array([[0.0, 0.5, 1.0]], dtype=np.float32))
    assert np.asarray(open_image(encoded(unit, "TIFF")))[0, :, 1].tolist() == [0, 128, 255]
    wide = Image.fromarray(np.array([[-1000, 0, 1000]], dtype=np.int32))
    assert np.asarray(open_image(encoded(wide, "TIFF")))[0, :, 1].tolist() == [0, 128, 255]
    holes = Image.fromarray(np.array([[np.nan, np.inf, 1.0]], dtype=np.float32))
    assert np.asarray(open_image(encoded(holes, "TIFF")))[0, :, 1].tolist() == [0, 0, 255]


def test_exif_rotation_is_applied() -> None:
    image = Image.new("RGB", (20, 10), WHITE)
    image.paste(RED, (0, 0, 10, 10))  # left half
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees clockwise to see it upright: left becomes top
    upright = open_image(encoded(image, "JPEG", exif=exif, quality=95))
    assert upright.size == (10, 20)
    assert upright.getpixel((5, 3))[1] < 40
    assert upright.getpixel((5, 16))[1] > 215


def test_damaged_exif_does_not_matter() -> None:
    data = encoded(Image.new("RGB", (20, 10), RED), "JPEG", exif=b"Exif\0\0MM\0*\0\0\xff\xff\xff\xff")
    assert open_image(data).size == (20, 10)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_animation_gives_the_first_frame(kind: str) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in (RED, (0, 0, 255))]
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    assert open_image(data).getpixel((3, 3)) == RED


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM"])
def test_truncated_is_refused(kind: str) -> None:
    data = encoded(photograph(), kind)
    refusal(data[: len(data) // 2])


def test_too_many_pixels_are_refused_from_the_header() -> None:
    assert "60.0 megapixels, over the limit of 50" in refusal(png_header(10_000, 6_000))
    assert "limit of 50 megapixels" in refusal(png_header(60_000, 60_000))
    assert "damaged" in refusal(png_header(7_000, 7_000))  # under the limit: decoded, and found to be too short


def test_the_limit_is_a_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MAX_PIXELS", 100)
    assert open_image(encoded(Image.new("RGB", (10, 10)))).size == (10, 10)
    assert "over the limit" in refusal(encoded(Image.new("RGB", (11, 10))))


def test_files_that_are_no_images(tmp_path: Path) -> None:
    empty, text, folder = tmp_path / "a.png", tmp_path / "b.png", tmp_path / "c.png"
    empty.touch()
    text.write_text("I am a letter")
    folder.mkdir()
    broken, loop, pipe = tmp_path / "d.png", tmp_path / "e.png", tmp_path / "f.png"
    broken.symlink_to(tmp_path / "nowhere.png")
    loop.symlink_to(loop)
    os.mkfifo(pipe)
    assert "it is empty (0 bytes)" in refusal(empty)
    assert "it is empty (0 bytes)" in refusal(b"")
    assert "not an image of a known type" in refusal(text)
    assert "it is a folder" in refusal(folder)
    assert "it is a link to nothing" in refusal(broken)
    assert "leads back to itself" in refusal(loop)
    assert "not a regular file" in refusal(pipe)
    assert "there is no such file" in refusal(tmp_path / "g.png")
    assert "too long" in refusal(tmp_path / ("g" * 300))
    with pytest.raises(ImageError, match=r"b.png"):
        open_image(text)


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "locked.png"
    Image.new("RGB", (4, 4)).save(path)
    path.chmod(0)
    yield path
    path.chmod(0o600)


def test_permission_denied(locked: Path) -> None:
    if os.geteuid() != 0:
        assert "permission denied" in refusal(locked)
        return
    os.seteuid(65534)  # root may read everything, nobody may not
    try:
        assert "permission denied" in refusal(locked)
    finally:
        os.seteuid(0)


def test_arrays() -> None:
    assert open_image(np.full((4, 6), 9, np.uint8)).getpixel((0, 0)) == (9, 9, 9)
    assert open_image(np.full((4, 6, 1), 9, np.uint8)).size == (6, 4)
    assert open_image(np.full((4, 6, 3), RED, np.uint8)).getpixel((5, 3)) == RED
    assert open_image(np.zeros((4, 6, 4), np.uint8)).getpixel((0, 0)) == WHITE
    for wrong in (np.zeros((4, 4)), np.zeros(4, np.uint8), np.zeros((4, 4, 2), np.uint8), np.zeros((0, 4), np.uint8)):
        assert "must be uint8" in refusal(wrong)


def test_unreadable_pictures_are_listed_in_order(tmp_path: Path) -> None:
    paths = []
    for i in range(100):
        paths.append(tmp_path / f"{i:03d}.png")
        if i % 40 == 7:
            paths[-1].write_bytes(b"nothing")
        else:
            Image.new("RGB", (4, 4)).save(paths[-1])
    found = unreadable(paths, workers=3)
    assert list(found) == [7, 47, 87]
    assert all("not an image" in reason for reason in found.values())
    assert unreadable([encoded(photograph(8)), b""]) == {1: "it is empty (0 bytes)"}
    assert unreadable([]) == {}


def test_thumbnail_keeps_proportions_and_never_enlarges() -> None:
    image = Image.new("RGB", (400, 200), RED)
    assert thumbnail(image, 96).size == (96, 48)
    assert image.size == (400, 200)
    assert thumbnail(Image.new("RGB", (8, 8))).size == (8, 8)


def test_data_uri_is_a_picture() -> None:
    head, body = data_uri(Image.new("RGBA", (5, 7), RED)).split(",")
    assert head == "data:image/jpeg;base64"
    assert open_image(base64.b64decode(body)).size == (5, 7)
    assert len(data_uri(photograph(), quality=20)) < len(data_uri(photograph(), quality=90))


def test_printable() -> None:
    assert printable("plain ü 猫.png") == "plain ü 猫.png"
    assert printable("a\nb\x1b[31m") == "a\\nb\\x1b[31m"
    assert printable(os.fsdecode(b"caf\xe9.png")) == "caf\\xe9.png"
    printable("\ud800 and \udcff").encode("utf-8")


def test_import_is_cheap() -> None:
    code = "import sys, rowssl.data.table, rowssl.data.check\nprint(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "PIL", "pyarrow", "sklearn", "scipy", "jinja2", "openTSNE", "safetensors"} & set(loaded)
