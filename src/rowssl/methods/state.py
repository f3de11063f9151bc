"""What a method remembers between steps: the queue of keys and the momentum copy. Every bit is in persistent buffers."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Queue(nn.Module):
    """First-in-first-out queue of unit keys with their labels and row numbers; pointer and fill count are buffers too.

    Only `filled` leading entries are valid, so a part-filled queue has neither random negatives nor random neighbours.
    """

    keys: Tensor
    labels: Tensor
    rows: Tensor
    cursor: Tensor

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.size = size
        self.register_buffer("keys", torch.zeros(size, dim))
        self.register_buffer("labels", torch.full((size,), -1, dtype=torch.long))
        self.register_buffer("rows", torch.full((size,), -1, dtype=torch.long))
        self.register_buffer("cursor", torch.zeros(2, dtype=torch.long))  # pointer, filled

    @property
    def filled(self) -> int:
        """How many entries are valid."""
        return int(self.cursor[1])

    def valid(self) -> tuple[Tensor, Tensor, Tensor]:
        """Valid keys (n, d), labels (n,) and row numbers (n,)."""
        n = self.filled
        return self.keys[:n], self.labels[:n], self.rows[:n]

    @torch.no_grad()
    def slots(self, count: int) -> Tensor:
        """Where the next `count` entries will go, (min(count, size),)."""
        return (int(self.cursor[0]) + torch.arange(min(count, self.size), device=self.keys.device)) % self.size

    @torch.no_grad()
    def push(self, keys: Tensor, labels: Tensor, rows: Tensor) -> None:
        """Append a batch of any size; of a batch larger than the queue the last entries stay."""
        keys, labels, rows = keys[-self.size :], labels[-self.size :], rows[-self.size :]
        slots = self.slots(len(keys))
        self.keys[slots] = keys
        self.labels[slots] = labels
        self.rows[slots] = rows
        self.cursor[0] = (self.cursor[0] + len(keys)) % self.size
        self.cursor[1] = torch.clamp(self.cursor[1] + len(keys), max=self.size)

    @torch.no_grad()
    def fill_randomly(self, label: int, generator: torch.Generator) -> None:
        """The public code's start: random unit vectors that count as valid entries of class `label`."""
        self.keys.copy_(F.normalize(torch.randn(self.keys.shape, generator=generator), dim=1))
        self.labels.fill_(label)
        self.cursor[1] = self.size


class MomentumCopy(nn.Module):
    """The key network: a copy whose parameters follow the query network by exponential moving average."""

    def __init__(self, online: nn.Module, momentum: float) -> None:
        super().__init__()
        self.module = copy.deepcopy(online)
        self.module.requires_grad_(False)
        self.momentum = momentum

    @torch.no_grad()
    def follow(self, online: nn.Module) -> None:
        """One EMA step over all parameters; buffers are copied."""
        mine = [p.detach() for p in self.module.parameters()]
        theirs = [p.detach() for p in online.parameters()]
        if mine:
            torch._foreach_lerp_(mine, theirs, 1 - self.momentum)
        for own, other in zip(self.module.buffers(), online.buffers(), strict=True):
            own.copy_(other)

    def forward(self, *inputs: Tensor) -> Tensor:
        """The copy's output."""
        output: Tensor = self.module(*inputs)
        return output
