"""How much memory is left, and giving some back."""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np


def available_memory() -> int:
    """Bytes that this process may still fill, as far as the system says; 0 when it says nothing."""
    limits = []
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        limits.append(int(fields["MemAvailable"].split()[0]) * 1024)
        group = Path("/sys/fs/cgroup")  # a container's own limit
        limits.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    except (OSError, ValueError, KeyError):
        pass
    return min(limits, default=0)


def release(array: np.ndarray | None) -> None:
    """Let go of the pages of an array that is memory-mapped for reading; of any other array nothing."""
    while array is not None:
        if isinstance(array, np.memmap) and array.mode == "r" and hasattr(mmap, "MADV_DONTNEED"):
            pages: mmap.mmap | None = getattr(array, "_mmap", None)
            if pages is not None:
                pages.madvise(mmap.MADV_DONTNEED)
            return
        array = array.base if isinstance(array.base, np.ndarray) else None


@contextmanager
def reused_blocks() -> Iterator[None]:
    """Keep large blocks that are freed for the next ones, instead of asking the system for fresh pages each time.

    The activations of a convolutional network are hundreds of megabytes a batch; zeroing fresh pages for them takes up to a
    third of the time of a forward pass. Afterwards everything is given back. Does something with glibc alone.
    """
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    mallopt, trim = getattr(library, "mallopt", None), getattr(library, "malloc_trim", None)
    if mallopt is None or trim is None:
        yield
        return
    threshold, most_maps = -1, -4  # M_TRIM_THRESHOLD, M_MMAP_MAX
    mallopt(most_maps, 0)
    mallopt(threshold, 2**31 - 1)
    try:
        yield
    finally:
        mallopt(most_maps, 65536)
        mallopt(threshold, 128 * 1024)
        trim(0)
