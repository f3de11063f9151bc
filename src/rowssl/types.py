"""What passes between the loader, a method and the loop."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """One training step's data: a pure function of (seed, step).

    Under torchrun `views` hold this process's share of the rows, everything else the whole batch.
    """

    views: tuple[Tensor, ...]  # trunk outputs of each view, (B, *trunk_shape)
    target: Tensor  # (B,) class id, -1 = unlabelled
    index: Tensor  # (B,) row of the training set
    step: int
    epoch: int
    epochs: int
    last_of_epoch: bool


@dataclass(frozen=True)
class Step:
    """What `Method.loss` returns: named terms for the loop to sum, and what `after_step` will need."""

    losses: dict[str, Tensor]
    extras: dict[str, Tensor] = field(default_factory=dict)
