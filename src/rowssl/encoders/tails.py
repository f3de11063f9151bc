"""Trainable tails: each takes what the frozen trunk gave (and a cache stored) and returns the feature z (B, out_dim).

Every tail treats a row alone, in training mode too, and can be deep-copied for a momentum network.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rowssl.encoders.standardised import Standardised
from rowssl.encoders.vit import LastBlocks

__all__ = ["AdapterTail", "BlockTail", "Frozen", "Pool", "StageTail", "is_from_scratch"]

BlockTail = LastBlocks  # tokens (B, T, d) -> (B, d)


def is_from_scratch(tail: nn.Module) -> bool:
    """Whether a whole network is trained, and not the end of a pretrained one."""
    return any(getattr(part, "from_scratch", False) for part in tail.modules())


class Frozen(nn.Module):
    """A network that never trains: no gradients, evaluation mode whatever its parent's mode is."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body.requires_grad_(False)
        self.train(False)

    def train(self, mode: bool = True) -> Frozen:
        super().train(False)
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


class Pool(nn.Module):
    """Mean over the positions of a map, then a frozen norm if the network has one: (B, C, H, W) -> (B, C)."""

    def __init__(self, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.norm = (norm or nn.Identity()).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.mean(dim=(2, 3)))


class StageTail(nn.Module):
    """The last stage of a convolutional network and its pooling: feature map (B, C, H, W) -> (B, out_dim).

    The stage stays in evaluation mode for ever: batch normalisation keeps its stored statistics (its gain and bias
    train) and drop-path is off, so no row ever influences another.
    """

    def __init__(self, stage: nn.Module, pool: Pool, out_dim: int) -> None:
        super().__init__()
        self.stage = stage
        self.pool = pool
        self.out_dim = out_dim
        self.train()

    def train(self, mode: bool = True) -> StageTail:
        super().train(mode)
        self.stage.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(self.stage(x))


class AdapterTail(Standardised):
    """Residual MLP on a pooled feature, z = y + W2 gelu(W1 norm(y)), y = gain (x - centre): (B, dim) -> (B, dim).

    W2 starts at zero, so the tail starts as y: the first features are those of the pretrained network, up to `centre` and
    `gain`, which are set once from the training set (`calibrate`) such that an entry of y has mean 0 and variance 1, like the
    output of a transformer's last norm. Without the gain, unit-length features would be drowned by the branch's first steps,
    and a projector's tiny outputs would turn so fast that all embeddings collapse into one direction; without the centre,
    features with a large common part (pixels, activations after a ReLU) would all have nearly the same cosine.

    Parameters
    ----------
    dim
        Length of the feature.
    hidden
        Width of the MLP; by default min(dim, 512).
    seed
        Decides W1 alone; no global random state is read or changed.
    """

    def __init__(self, dim: int, hidden: int | None = None, *, seed: int = 0) -> None:
        super().__init__(dim)
        hidden = hidden or min(dim, 512)
        self.out_dim = dim
        with torch.random.fork_rng(devices=[]):  # the default initialisation draws; it is overwritten below
            self.norm = nn.LayerNorm(dim)  # pooled features differ in scale from encoder to encoder
            self.fc1 = nn.Linear(dim, hidden)
            self.fc2 = nn.Linear(hidden, dim)
        nn.init.normal_(self.fc1.weight, std=dim**-0.5, generator=torch.Generator().manual_seed(seed))
        nn.init.zeros_(self.fc1.bias)
        nn.init.zeros_(self.fc2.weight)
        nn.init.zeros_(self.fc2.bias)

    def calibrate(self, x: Tensor) -> None:
        """Standardise the input by a sample of trunk outputs, (n, dim)."""
        self.fit_standard(x)

    def forward(self, x: Tensor) -> Tensor:
        y = self.standard(x)
        return y + self.fc2(F.gelu(self.fc1(self.norm(y))))
