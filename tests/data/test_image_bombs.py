"""Small files within the limit of pixels that would cost a decoder gigabytes or minutes, and large ones that must not."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from faults.hostile import within
from rowssl.core.errors import ImageError
from rowssl.data import images
from rowssl.data.images import open_image


def refusal(data: bytes) -> str:
    with pytest.raises(ImageError) as caught:
        open_image(data)
    return str(caught.value)


def tiff(width: int, height: int, tags: dict[int, int], data: bytes) -> bytes:
    """A grey TIFF, deflated, with further tags of type LONG; the tags of the data's place are filled in."""
    place, length = (324, 325) if 322 in tags else (273, 279)
    tags = {256: width, 257: height, 258: 8, 259: 8, 262: 1, 277: 1, **tags, place: 0, length: len(data)}
    tags[place] = 8 + 2 + 12 * len(tags) + 4
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in sorted(tags.items()))
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + struct.pack("<I", 0) + data


def jpeg(side: int, scans: int) -> bytes:
    """A blank progressive JPEG whose coefficients are refined again and again."""

    def segment(marker: int, body: bytes) -> bytes:
        return b"\xff" + bytes([marker]) + struct.pack(">H", len(body) + 2) + body

    def stuffed(bits: str) -> bytes:
        bits += "1" * (-len(bits) % 8)
        return int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")

    blocks, runs = ((side + 7) // 8) ** 2, ""
    for _ in range(0, blocks, 2**15 - 1):
        runs += "0" + "1" * 14
    head = segment(0xDB, b"\0" + b"\1" * 64) + segment(0xC2, struct.pack(">BHHB", 8, side, side, 1) + b"\1\x11\0")
    tables = b"".join(segment(0xC4, bytes([kind << 4, 1, *[0] * 15, symbol])) for kind, symbol in ((0, 0), (1, 0xE0)))
    first = segment(0xDA, b"\1\1\0\0\0\0") + stuffed("0" * blocks)
    again = segment(0xDA, b"\1\1\0\1\x3f\0") + stuffed(runs)
    return b"\xff\xd8" + head + tables + first + again * scans + b"\xff\xd9"


def test_a_jpeg_of_many_scans() -> None:
    assert open_image(jpeg(64, 5)).size == (64, 64)
    assert "2,001 scans" in refusal(jpeg(64, 2000))


def test_a_tile_that_is_larger_than_its_picture() -> None:
    side = 64
    good = tiff(side, side, {322: side, 323: side}, zlib.compress(bytes(side * side)))
    assert open_image(good).size == (side, side)
    bomb = tiff(side, side, {322: 32768, 323: 32768}, zlib.compress(bytes(2**20)))
    assert "tiles of 32,768 x 32,768" in refusal(bomb)


def test_pixels_that_so_few_bytes_cannot_hold() -> None:
    with within(megabytes=50, seconds=60):
        assert "bytes cannot hold 7 x 7,000,000 pixels" in refusal(
            tiff(7, 7_000_000, {278: 9}, zlib.compress(bytes(63)))
        )


@pytest.mark.parametrize("kind", ["PNG", "GIF", "WEBP", "TIFF"])
def test_a_blank_page_is_a_picture(kind: str) -> None:
    """Nothing compresses better; a fax of an empty page holds 10,000 pixels in a byte."""
    buffer, how = io.BytesIO(), {"compression": "group4"} if kind == "TIFF" else {}
    Image.new("1", (2480, 3508), 1).save(buffer, kind, **how)
    assert open_image(buffer.getvalue()).size == (2480, 3508)


@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_a_large_picture_is_not_copied_about(mode: str) -> None:
    buffer = io.BytesIO()
    Image.effect_noise((4000, 4000), 9).convert(mode).save(buffer, "PNG", compress_level=1)
    data = buffer.getvalue()
    with within(
        megabytes=64 + (64 if mode == "RGBA" else 0) + 20, seconds=600
    ):  # as Pillow keeps them: 4 bytes a pixel
        assert open_image(data).size == (4000, 4000)


def test_transparency_is_laid_on_white_in_every_row() -> None:
    values = np.random.default_rng(0).integers(0, 256, (3 * images._BLOCK_ROWS + 5, 7, 4), dtype=np.uint8)
    picture = Image.fromarray(values)
    whole = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")
    assert np.array_equal(np.asarray(open_image(values)), np.asarray(whole))
