"""Few columns made many: random Fourier features, so that the direction of a row says where it lies.

Every method here compares rows by direction. In a space of two or four dimensions there are too few directions: points on one
ray cannot be told apart, and an adapter has no room to turn. The cosine of two lifted rows is (about) a Gaussian kernel of
their distance, so that near rows are alike and far ones are not (Rahimi and Recht, 2007).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

NARROW = 16  # columns; wider rows have directions enough
WIDTH = 128


class Lift(nn.Module):
    """x -> (cos, sin)(weight (x - mean) / scale), rows of length 1: (B, d) -> (B, WIDTH), float64."""

    mean: Tensor
    scale: Tensor
    weight: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(dim, dtype=torch.float64))
        self.register_buffer("scale", torch.ones(dim, dtype=torch.float64))
        self.register_buffer("weight", torch.zeros(dim, WIDTH // 2, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        """(B, d) -> (B, WIDTH)."""
        phase = ((x - self.mean) / self.scale) @ self.weight
        return torch.cat([phase.cos(), phase.sin()], dim=1) * (2 / WIDTH) ** 0.5


def fit_lift(x: np.ndarray, seed: int) -> Lift:
    """Columns standardised by the training rows (N, d); the kernel is exp(-|x - x'|^2 / 2d) on them."""
    dim = x.shape[1]
    lift = Lift(dim)
    spread = x.std(0, dtype=np.float64)
    lift.mean.copy_(torch.from_numpy(x.mean(0, dtype=np.float64)))
    lift.scale.copy_(torch.from_numpy(np.where(spread > 0, spread, 1.0)))
    draw = np.random.default_rng([seed, 51]).normal(size=(dim, WIDTH // 2))
    lift.weight.copy_(torch.from_numpy(draw / dim**0.5))
    return lift
