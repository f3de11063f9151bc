"""Features with mean 0 and variance 1 at the start of training, by a shift and a scale fixed from the training set."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Standardised(nn.Module):
    """Base of tails that standardise a feature once: buffers `centre` (dim,) and `gain`, the identity until fitted."""

    gain: Tensor
    centre: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("gain", torch.ones(()))
        self.register_buffer("centre", torch.zeros(dim))

    @torch.no_grad()
    def fit_standard(self, x: Tensor) -> None:
        """Set `centre` and `gain` from a sample of features, (n, dim)."""
        self.centre.copy_(x.float().mean(0))
        self.gain.copy_(1 / (x.float() - self.centre).square().mean().sqrt().clamp_min(1e-6))

    def standard(self, x: Tensor) -> Tensor:
        """gain (x - centre): (B, dim) -> (B, dim)."""
        return self.gain * (x - self.centre)
