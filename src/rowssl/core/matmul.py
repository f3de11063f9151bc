"""Products of float32 matrices by oneDNN on processors for which MKL, PyTorch's own choice, uses narrower instructions.

On an AMD processor with AVX-512 MKL leaves a good part of the processor's speed unused, and oneDNN, which PyTorch brings along
for convolutions, less of it. So while `fast_products` lasts, large products of the thread that entered it go there, and with
them linear layers and their backward pass. On other processors nothing is changed.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

LEAST_WORK = 2**25  # multiplications; of smaller products the gain is small beside the memory for their code
# oneDNN makes code for every shape, half a megabyte and a millisecond each, and keeps a thousand of them. Networks and batches
# have few sizes, multiples of this; of rows that were picked out, as many as there happen to be, code would be made every time.
SIZES = 8
_here = threading.local()  # how deep this thread is within `fast_products`
_lock = threading.Lock()
_made: list[torch.library.Library | None] = []  # what puts our kernels before PyTorch's, once it was tried


@contextmanager
def fast_products() -> Iterator[None]:
    """While this lasts, large products of float32 matrices in this thread take the fastest way the processor has."""
    with _lock:
        if not _made:
            _made.append(_kernels() if _wanted() else None)
    if _made[0] is None:
        yield
        return
    depth = getattr(_here, "depth", 0)
    _here.depth = depth + 1
    try:
        yield
    finally:
        _here.depth = depth


def _kernels() -> torch.library.Library | None:
    """Our `mm` and `addmm` before PyTorch's for the rest of the process; None where this PyTorch has other ideas.

    They stay, because to take kernels away while another thread uses them is not safe; outside `fast_products` they call
    PyTorch's, which takes three microseconds more.
    """
    library = torch.library.Library("aten", "IMPL")
    try:
        if not torch.equal(_product(torch.ones(2, 8), torch.eye(8), torch.ones(8)), torch.full((2, 8), 2.0)):
            return None
        with warnings.catch_warnings(action="ignore"):  # that a kernel is replaced is what we want
            library.impl("addmm", _addmm, "CPU")
            library.impl("mm", _mm, "CPU")
    except (AttributeError, RuntimeError, TypeError):
        return None  # no such operator or another, no oneDNN, somebody else's kernels; with the library goes what it put there
    return library


def _wanted() -> bool:
    """Whether this processor gains: `ROWSSL_PRODUCTS` says so (onednn or mkl), or it is AMD's and has AVX-512."""
    asked = os.environ.get("ROWSSL_PRODUCTS")
    if asked:
        return asked == "onednn"
    try:
        vendor = Path("/proc/cpuinfo").read_text().split("vendor_id", 1)[1].split("\n", 1)[0]
    except (OSError, IndexError):
        return False
    return "AMD" in vendor and torch.backends.cpu.get_cpu_capability() == "AVX512"


def _suits(a: Tensor, b: Tensor) -> bool:
    """Whether a @ b is large, of float32 and of usual sizes, and asked for within `fast_products`."""
    return (
        getattr(_here, "depth", 0) > 0
        and a.dtype is torch.float32
        and b.dtype is torch.float32
        and a.dim() == b.dim() == 2
        and a.shape[1] == b.shape[0]
        and a.numel() * b.shape[1] >= LEAST_WORK
        and not any(size % SIZES for size in (*a.shape, b.shape[1]))
    )


def _mm(a: Tensor, b: Tensor) -> Tensor:
    """`aten::mm`: (n, d), (d, m) -> (n, m)."""
    if _suits(a, b):
        return _product(a, b)
    return torch.mm(a, b, out=a.new_empty(0))  # another kernel, PyTorch's own


def _addmm(c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """`aten::addmm`: beta c + alpha a @ b."""
    if alpha == 1 and beta == 1 and c.dtype is torch.float32 and _suits(a, b):
        if c.shape == b.shape[1:]:
            return _product(a, b, c)
        if c.shape == (len(a), b.shape[1]):
            return _product(a, b).add_(c)
    return torch.addmm(c, a, b, beta=beta, alpha=alpha, out=a.new_empty(0))


def _product(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """a @ b + bias by oneDNN, whichever way the matrices lie in memory."""
    weight = b.t()
    if not (b.is_contiguous() or weight.is_contiguous()):
        weight = weight.contiguous()
    bias = bias if bias is None else bias.contiguous()
    result: Tensor = torch.ops.mkldnn._linear_pointwise(a, weight, bias, "none", [], "")
    return result
