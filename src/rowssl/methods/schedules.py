"""Schedules: pure functions of the epoch, so there is no scheduler state to save."""

from __future__ import annotations

import math


def cosine(epoch: int, epochs: int, start: float, end: float) -> float:
    """From `start` at epoch 0 towards `end` at `epochs` along half a cosine."""
    return end + 0.5 * (start - end) * (1 + math.cos(math.pi * epoch / max(1, epochs)))


def teacher_temperature(epoch: int, start: float, end: float, warmup: int, shape: str = "linear") -> float:
    """tau_t: `warmup` values from `start` (first epoch) to `end`, then `end`; "linear" as coded, "cosine" as the paper says."""
    if epoch >= warmup - 1:
        return end
    done = epoch / (warmup - 1)
    return end + (start - end) * (0.5 * (1 + math.cos(math.pi * done)) if shape == "cosine" else 1 - done)
