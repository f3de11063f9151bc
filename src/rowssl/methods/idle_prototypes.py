"""Prototypes that rest: those that no key goes to stay where they are (Eq. 8), and are not asked again in every step.

With many classes these are many: of 1,000 prototypes beside a queue of 4,096 some 300, of 8,142 three quarters. What is known of
them changes with the few entries that come and go, so it is kept: for each its nearest entries, and for each entry the nearest
of them. A step multiplies the queue with the other prototypes, of which there are never more than entries, and with the few that
just came to rest; the result is the same.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rowssl.methods.density import nearest_prototype, neighbour_density, neighbour_mean, to_queue

FEW = 5  # entries of the queue for each prototype: where there are more, too few rest to be worth it
NONE = -2.0  # less than any cosine, and a number: weights and memory that are none end a training
STRIDE = 32  # prototypes are asked by so many at once: products of few different sizes, whose code oneDNN keeps


class Resting(nn.Module):
    """What is known of the prototypes that rest; where too few would be worth it, nothing.

    An entry that is not in the list of a resting prototype is no more similar to it than its `floor`. A list has twice as many
    entries as its density needs, because they leave the queue one after the other.
    """

    still: Tensor  # (M,) which prototypes rest
    value: Tensor  # (M, L) similarities of their nearest entries, largest first; NONE where there are fewer
    slot: Tensor  # (M, L) where in the queue these entries are
    floor: Tensor  # (M,)
    best: Tensor  # (Q,) similarity of each entry to the nearest prototype that rests; NONE where none does
    which: Tensor  # (Q,) and which it is

    def __init__(self, prototypes: int, queue: int, k: int) -> None:
        super().__init__()
        self.k, kept = k, 2 * k + 2
        self.worth_it = prototypes > STRIDE and 4 * kept <= queue <= FEW * prototypes
        if self.worth_it:
            self.register_buffer("still", torch.zeros(prototypes, dtype=torch.bool))
            self.register_buffer("value", torch.full((prototypes, kept), NONE))
            self.register_buffer("slot", torch.zeros(prototypes, kept, dtype=torch.int32))
            self.register_buffer("floor", torch.zeros(prototypes))
            self.register_buffer("best", torch.full((queue,), NONE))
            self.register_buffer("which", torch.zeros(queue, dtype=torch.long))

    @property
    def count(self) -> int:
        """How many prototypes rest."""
        return int(self.still.sum()) if self.worth_it else 0

    def ask(self, prototypes: Tensor, keys: Tensor, weighting: str, scale: str) -> tuple[Tensor, Tensor]:
        """Density d_j of every prototype, Eq. (6), (M,), and the nearest prototype of every entry of the queue, (Q,)."""
        how = {"weighting": weighting, "scale": scale}
        resting = self.count
        if resting < STRIDE:
            similarity = to_queue(prototypes, keys)
            return neighbour_density(similarity, self.k, **how), nearest_prototype(similarity)
        moving = len(prototypes) - resting
        asked = self.still.argsort(stable=True)[: moving + -moving % STRIDE]
        similarity = to_queue(prototypes[asked], keys)
        density = neighbour_mean(self.value[:, : self.k], **how)
        density[asked] = neighbour_density(similarity, self.k, **how)
        nearest = nearest_prototype(similarity)
        value, nearest = similarity.T.gather(1, nearest[:, None])[:, 0], asked[nearest]
        return density, torch.where(self.best > value, self.which, nearest)

    def follow(self, prototypes: Tensor, keys: Tensor, slots: Tensor, new: Tensor, still: Tensor) -> None:
        """After new entries took their `slots` (B,) in the full queue `keys` (Q, d), and before the prototypes move.

        `new` (M, B) are the similarities of these entries, `still` (M,) says which prototypes will not move.
        """
        stays, ended, began = self.still & still, self.still & ~still, still & ~self.still
        self.still.copy_(still)
        rows = stays.nonzero()[:, 0]
        asked = torch.cat([began.nonzero()[:, 0], rows[~self._renew(rows, slots, new[rows])]])

        lost = ended[self.which] & (self.best > NONE)
        lost[slots] = False
        self._take(slots, rows, new[rows])
        entries = lost.nonzero()[:, 0]
        self._take(entries, rows, to_queue(prototypes[rows], keys[entries]))

        if len(asked):
            similarity = to_queue(prototypes[asked], keys)
            top = similarity.topk(self.value.shape[1], dim=1)
            self.value[asked], self.slot[asked], self.floor[asked] = top.values, top.indices.int(), top.values[:, -1]
            value, nearest = similarity.max(0)
            wins = value > self.best
            self.best.copy_(torch.where(wins, value, self.best))
            self.which.copy_(torch.where(wins, asked[nearest], self.which))

    def _take(self, entries: Tensor, rows: Tensor, similarity: Tensor) -> None:
        """Of prototypes that rest, `rows` (R,), the nearest to these entries (n,), by their similarities (R, n)."""
        if len(rows):
            self.best[entries], nearest = similarity.max(0)
            self.which[entries] = rows[nearest]
        else:
            self.best[entries] = NONE

    def _renew(self, rows: Tensor, slots: Tensor, came: Tensor) -> Tensor:
        """Let what has left the queue out of the lists of these prototypes and take in what came, (R, B); which are long enough."""
        gone = torch.zeros(len(self.best), dtype=torch.bool, device=slots.device)
        gone[slots] = True
        slot, floor = self.slot[rows], self.floor[rows]
        kept = self.value[rows].masked_fill_(gone[slot], NONE)
        came = came.masked_fill(came <= floor[:, None], NONE)
        top = torch.cat([kept, came], dim=1).topk(kept.shape[1], dim=1)
        self.value[rows] = top.values
        self.slot[rows] = torch.cat([slot, slots.int().expand(len(rows), -1)], dim=1).gather(1, top.indices)
        self.floor[rows] = torch.maximum(floor, top.values[:, -1])
        return top.values[:, self.k - 1] > NONE
