"""Scores of heads -> scores of the classes a person made of them: merged ones are summed, split ones divided by direction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

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
        owner = [place for place, group in enumerate(classes) for _ in group]
        self.count = len(classes)
        self.plain = not splits and owner == [leaf.head for leaf in leaves] == list(range(self.count))
        self.register_buffer("heads", torch.tensor([leaf.head for leaf in leaves], dtype=torch.int64))
        self.register_buffer("owner", torch.tensor(owner, dtype=torch.int64))
        self.temperatures = [split.temperature for split in splits]
        for number, split in enumerate(splits):
            self.register_buffer(f"directions{number}", torch.tensor(split.directions))
        # The parts of all splits side by side, and a last column for leaves that went through no more of them. A table of leaves
        # by splits, or of leaves by classes, would grow with the square of a history, which may be a stranger's.
        begin = list(accumulate((len(split.directions) for split in splits), initial=0))
        self.depth = max((len(leaf.path) for leaf in leaves), default=0)
        for level in range(self.depth):
            path = [leaf.path[level : level + 1] for leaf in leaves]
            column = [begin[one[0][0]] + one[0][1] if one else begin[-1] for one in path]
            self.register_buffer(f"column{level}", torch.tensor(column, dtype=torch.int64))

    def forward(self, probability: Tensor, z: Tensor, head: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(B, C), (B, d) -> (B, K), (B,); `head` (B,) takes the place of the most probable one."""
        head = probability.argmax(1) if head is None else head
        if self.plain:
            return probability, head
        heads, owner = self.get_buffer("heads"), self.get_buffer("owner")
        score = probability.index_select(1, heads)
        chosen = (head[:, None] == heads).to(score)
        one = torch.ones_like(score[:, :1])  # `len` would fix the size of the batch in an export
        shares, nearest = [], []
        for number, temperature in enumerate(self.temperatures):
            cosine = z @ self.get_buffer(f"directions{number}").T
            shares.append(F.softmax(cosine / temperature, dim=1))
            nearest.append(F.one_hot(cosine.argmax(1), cosine.shape[1]).to(score))
        share, near = torch.cat([*shares, one], dim=1), torch.cat([*nearest, one], dim=1)
        for level in range(self.depth):
            column = self.get_buffer(f"column{level}")
            score = score * share.index_select(1, column)
            chosen = chosen * near.index_select(1, column)
        nothing = torch.zeros_like(one).repeat(1, self.count)
        return nothing.index_add(1, owner, score), owner.index_select(0, chosen.argmax(1))  # one leaf is chosen
