"""Open untrusted pictures safely: few formats, a pixel limit before decoding, one kind of result (RGB)."""

from __future__ import annotations

import base64
import contextlib
import errno
import functools
import io
import os
import stat
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

import numpy as np

from rowssl.core.console import bar
from rowssl.core.errors import ImageError
from rowssl.core.text import printable

if TYPE_CHECKING:
    from PIL import Image


# Only decoders for pictures people really have: EPS would start Ghostscript, and FITS or HDF5 are not photographs.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "AVIF")
SUFFIXES = frozenset({
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".webp", ".bmp", ".dib", ".gif",
    ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm", ".avif",
})  # fmt: skip


# Pictures we refuse by their ending, so that a folder of them is not silently ignored.
REFUSED_SUFFIXES = frozenset({
    ".heic", ".heif", ".eps", ".psd", ".svg", ".jp2", ".j2k", ".ico", ".tga", ".dng",
    ".cr2", ".cr3", ".nef", ".arw", ".fits", ".fit", ".wmf", ".emf", ".pcx", ".xcf",
})  # fmt: skip
MAX_PIXELS = 50_000_000
FEW_PIXELS, MOST_PER_BYTE = (
    4_000_000,
    20_000,
)  # a larger picture has more bytes than one for so many pixels, even a blank page
MOST_SCANS = 200  # of a JPEG; pictures within it (previews, other frames) have theirs
_SCAN = b"\xff\xda"
_TILE_SIDES = (322, 323)  # of a TIFF
_SCAN_CHUNK = 32
_BLOCK_ROWS = 64


@dataclass(frozen=True)
class Skipped:
    """One input that was left out, and why."""

    name: str
    reason: str


