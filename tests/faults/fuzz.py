"""A small fuzzer: seeds changed at random, for a number of tries or of seconds.

Beside Atheris (`fuzz_atheris.py`), which sees what an input reaches, this one has a dictionary of tokens and runs everywhere.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

import numpy as np

from rowssl.core.errors import InputError

TOKENS = [
    b"\0", b"\xff", b"\n", b"\r\n", b",", b";", b"\t", b'"', b"'", b"\xef\xbb\xbf", b"-1", b"nan", b"1e999", b"9" * 400,
    b"-", b"..",     b"/", b"../../etc/passwd", b"[", b"]", b"{", b"}", b"null", b"true", b"[]", b"{}", b'{"a":',
    b"[[[[", b"\xed\xa0\x80", b"\\ud800",     b"path", b"label", b"row", b"embeddings", b"PAR1", b"PK\x03\x04",
    b"\x93NUMPY", b"'descr'", b"'shape'", b"(2, 2)", b"|O", b"<f4",     b"&a", b"*a", b"!!python/name:os.system",
    b"!!int", b"2001-99-99", b"<<: ", b": ", b"- ", b"\x7f\xff\xff\xff", b"\xff" * 8, bytes(64),
]  # fmt: skip


class TooSlow(Exception):
    """A single try took longer than anything may."""


@contextmanager
def no_longer_than(seconds: float) -> Iterator[None]:
    """Interrupt the block, which runs in the main thread."""

    def stop(_: int, __: FrameType | None) -> None:
        raise TooSlow(f"more than {seconds} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def mutate(seeds: Sequence[bytes], rng: np.random.Generator) -> bytes:
    """One of the seeds after a few random changes."""
    data = bytearray(seeds[rng.integers(len(seeds))])
    for _ in range(1 + rng.geometric(0.4)):
        place = int(rng.integers(len(data) + 1))
        length = int(rng.integers(1, 17))
        match int(rng.integers(8)):
            case 0 if data:
                data[min(place, len(data) - 1)] ^= 1 << int(rng.integers(8))
            case 1 if data:
                data[min(place, len(data) - 1)] = int(rng.integers(256))
            case 2:
                data[place:place] = TOKENS[rng.integers(len(TOKENS))]
            case 3:
                token = TOKENS[rng.integers(len(TOKENS))]
                data[place : place + len(token)] = token
            case 4:
                del data[place : place + length]
            case 5:
                data[place:place] = data[place : place + length] * int(rng.integers(1, 9))
            case 6:
                other = seeds[rng.integers(len(seeds))]
                data[place:] = other[int(rng.integers(len(other) + 1)) :]
            case _:
                del data[place : place + (len(data) if rng.random() < 0.2 else 1)]
    return bytes(data[: 2**20])


def fuzz(
    target: Callable[[bytes], object],
    seeds: Sequence[bytes],
    *,
    tries: int,
    seconds: float = 1e9,
    slowest: float = 20.0,
) -> tuple[int, int]:
    """Tries done, and how many of them were refused; any other exception than InputError comes out, with its input."""
    rng = np.random.default_rng(len(seeds[0]))
    end, done, refusals = time.monotonic() + seconds, 0, 0
    for seed in seeds:
        target(seed)  # the seeds themselves are good
    while done < tries and time.monotonic() < end:
        data = mutate(seeds, rng)
        try:
            with no_longer_than(slowest):
                target(data)
        except InputError:
            refusals += 1
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}: {error} from {data[:3000]!r}") from error
        done += 1
    return done, refusals
