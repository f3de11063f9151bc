"""Gradient descent with momentum: the arithmetic of `torch.optim.SGD` without the compiler that its class loads.

Making any `torch.optim.Optimizer` imports `torch._dynamo`: 1.5 s and 72 MB at the start of every run, every cell of a grid and
every process of a group, for a compiler that is never used here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.optim.sgd import sgd


@dataclass
class Group:
    """Parameters that share a weight decay."""

    parameters: list[Tensor]
    weight_decay: float


@dataclass
class SGD:
    """As `torch.optim.SGD(..., fused=True)`, to the bit."""

    groups: Sequence[Group]
    lr: float
    momentum: float
    momenta: dict[Tensor, Tensor] = field(default_factory=dict)  # of the parameters that have had a gradient

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for group in self.groups:
            for parameter in group.parameters:
                parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """v <- momentum v + gradient + weight_decay w; w <- w - lr v."""
        for group in self.groups:
            moved = [p for p in group.parameters if p.grad is not None]
            if self.momentum:
                self.momenta |= {p: torch.zeros_like(p) for p in moved if p not in self.momenta}
            sgd(
                moved,
                [p.grad for p in moved if p.grad is not None],
                [self.momenta.get(p) for p in moved],
                fused=True,
                weight_decay=group.weight_decay,
                momentum=self.momentum,
                lr=self.lr,
                dampening=0.0,
                nesterov=False,
                maximize=False,
            )
