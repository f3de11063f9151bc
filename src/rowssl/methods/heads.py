"""The heads on the feature z: the cosine classifier f and the projector g, plain or with prototypes on top."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TEMPERATURE = 0.1  # tau_s: turns cosines into probabilities


class CosineClassifier(nn.Module):
    """l2-normalised linear classifier without bias: logits are cosines (Eq. 4's f).

    `gain` and `offset` are buffers, 1 and 0 for a learnt classifier. Written from centroids they make the same layer the
    exact Euclidean nearest-centroid rule: argmin |z - c|^2 = argmax |c| cos(z, c) - |c|^2 / 2 for unit z.

    `slope` and `shift` turn the probability p of the chosen class into how often such an answer is right,
    sigmoid(slope log(p / (1 - p)) + shift), with a pair for every class; 1 and 0 leave p as it is.
    """

    gain: Tensor
    offset: Tensor
    slope: Tensor
    shift: Tensor

    def __init__(self, dim: int, classes: int, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        bound = dim**-0.5  # PyTorch's default for a linear layer
        self.weight = nn.Parameter(torch.empty(classes, dim).uniform_(-bound, bound, generator=generator))
        self.register_buffer("gain", torch.ones(classes))
        self.register_buffer("offset", torch.zeros(classes))
        self.register_buffer("slope", torch.ones(classes))
        self.register_buffer("shift", torch.zeros(classes))
        self.calibrated = False

    def forward(self, z: Tensor) -> Tensor:
        """(B, d) -> (B, C)."""
        scale = self.gain / self.weight.norm(dim=1).clamp_min(1e-12)
        return torch.addmm(self.offset, F.normalize(z, dim=1), (self.weight * scale[:, None]).T)

    def probabilities(self, z: Tensor, temperature: float = TEMPERATURE) -> Tensor:
        """How likely each class is, (B, d) -> (B, C); the entry of the chosen class is its calibrated confidence.

        Where that is lower than the plain probability, a row may sum to less than 1: the rest belongs to no class that is named.
        """
        p = F.softmax(self(z) / temperature, dim=1)
        if not self.calibrated:
            return p
        top, head = p.max(1)
        odds = top.clamp(1e-6, 1 - 1e-6).logit()
        confidence = torch.sigmoid(self.slope[head] * odds + self.shift[head])
        others = p * ((1 - confidence) / (1 - top).clamp_min(1e-6))[:, None]
        others = torch.minimum(others, 0.999 * confidence[:, None])  # the chosen class stays the first
        return torch.where(F.one_hot(head, p.shape[1]).bool(), confidence[:, None], others)

    @torch.no_grad()
    def calibrate(self, slope: Tensor, shift: Tensor) -> None:
        """Set the confidence of every class, (C,) each."""
        self.slope.copy_(slope)
        self.shift.copy_(shift)
        self.calibrated = True

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Models saved before confidences were calibrated have no `slope` and `shift`."""
        for name in ("slope", "shift"):
            state_dict.setdefault(prefix + name, getattr(self, name))
        super()._load_from_state_dict(state_dict, prefix, *rest)
        self.calibrated = bool((self.slope != 1).any() or (self.shift != 0).any())

    @torch.no_grad()
    def set_directions(self, centres: Tensor) -> None:
        """Start the learnt classifier at given directions (k-means initialisation)."""
        self.weight.copy_(F.normalize(centres.to(self.weight), dim=1))

    @torch.no_grad()
    def set_centroids(self, centres: Tensor) -> None:
        """Become the nearest-centroid rule for unit features: how non-parametric methods end."""
        norm = centres.to(self.weight).norm(dim=1)
        self.weight.copy_(centres)
        self.gain.copy_(norm)
        self.offset.copy_(-0.5 * norm**2)


class Projector(nn.Module):
    """g: three linear layers with GELU between, truncated-normal weights, l2-normalised output h.

    The weights' standard deviation is the paper's 0.02 at its widths (2048, 2048, 256) and grows as a layer gets narrower, so
    that the length of the output before normalisation is the same. A shorter output would turn faster under the same
    learning rate, faster than the momentum network and the queue can follow, and all embeddings would end in one direction.
    """

    def __init__(
        self, dim: int, *, hidden: int = 2048, out: int = 256, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):  # the default initialisation draws; it is overwritten below
            self.layers = nn.Sequential(
                nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, out)
            )
        for position, paper in ((0, 2048), (2, 2048), (4, 256)):
            layer = self.layers[position]
            assert isinstance(layer, nn.Linear)
            nn.init.trunc_normal_(layer.weight, std=0.02 * (paper / layer.out_features) ** 0.5, generator=generator)
            nn.init.zeros_(layer.bias)

    def forward(self, z: Tensor) -> Tensor:
        """(B, d) -> (B, out), unit rows."""
        return F.normalize(self.layers(z), dim=1)


class PrototypeHead(nn.Module):
    """DINO's head: cosines of the projector's output to many learnt directions (65,536 in the papers), l2-normalised.

    A weight-normalised linear layer whose gains stay 1. With many more directions than dimensions, spread evenly as they
    are at the start, the outputs have nearly the same cosines as the projector's: h -> V h with V^T V close to a multiple
    of the identity. That is why the projector alone is the default.
    """

    def __init__(
        self, dim: int, *, hidden: int = 2048, out: int = 256, outputs: int, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.projector = Projector(dim, hidden=hidden, out=out, generator=generator)
        bound = out**-0.5  # PyTorch's default for a linear layer; only the directions matter
        self.directions = nn.Parameter(torch.empty(outputs, out).uniform_(-bound, bound, generator=generator))

    def forward(self, z: Tensor) -> Tensor:
        """(B, d) -> (B, outputs), unit rows."""
        return F.normalize(self.projector(z) @ F.normalize(self.directions, dim=1).T, dim=1)


def contrastive_head(
    dim: int, *, hidden: int, out: int, outputs: int = 0, generator: torch.Generator | None = None
) -> Projector | PrototypeHead:
    """The projector, with `outputs` prototypes on top where asked for."""
    if outputs:
        return PrototypeHead(dim, hidden=hidden, out=out, outputs=outputs, generator=generator)
    return Projector(dim, hidden=hidden, out=out, generator=generator)
