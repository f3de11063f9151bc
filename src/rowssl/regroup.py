"""Scores of heads -> scores of the classes a person made of them: merged ones are summed, split ones divided by direction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Leaf:
    """What is left of a head after splits: the part of it on one side of each of them, (number of the split, part)."""

    head: int
    path: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Split:
    """One division of a class: unit directions (parts, d), and the temperature that turns cosines into shares."""

    directions: tuple[tuple[float, ...], ...]
    temperature: float


class Regroup(nn.Module):
    """Head probabilities (B, C) and unit features (B, d) -> class scores (B, K) and the class of each row (B,).

    The head with the largest probability decides, and for a split class the nearest direction: merging two classes gives
    exactly their union, and splitting one changes no other. The score of a class is the sum over its leaves, a leaf's being the
    head's probability times the share of its side in every split it went through. Rows are treated one by one.
    """

    def __init__(self, classes: Sequence[Sequence[Leaf]], splits: Sequence[Split]) -> None:
        super().__init__()
        leaves = [leaf for group in classes for leaf in group]
        owner = torch.tensor([place for place, group in enumerate(classes) for _ in group], dtype=torch.int64)
        self.plain = not splits and owner.tolist() == [leaf.head for leaf in leaves] == list(range(len(classes)))
        self.register_buffer("heads", torch.tensor([leaf.head for leaf in leaves], dtype=torch.int64))
        self.register_buffer("member", F.one_hot(owner, len(classes)).float())
        self.temperatures = [split.temperature for split in splits]
        for number, split in enumerate(splits):
            parts = len(split.directions)
            side = [dict(leaf.path).get(number, parts) for leaf in leaves]  # `parts`: not divided here, the share is 1
            self.register_buffer(f"directions{number}", torch.tensor(split.directions))
            self.register_buffer(f"side{number}", torch.tensor(side, dtype=torch.int64))

    def forward(self, probability: Tensor, z: Tensor, head: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(B, C), (B, d) -> (B, K), (B,); `head` (B,) takes the place of the most probable one."""
        head = probability.argmax(1) if head is None else head
        if self.plain:
            return probability, head
        heads: Tensor = self.get_buffer("heads")
        score = probability.index_select(1, heads)
        chosen = (head[:, None] == heads).to(score)
        one = torch.ones_like(score[:, :1])  # `len` would fix the size of the batch in an export
        for number, temperature in enumerate(self.temperatures):
            side = self.get_buffer(f"side{number}")
            cosine = z @ self.get_buffer(f"directions{number}").T
            share = F.softmax(cosine / temperature, dim=1)
            score = score * torch.cat([share, one], dim=1).index_select(1, side)
            nearest = F.one_hot(cosine.argmax(1), cosine.shape[1]).to(score)
            chosen = chosen * torch.cat([nearest, one], dim=1).index_select(1, side)
        member = self.get_buffer("member")
        return score @ member, (chosen @ member).argmax(1)