class ImageColumn(Protocol):
    """Anything with a length whose items are encoded bytes, or uint8 arrays (H, W) or (H, W, 3)."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> bytes | np.ndarray: ...


def open_image(source: Path | bytes | np.ndarray, *, name: str = "") -> Image.Image:
    """Read one picture as RGB.

    The size is read from the header and checked against `MAX_PIXELS` before anything is decoded. The EXIF rotation is
    applied, an animation gives its first frame, transparency is laid on white, 16-bit grey is scaled to 8 bits.

    Parameters
    ----------
    source
        A file, the encoded bytes of a picture, or a uint8 array (H, W), (H, W, 3) or (H, W, 4).
    name
        What to call the picture in an error; the path by default.

    Returns
    -------
    PIL.Image.Image
        A loaded picture of mode RGB.

    Raises
    ------
    ImageError
        One sentence with the name and the reason.
    """
    reason = ""
    try:
        return _open(source)
    except Exception as error:  # a decoder may raise anything at all on a damaged file
        reason = _reason(error, source)
    name = name or (str(source) if isinstance(source, Path) else "in memory")
    raise ImageError(f"cannot read image {printable(name)}: {reason}")


def unreadable(sources: Sequence[Path] | ImageColumn, *, workers: int | None = None) -> dict[int, str]:
    """Row -> reason for every picture that cannot be decoded; threads, because decoders release the GIL."""

    def try_rows(rows: range) -> list[tuple[int, str]]:
        failed = []
        for row in rows:
            try:
                _open(sources[row])
            except Exception as error:
                failed.append((row, _reason(error, sources[row])))
        return failed

    total = len(sources)
    chunks = [range(start, min(start + _SCAN_CHUNK, total)) for start in range(0, total, _SCAN_CHUNK)]
    bad: dict[int, str] = {}
    _formats()  # the plug-ins are registered once, before there are threads
    pool = ThreadPoolExecutor(workers or min(8, os.cpu_count() or 1))
    try:
        # The caller gets one sentence per picture; Pillow's own warnings would be printed across the progress bar.
        with warnings.catch_warnings(), bar("checking images", total) as progress:
            warnings.simplefilter("ignore")
            for rows, failed in zip(chunks, pool.map(try_rows, chunks), strict=True):
                bad.update(failed)
                progress.advance(len(rows))
    finally:
        pool.shutdown(cancel_futures=True)  # an interrupt does not wait for the rest of the folder
    return bad


def thumbnail(image: Image.Image, side: int = 96) -> Image.Image:
    """A copy that fits into `side` x `side`, never enlarged, proportions kept."""
    from PIL import Image

    small = image.copy()
    small.thumbnail((side, side), Image.Resampling.LANCZOS)
    return small


def data_uri(image: Image.Image, quality: int = 80) -> str:
    """The picture as a JPEG in a `data:` URI, to be put into a self-contained page."""
    buffer = io.BytesIO()
    image.convert("RGB").save(buffer, "JPEG", quality=quality)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


@functools.cache
def _formats() -> tuple[str, ...]:
    """The allowed formats that this Pillow was built with."""
    from PIL import Image

    Image.init()
    # Above 50 megapixels we refuse a picture ourselves, in a sentence.
    warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
    return tuple(name for name in FORMATS if name in Image.OPEN)


def _open(source: Path | bytes | np.ndarray) -> Image.Image:
    """As `open_image`, but any exception may come out."""
    if isinstance(source, np.ndarray):
        return _from_array(source)
    if isinstance(source, bytes):
        return _decode(io.BytesIO(source))
    if not stat.S_ISREG(source.stat().st_mode):  # opening a pipe would wait for ever
        raise ImageError("it is a folder" if source.is_dir() else "it is not a regular file")
    with open(source, "rb") as stream:
        return _decode(stream)


def _decode(stream: BinaryIO) -> Image.Image:
    """Header first, then the pixels."""
    from PIL import Image

    size = stream.seek(0, os.SEEK_END)
    if not size:
        raise ImageError("it is empty (0 bytes)")
    stream.seek(0)
    with Image.open(stream, formats=_formats()) as image:
        pixels = image.width * image.height
        if pixels > MAX_PIXELS:
            raise ImageError(f"it has {pixels / 1e6:.1f} megapixels, over the limit of {MAX_PIXELS / 1e6:g}")
        _refuse_bombs(image, stream, size)
        image.load()
        _rotate(image)
        return _to_rgb(image)


def _refuse_bombs(image: Image.Image, stream: BinaryIO, size: int) -> None:
    """A few bytes that would take the decoder much memory or time, within the limit of pixels."""
    pixels, place = image.width * image.height, stream.tell()
    if pixels > max(FEW_PIXELS, MOST_PER_BYTE * size):
        raise ImageError(f"it is damaged ({size:,} bytes cannot hold {image.width:,} x {image.height:,} pixels)")
    tags = getattr(image, "tag_v2", {})
    tile = [tag if isinstance(tag := tags.get(code, 1), int) else MAX_PIXELS for code in _TILE_SIDES]
    if tile[0] * tile[1] > max(FEW_PIXELS, 4 * pixels):
        raise ImageError(f"it is damaged (tiles of {tile[0]:,} x {tile[1]:,} pixels in a smaller picture)")
    if image.format in ("JPEG", "MPO"):
        stream.seek(0)
        scans = sum(part.count(_SCAN) for part in iter(lambda: stream.read(2**20), b""))
        stream.seek(place)
        if scans > MOST_SCANS:  # each is decoded for the whole picture
            raise ImageError(f"it is damaged ({scans:,} scans; a progressive JPEG has about ten)")


def _rotate(image: Image.Image) -> None:
    """Apply the EXIF orientation; damaged EXIF data do not make a picture unreadable."""
    from PIL import ImageOps

    with contextlib.suppress(Exception):
        ImageOps.exif_transpose(image, in_place=True)  # else it would be copied even where nothing is to be done


def _to_rgb(image: Image.Image) -> Image.Image:
    """Any mode -> RGB."""
    from PIL import Image

    if image.mode.startswith(("I", "F")):
        return Image.fromarray(_eight_bits(np.asarray(image))).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        result = Image.new("RGB", image.size)
        for top in range(0, image.height, _BLOCK_ROWS):  # a few rows at a time need little memory
            part = image.crop((0, top, image.width, min(top + _BLOCK_ROWS, image.height))).convert("RGBA")
            result.paste(Image.alpha_composite(Image.new("RGBA", part.size, "white"), part).convert("RGB"), (0, top))
        return result
    return image if image.mode == "RGB" else image.convert("RGB")  # what is loaded needs its file no more


def _eight_bits(values: np.ndarray) -> np.ndarray:
    """Grey values (H, W) of 16 bits, 32 bits or floats -> uint8."""
    blocks = np.array_split(
        values, range(_BLOCK_ROWS, len(values), _BLOCK_ROWS)
    )  # a few rows at a time need little memory
    bounds = [_bounds(block) for block in blocks]
    low, high = min(low for low, _ in bounds), max(high for _, high in bounds)
    sixteen = values.dtype.kind in "ui" and low >= 0 and high <= 65535
    if not sixteen and low >= 0 and high <= 1:
        low, high = 0.0, 1.0  # otherwise there is no declared range: from the darkest to the brightest value
    result = np.empty(values.shape, dtype=np.uint8)
    for block, part in zip(blocks, np.array_split(result, range(_BLOCK_ROWS, len(values), _BLOCK_ROWS)), strict=True):
        if sixteen:
            part[...] = (block.astype(np.uint32) * 255 + 32767) // 65535
        else:
            part[...] = np.rint((_finite(block) - low) / max(high - low, 1e-12) * 255)
    return result


def _finite(values: np.ndarray) -> np.ndarray:
    return np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)


def _bounds(values: np.ndarray) -> tuple[float, float]:
    """The least and the largest value; what is not finite counts as 0."""
    values = _finite(values) if values.dtype.kind == "f" else values
    return float(values.min()), float(values.max())


def _from_array(array: np.ndarray) -> Image.Image:
    from PIL import Image

    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    grey = array.ndim == 2
    if array.dtype != np.uint8 or array.size == 0 or not (grey or (array.ndim == 3 and array.shape[2] in (3, 4))):
        raise ImageError(f"an array must be uint8 of H x W or H x W x 3, not {array.dtype} {array.shape}")
    return _to_rgb(Image.fromarray(np.ascontiguousarray(array)))


def _reason(error: Exception, source: object) -> str:
    """Why a picture was refused, in words that follow "cannot read image x: "."""
    from PIL import Image, UnidentifiedImageError

    known = {
        errno.EACCES: "permission denied",
        errno.EPERM: "permission denied",
        errno.ELOOP: "it is a link that leads back to itself",
        errno.ENAMETOOLONG: "its name is too long",
    }
    if isinstance(error, ImageError):
        return str(error)
    if isinstance(error, UnidentifiedImageError):
        return f"it is not an image of a known type ({', '.join(FORMATS)}), or its header is damaged"
    if isinstance(error, Image.DecompressionBombError):
        return f"it has more pixels than the limit of {MAX_PIXELS / 1e6:g} megapixels"
    if isinstance(error, FileNotFoundError):
        return (
            "it is a link to nothing" if isinstance(source, Path) and source.is_symlink() else "there is no such file"
        )
    if isinstance(error, OSError) and error.errno in known:
        return known[error.errno]
    text = printable(str(error)) or type(error).__name__
    return f"it is damaged ({text[:100]})"
