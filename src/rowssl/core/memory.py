"""How much memory is left, how much was used, and when it is given back."""

from __future__ import annotations

import ctypes
import mmap
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from rowssl.core.errors import InputError

MEMORY_SHARE = 0.25  # of the free memory may be filled by features


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


def peak_memory() -> int:
    """The most bytes that this program has had in memory.

    Linux says it of the program itself; getrusage would count what its parent held when it started this one.
    """
    try:
        return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024
    except (OSError, IndexError, ValueError):
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _file_of(array: np.ndarray | None) -> np.memmap | None:
    """The memory-mapped array that this one is (a part of), if it is."""
    while array is not None and not isinstance(array, np.memmap):
        array = array.base if isinstance(array.base, np.ndarray) else None
    return array


def release(array: np.ndarray | None) -> None:
    """Let go of the pages of an array that is a file's; of any other array nothing."""
    file = _file_of(array)
    if file is not None and file.mode != "c" and hasattr(mmap, "MADV_DONTNEED"):
        pages: mmap.mmap | None = getattr(file, "_mmap", None)
        if pages is not None:
            pages.madvise(mmap.MADV_DONTNEED)


def require_whole(array: np.ndarray | None) -> None:
    """An InputError if an array's file was cut since it was opened: to read it would end the process without a word."""
    file = _file_of(array)
    pages: mmap.mmap | None = getattr(file, "_mmap", None)
    if file is None or pages is None:
        return
    if pages.size() < file.offset - file.offset % mmap.ALLOCATIONGRANULARITY + len(pages):
        raise InputError(f"{file.filename} was changed after it was read: run the same command again.")


def _malloc(name: str) -> Callable[..., int] | None:
    """A function of glibc's allocator, where there is one."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None


def give_blocks_back() -> None:
    """Return what is free now, and from now on what large pictures took as soon as it is freed.

    By itself glibc soon keeps up to 32 MB of each block for later. What a network needs to look at one picture is smaller, and
    stays: activations, and the weights of a convolution in the order of its kernel (9 MB at the end of a ResNet-50). Fresh pages
    for them would take up to half of its time. Pillow keeps a large picture in blocks of just below 16 MB, which must not stay.
    """
    if mallopt := _malloc("mallopt"):
        mallopt(-3, 3 * 2**22)  # M_MMAP_THRESHOLD: blocks from 12 MB on are maps of their own
        mallopt(-1, 2**26)  # M_TRIM_THRESHOLD: of the rest at most 64 MB are kept
        mallopt(-8, 1)  # M_ARENA_MAX
    if trim := _malloc("malloc_trim"):
        trim(0)


@contextmanager
def reused_blocks() -> Iterator[None]:
    """Keep large blocks that are freed for the next ones, instead of asking the system for fresh pages each time.

    The activations of a convolutional network are hundreds of megabytes a batch; zeroing fresh pages for them takes up to a
    third of the time of a forward pass. Afterwards everything is given back. Does something with glibc alone.
    """
    mallopt, trim = _malloc("mallopt"), _malloc("malloc_trim")
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
