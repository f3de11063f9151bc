"""Memory that is kept for the next batch, and given back afterwards."""

from __future__ import annotations

import ctypes
import resource
import sys

import pytest
import torch

from rowssl.memory import reused_blocks


def faults(rounds: int) -> int:
    """Pages that the system had to hand out while blocks of 64 MB were filled and freed."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(rounds):
        torch.empty(2**24).fill_(1.0)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="needs glibc's malloc"
)
def test_freed_blocks_are_used_again_and_then_given_back():
    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1])

    plain = faults(8)
    before = resident()
    with reused_blocks():
        faults(16)  # until the heap has found its shape
        reused = faults(8)
    assert reused < plain / 4
    assert resident() - before < 4096  # pages, 16 MB


def test_an_exception_ends_it_too():
    with pytest.raises(ValueError, match="inside"), reused_blocks():
        raise ValueError("inside")
    with reused_blocks():
        assert torch.empty(2**22).fill_(2.0).sum() == 2.0**23
