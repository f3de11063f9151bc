"""What the paper's ablations put in place of tailedness prototypes: class priors (estimated, true) and losses."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rowssl.cluster import hungarian


class ClassPrior(nn.Module):
    """Class prior by hard pseudo-labels (smoothed over epochs), or, as an oracle, of the true classes."""

    prior: Tensor
    confusion: Tensor
    truth: Tensor

    def __init__(self, classes: int, truth: Tensor | None, momentum: float = 0.9) -> None:
        super().__init__()
        self.momentum = momentum
        self.register_buffer("prior", torch.full((classes,), 1 / classes))
        self.register_buffer("truth", torch.zeros(0, dtype=torch.long) if truth is None else truth.clone())
        size = 0 if truth is None else classes
        self.register_buffer("confusion", torch.zeros(size, size))  # heads x true classes, this epoch

    def add(self, assigned: Tensor, rows: Tensor) -> None:
        """Count which heads the true classes go to (oracle only)."""
        if len(self.truth):
            pairs = assigned * len(self.confusion) + self.truth[rows]
            self.confusion += torch.bincount(pairs, minlength=self.confusion.numel()).view_as(self.confusion)

    def refresh(self, count: Tensor) -> None:
        """End of an epoch: how often each class was predicted."""
        fresh = (count / count.sum().clamp_min(1)).to(self.prior)
        self.prior.mul_(self.momentum).add_(fresh, alpha=1 - self.momentum)

    def _true(self) -> Tensor:
        counts = torch.bincount(self.truth, minlength=len(self.prior)).to(self.prior)
        return counts / counts.sum()

    def of_rows(self, which: str, assigned: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Prior of each row's (pseudo or true) class, and the least and the greatest prior."""
        prior = self._true() if which == "true_prior" else self.prior
        classes = self.truth[rows] if which == "true_prior" else assigned
        return prior[classes], prior.min(), prior.max()

    def of_heads(self, which: str) -> Tensor:
        """Prior of each classifier head; for the true prior, heads are matched to classes on this epoch's counts."""
        if which == "estimated_prior":
            return self.prior.clone()
        heads, classes = hungarian(self.confusion.cpu().numpy())
        prior = torch.zeros_like(self.prior)
        prior[torch.as_tensor(heads)] = self._true()[torch.as_tensor(classes)]
        self.confusion.zero_()
        return prior


class LossMemory(nn.Module):
    """Tailedness by the sample's own contrastive loss, smoothed: what is hard to tell apart counts as tail."""

    mean: Tensor
    seen: Tensor

    def __init__(self, rows: int, momentum: float = 0.9) -> None:
        super().__init__()
        self.momentum = momentum
        self.register_buffer("mean", torch.zeros(rows))
        self.register_buffer("seen", torch.zeros(rows, dtype=torch.bool))

    def score(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Minus the remembered loss (high = easy = head) of rows, and the range over all rows seen so far."""
        known = -self.mean[self.seen]
        if len(known) == 0:
            zero = self.mean.new_zeros(())
            return zero.expand(len(rows)), zero, zero
        middle = known.mean()
        return torch.where(self.seen[rows], -self.mean[rows], middle), known.min(), known.max()

    def add(self, rows: Tensor, loss: Tensor) -> None:
        """Remember this step's losses."""
        smoothed = torch.where(self.seen[rows], self.momentum * self.mean[rows] + (1 - self.momentum) * loss, loss)
        self.mean[rows] = smoothed
        self.seen[rows] = True
