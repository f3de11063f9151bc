"""How much memory is left, and giving some back."""

from __future__ import annotations

import mmap
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
