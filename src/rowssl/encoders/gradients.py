"""Where the edges of a small picture are and which way they run: what tells one digit from another, and no network.

The picture, in grey and twice as large, is cut into 4 x 4 cells. In each, the gradient's length is counted by its direction, in
eight directions that share what lies between them (Dalal and Triggs, 2005; Lowe, 2004). A stroke that moves by a pixel
changes every pixel beside it, and these counts hardly at all.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rowssl.core.errors import InputError
from rowssl.encoders.base import Parts, Preprocessing, parse_tail, refuse

NAMES = {"gradients": "the edges of small pictures; for digits and the like"}
CELLS, DIRECTIONS, LARGER = 4, 8, 2
GREY = (0.299, 0.587, 0.114)


class Gradients(nn.Module):
    """Pixels (B, 3, H, W) -> counts (B, 8 x 4 x 4), none below 0."""

    def forward(self, pixels: Tensor) -> Tensor:
        weight = pixels.new_tensor(GREY).view(1, 3, 1, 1)
        grey = (pixels * weight).sum(1, keepdim=True)
        grey = F.interpolate(grey, scale_factor=LARGER, mode="bilinear", align_corners=True)
        edge = F.pad(grey, (1, 1, 1, 1), mode="replicate")
        down = (edge[:, :, 2:, 1:-1] - edge[:, :, :-2, 1:-1]) / 2
        right = (edge[:, :, 1:-1, 2:] - edge[:, :, 1:-1, :-2]) / 2
        length = (down.square() + right.square()).sqrt()
        turn = torch.atan2(down, right) / (2 * math.pi) * DIRECTIONS
        towards = torch.arange(DIRECTIONS, device=pixels.device, dtype=pixels.dtype).view(1, -1, 1, 1)
        apart = torch.remainder(turn - towards + DIRECTIONS / 2, DIRECTIONS) - DIRECTIONS / 2
        share = (1 - apart.abs()).clamp_min(0)
        return F.adaptive_avg_pool2d(length * share, CELLS).flatten(1)


def open(spec: str, tail: str, size: int | None, **_: object) -> Parts:
    """The edges of a small picture, and an adapter."""
    if parse_tail(tail)[0] not in {"auto", "adapter"}:
        raise refuse(spec, tail, "adapter")
    size = size or 16
    if not 4 <= size <= 32:
        raise InputError(f"--image-size {size} does not suit encoder gradients: from 4 to 32")
    return Parts(Gradients(), None, "gradients", Preprocessing(size, size, mean=(0.0,) * 3, std=(1.0,) * 3), {})
