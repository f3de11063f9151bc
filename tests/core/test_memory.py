"""Memory that is kept for the next batch, and given back afterwards."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest
import torch

from rowssl.core.memory import reused_blocks
from rowssl.methods.base import joined

glibc = pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="needs glibc's malloc"
)


REUSED = """
import resource, torch
from rowssl.core.memory import reused_blocks

def faults(rounds):  # pages that the system had to hand out while blocks of 64 MB were filled and freed
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(rounds):
        torch.empty(2**24).fill_(1.0)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1])

print(faults(8))
before = resident()
with reused_blocks():
    faults(16)  # until the heap has found its shape
    print(faults(8))
print(resident() - before)
"""


def said_by(program: str) -> list[float]:
    """What a program prints, in a process of its own: the heap of this one has holes that other tests left."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return [float(word) for word in done.stdout.split()]


@glibc
def test_freed_blocks_are_used_again_and_then_given_back() -> None:
    plain, reused, kept = said_by(REUSED)
    assert reused < plain / 4
    assert kept < 4096  # pages, 16 MB


def test_an_exception_ends_it_too():
    with pytest.raises(ValueError, match="inside"), reused_blocks():
        raise ValueError("inside")
    with reused_blocks():
        assert torch.empty(2**22).fill_(2.0).sum() == 2.0**23


HOLES = """
import torch
from pathlib import Path
from rowssl.core.memory import reused_blocks
from rowssl.methods.base import joined

def resident():
    return int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0]) / 1024

torch.set_num_threads(1)
network = torch.nn.Sequential(torch.nn.Linear(64, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 8))

def scores():
    for _ in range(150):
        x = torch.zeros(1024, 64)
        embedded = network(x)
        yield embedded.amax(1)

with reused_blocks(), torch.no_grad():
    for _ in scores():
        pass
    kept = [torch.empty(size) for size in (256, 512, 1024, 2048) for _ in range(4000)]  # small holes are filled
    before = resident()
    found = joined(scores(), 150 * 1024)
    print(resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_what_is_kept_of_large_results_leaves_no_holes() -> None:
    assert said_by(HOLES)[0] < 150  # MB; pieces that are joined at the end leave it at 400


def test_joined_pieces() -> None:
    pieces = [torch.arange(6).view(3, 2), torch.arange(2).view(1, 2)]
    found = joined(iter(pieces), 4)
    assert torch.equal(found, torch.cat(pieces))
    assert found.dtype == torch.int64
    assert joined([torch.ones(2), None, torch.ones(1)], 3) is None
    assert len(joined([], 0)) == 0


SERVED = """
import resource, torch
from pathlib import Path
from PIL import Image
from rowssl.core.memory import give_blocks_back

def resident():
    return int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0]) / 1024

def pages(megabytes):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        torch.empty(megabytes * 2**18).fill_(1.0)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

torch.set_num_threads(1)
for megabytes in (4, 8, 16, 30):  # by itself glibc would keep blocks as large as these from now on
    torch.empty(megabytes * 2**18).fill_(1.0)
give_blocks_back()
first = resident()
loaded = [torch.ones(2**18) for _ in range(200)]
kept = loaded[::5]  # so that the heap cannot end before them, and no hole fits 9 MB
del loaded
give_blocks_back()
print(resident() - first)
pages(9)
before = resident()
print(pages(9))
pages(48)
print(resident() - before)
before = resident()
pictures = [Image.new("RGB", (3000, 3000), "red") for _ in range(5)]
del pictures[:-1]  # the last one stays, so that the heap cannot end before it
print(resident() - before)
"""


@glibc
def test_a_server_keeps_what_one_picture_needs_and_gives_the_rest_back() -> None:
    after_loading, small, after_large, after_pictures = said_by(SERVED)
    assert after_loading < 60  # MB: of the 200 that were taken 40 are in use
    assert small < 500  # pages, of 8 x 2,304
    assert after_large < 16  # MB
    assert after_pictures < 60  # MB: one of 36 is in use; each has two blocks of just below 16 MB
