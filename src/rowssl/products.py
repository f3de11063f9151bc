"""Products of float32 matrices by oneDNN on processors for which MKL, PyTorch's own choice, uses narrower instructions.

On an AMD processor with AVX-512 MKL reaches less than half of the processor's speed, and oneDNN, which PyTorch brings along for
convolutions, all of it. So while `fast_products` lasts, `aten::mm` and `aten::addmm` of the thread that entered it go there, and
with them every linear layer, its backward pass included. On other processors nothing is changed.

oneDNN keeps half a megabyte of code for every shape that it has met (a thousand of them at the most): what is done within
`fast_products` should meet the same shapes again and again, as training steps and trunks do.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

LEAST_WORK = 2**25  # multiplications; of smaller products the gain is small beside the memory for their code
_here = threading.local()  # how deep this thread is within `fast_products`


@contextmanager
def fast_products() -> Iterator[None]:
    """While this lasts, large products of float32 matrices in this thread take the fastest way the processor has."""
    if _kernels() is None:
        yield
        return
    depth = getattr(_here, "depth", 0)
    _here.depth = depth + 1
    try:
        yield
    finally:
        _here.depth = depth


@cache
def _kernels() -> torch.library.Library | None:
    """What puts our kernels before PyTorch's, made once for the whole process; None where PyTorch's are good.

    They stay, because to take kernels away while another thread uses them is not safe; outside `fast_products` they do what
    PyTorch's do.
    """
    if not (_wanted() and torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")):
        return None
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings(action="ignore"):  # that a kernel is replaced is what we want
        library.impl("mm", _mm, "CPU")
        library.impl("addmm", _addmm, "CPU")
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
    """Whether a @ b is large, of float32, and asked for within `fast_products`."""
    return (
        getattr(_here, "depth", 0) > 0
        and a.dtype is torch.float32
        and b.dtype is torch.float32
        and a.shape[1] == b.shape[0]
        and a.numel() * b.shape[1] >= LEAST_WORK
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
    result: Tensor = torch.ops.mkldnn._linear_pointwise(a, b.t(), bias, "none", [], "")
    return result
