"""More than one process (torchrun): every process encodes its share of the batch, then all see the whole batch.

The losses and all state updates run on the gathered batch, identically in every process, so training is the same as with
one process at the same global batch. Gradients of the encoder and heads are partial sums, added up by `sum_gradients`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rowssl.core.errors import InputError
from rowssl.core.text import printable


def start() -> None:
    """Join the process group when torchrun started us, each process of a machine with a GPU of its own; otherwise do nothing."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
        if _gpu() < torch.cuda.device_count():
            torch.cuda.set_device(_gpu())
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")


def _gpu() -> int:
    """Which GPU of its machine is this process's under torchrun."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def device(asked: str) -> torch.device:
    """The device by its name; auto is a GPU where there is one. InputError if there is no such device here."""
    try:
        found = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if asked == "auto" else asked)
        if found.type == "meta":
            raise ValueError("it computes nothing")
        torch.empty(0, device=found)
        if found.type == "cuda" and world() > 1:  # NCCL needs a GPU for each, whichever was named
            found = torch.device("cuda", _gpu())
            torch.empty(0, device=found)
    except (RuntimeError, AssertionError, ValueError) as error:
        choices = "auto, cpu" + (", cuda" if torch.cuda.is_available() else "")
        raise InputError(
            f"--device {printable(asked)} cannot be used on this machine: choose one of {choices}."
        ) from error
    return found


def device_of(module: nn.Module) -> torch.device:
    """Where a module's parameters are; the CPU for one without any."""
    return next((parameter.device for parameter in module.parameters()), torch.device("cpu"))


def rank() -> int:
    """This process's number; 0 without torchrun."""
    return dist.get_rank() if dist.is_initialized() else 0


def world() -> int:
    """Number of processes; 1 without torchrun."""
    return dist.get_world_size() if dist.is_initialized() else 1


def share(rows: int) -> slice:
    """The rows of a batch that this process encodes."""
    return slice(rows * rank() // world(), rows * (rank() + 1) // world())


class _Gather(torch.autograd.Function):
    """All shares in order; backward keeps the own share, since every process computes the same whole loss."""

    @staticmethod
    def forward(context: Any, local: Tensor, rows: int) -> Tensor:
        context.rows = rows
        sizes = [rows * (r + 1) // world() - rows * r // world() for r in range(world())]
        padded = local.new_zeros(max(sizes), *local.shape[1:])
        padded[: len(local)] = local
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(context: Any, *gradient: Tensor) -> tuple[Tensor, None]:
        return gradient[0][share(context.rows)], None


def gather(rows: int, *local: Tensor) -> tuple[Tensor, ...]:
    """The whole batch's tensors (rows, ...) from each process's share of them; 2-D tensors, one communication."""
    if world() == 1:
        return local
    joined = _Gather.apply(torch.cat(local, dim=1), rows)
    return torch.split(joined, [x.shape[1] for x in local], dim=1)


def sum_gradients(parameters: Iterable[Tensor]) -> None:
    """Add up the processes' partial gradients."""
    if world() == 1:
        return
    with_gradient = [p.grad for p in parameters if p.grad is not None]
    flat = torch.cat([g.reshape(-1) for g in with_gradient])
    dist.all_reduce(flat)
    for gradient, summed in zip(with_gradient, flat.split([g.numel() for g in with_gradient]), strict=True):
        gradient.copy_(summed.view_as(gradient))


def same_everywhere(module: nn.Module) -> None:
    """Copy process 0's parameters and buffers to all processes."""
    if world() > 1:
        for tensor in module.state_dict().values():
            dist.broadcast(tensor, src=0)


def barrier() -> None:
    """Wait for the others."""
    if world() > 1:
        dist.barrier()
