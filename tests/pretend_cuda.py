"""Tensors that say they are on cuda:0, compute on the CPU, and keep CUDA's rules of what may meet what.

For machines without a GPU: whatever mixes devices there raises here. Kernels, their speed and their rounding are not pretended,
nor is the backward pass: autograd asks the device for streams, so `backward` gives every parameter a small random gradient.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

CUDA = torch.device("cuda:0")
FREE = {"copy_", "_to_copy", "_local_scalar_dense", "detach", "set_", "equal"}  # what may look at both sides
INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_"}  # a CUDA tensor may be indexed from the CPU


class OnCuda(Tensor):
    """A tensor of the CPU behind the name of another device."""

    @staticmethod
    def __new__(cls, inner: Tensor, requires_grad: bool = False) -> OnCuda:
        made: OnCuda = torch.Tensor._make_wrapper_subclass(
            cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            layout=inner.layout, device=CUDA, requires_grad=requires_grad,
        )  # fmt: skip
        made.inner = inner
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        return compute(function, arguments, options or {})


class Pretended(TorchDispatchMode):
    """Catches what makes tensors on a device, too."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(function, args, kwargs or {})


def compute(function: Any, arguments: Any, options: dict[str, Any]) -> Any:
    """Check the devices, compute on the CPU, and name the result's device as CUDA would."""
    name = function._schema.name.removeprefix("aten::")
    check(name, arguments, options)
    tensors = [leaf for leaf in tree_leaves((arguments, options)) if isinstance(leaf, Tensor)]
    on_cuda = any(isinstance(tensor, OnCuda) for tensor in tensors)
    if name in ("copy_", "_to_copy", "index"):
        on_cuda = isinstance(arguments[0], OnCuda)
    if options.get("device") is not None:
        on_cuda = torch.device(options["device"]).type == "cuda"
        options = {**options, "device": torch.device("cpu")}
    inner = tree_map(lambda leaf: leaf.inner if isinstance(leaf, OnCuda) else leaf, (arguments, options))
    result = function(*inner[0], **inner[1])
    written = written_to(function, arguments, options)
    if written is not None:
        return written
    return tree_map(lambda leaf: OnCuda(leaf) if on_cuda and isinstance(leaf, Tensor) else leaf, result)


def check(name: str, arguments: Any, options: dict[str, Any]) -> None:
    """RuntimeError where CUDA would refuse; numbers (no dimension) may come from anywhere."""

    def refuse(tensors: Iterable[Tensor]) -> None:
        shapes = [(tuple(tensor.shape), "cuda" if isinstance(tensor, OnCuda) else "cpu") for tensor in tensors]
        raise RuntimeError(f"{name}: tensors of two devices: {shapes}")

    if name in FREE:
        return
    tensors = [leaf for leaf in tree_leaves((arguments, options)) if isinstance(leaf, Tensor)]
    if name in INDEXED:
        indices = [index for index in arguments[1] if index is not None]
        if not isinstance(arguments[0], OnCuda) and any(isinstance(index, OnCuda) for index in indices):
            refuse(tensors)
        tensors = [arguments[0], *(one for one in arguments[2:3] if isinstance(one, Tensor))]
    sized = [tensor for tensor in tensors if tensor.dim() > 0 or isinstance(tensor, OnCuda)]
    if len({isinstance(tensor, OnCuda) for tensor in sized}) > 1:
        refuse(tensors)


def written_to(function: Any, arguments: Any, options: dict[str, Any]) -> Tensor | None:
    """The argument that a function changes and returns, if it is such a function."""
    returns = function._schema.returns
    if not returns or returns[0].alias_info is None or not returns[0].alias_info.is_write:
        return None
    for place, argument in enumerate(function._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found: Tensor = arguments[place] if place < len(arguments) else options[argument.name]
            return found
    return None


def pretend() -> None:
    """From here on there is a GPU, cuda:0, for the rest of the process; without its number it is not found."""
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    guards = (ctypes.c_void_p * 16).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    guards[1] = guards[0]  # views ask for CUDA's guard, and the CPU's will do
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    torch.cuda._lazy_init = lambda: None
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: 1
    Pretended().__enter__()


def pretend_backward(module: nn.Module) -> None:
    """What `backward` does from here on; moving a module gives it new parameters, so they are asked for at the time."""

    def backward(self: Tensor, *_: Any, **__: Any) -> None:
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.randn_like(parameter) * 1e-3

    def grad(outputs: Any, inputs: Tensor, *_: Any, **__: Any) -> tuple[Tensor]:
        return (torch.randn_like(inputs) * 1e-3,)

    torch.Tensor.backward = backward  # type: ignore[method-assign, assignment]
    torch.autograd.grad = grad  # type: ignore[assignment]
