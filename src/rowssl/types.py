"""What passes between the loader, a method and the loop."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
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

    @property
    def both_views(self) -> Tensor:
        """All rows of the first view, then all of the second, (2B, *trunk_shape): a copy only where they do not lie so already."""
        first, second = self.views
        whole = first._base  # what the loader has cut in two
        if whole is None or whole is not second._base or whole.shape != (2 * len(first), *first.shape[1:]):
            return torch.cat(self.views)
        halves = second.storage_offset() == first.storage_offset() + first.numel()
        return whole if halves else torch.cat(self.views)


@dataclass(frozen=True)
class Step:
    """What `Method.loss` returns: named terms for the loop to sum, and what `after_step` will need."""

    losses: dict[str, Tensor]
    extras: dict[str, Tensor] = field(default_factory=dict)
