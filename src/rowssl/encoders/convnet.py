"""A small residual network for small pictures, trained from scratch when there are no pretrained weights at all."""

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rowssl.core.errors import InputError
from rowssl.encoders.base import CROP, Parts, Preprocessing, refuse
from rowssl.encoders.standardised import Standardised

NAMES = {"convnet": "trained from scratch; for small pictures"}


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions that halve the side, (B, c, H, W) -> (B, c', H/2, W/2)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        # Group normalisation looks at one picture at a time: a prediction never depends on the rest of the batch.
        self.norm1 = nn.GroupNorm(8, inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(8, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm1(x))
        branch = self.conv2(F.relu(self.norm2(self.conv1(x))))
        return branch + self.shortcut(F.avg_pool2d(x, 2, ceil_mode=True))


class ConvNet(Standardised):
    """Normalised pixels (B, 3, H, W) -> pooled feature (B, out_dim); any side of at least 8 pixels.

    Parameters
    ----------
    widths
        Channels of the stem and of each following stage; each stage halves the side.
    seed
        Decides the initial weights alone; no global random state is read or changed.
    """

    from_scratch: ClassVar[bool] = True

    def __init__(self, widths: tuple[int, ...] = (32, 64, 128, 256), *, seed: int = 0) -> None:
        super().__init__(widths[-1])
        with torch.random.fork_rng(devices=[]):  # the default initialisation draws; it is overwritten below
            self.stem = nn.Conv2d(3, widths[0], 3, padding=1, bias=False)
            self.stages = nn.ModuleList(ResidualBlock(a, b) for a, b in pairwise(widths))
            self.norm = nn.GroupNorm(8, widths[-1])
        self.out_dim = widths[-1]
        generator = torch.Generator().manual_seed(seed)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu", generator=generator)

    @torch.no_grad()
    def calibrate(self, pixels: Tensor) -> None:
        """Standardise the output by a sample of the training set.

        Untrained activations after a ReLU have a large common part: all cosines would be nearly 1, and a classifier by
        cosine would put every picture into one class.
        """
        self.fit_standard(torch.cat([self._pooled(part) for part in pixels.split(256)]))

    def _pooled(self, pixels: Tensor) -> Tensor:
        x = self.stem(pixels)
        for stage in self.stages:
            x = stage(x)
        return F.relu(self.norm(x)).mean(dim=(2, 3))

    def forward(self, pixels: Tensor) -> Tensor:
        return self.standard(self._pooled(pixels))


def open(spec: str, tail: str, size: int | None, *, seed: int = 0, **_: object) -> Parts:
    """No trunk: the whole network is the tail."""
    if tail != "auto":
        raise refuse(spec, tail, "auto (the whole network trains)")
    size = size or 32
    if size < 8:
        raise InputError(f"--image-size {size} is too small for encoder convnet: 8 is the least")
    recipe = Preprocessing(size, int(size / CROP), mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    return Parts(nn.Identity(), ConvNet(seed=seed), "pixels", recipe, {})
