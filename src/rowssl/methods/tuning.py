"""The last stage of a pretrained network, trained for seconds on the labelled pictures alone, before `transfer` reads it out.

Cross-entropy of a cosine classifier with logit adjustment (the class sizes among the labels are no prior of the world), from a
cache of the stage's input; then a mean of the weights before and after, since what the stage knew of other classes must not
be lost: docs/methods/transfer.md.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rowssl.core.console import bar
from rowssl.data.feed import Source

SCALE = 16.0  # of the cosine classifier
HEAD_RATE = 10.0  # times the rate of the stage
WARM_UP = 0.1  # of the steps


@dataclass(frozen=True)
class Tuning:
    """How the stage is trained."""

    epochs: float = 10.0
    steps: int = 40  # at least
    most_steps: int = 400
    batch_size: int = 32
    lr: float = 3e-4
    smoothing: float = 0.1  # of the targets, where some of them are guesses
    guess_steps: int = 40  # at least, where guesses are learnt
    keep: float = 0.3  # weight of the pretrained parameters in the mean at the end

    def steps_for(self, rows: int) -> int:
        """Steps for so many labelled rows."""
        return int(min(self.most_steps, max(self.steps, self.epochs * math.ceil(rows / self.batch_size))))

    def steps_with_guesses(self, rows: int) -> int:
        """Steps where guesses are learnt, too, for so many rows in all: they go on from the stage that made the guesses."""
        return int(min(self.most_steps, max(self.guess_steps, math.ceil(rows / (2 * self.batch_size)))))

    def samples_for(self, labelled: int, rows: int) -> int:
        """Rows that pass the stage in all trainings: on labels and on guesses, for the answer and for two rehearsals of it."""
        on_labels = self.steps_for(labelled) + 2 * self.steps_for(round(0.4 * labelled))
        return self.batch_size * (on_labels + 3 * self.steps_with_guesses(rows))


class Guessed(NamedTuple):
    """Rows without a label that a first answer is sure of."""

    source: Source  # of all rows
    rows: np.ndarray
    label: np.ndarray


def tune(
    stage: nn.Module,
    feature: Callable[[Tensor], Tensor],
    source: Source,
    target: np.ndarray,
    options: Tuning,
    *,
    rows: np.ndarray | None = None,
    guessed: Guessed | None = None,
    begin: nn.Module | None = None,
    seed: int = 0,
    progress: bool = True,
    what: str = "tuning the last stage",
) -> nn.Module:
    """A trained copy of `stage`.

    Parameters
    ----------
    stage
        What the trunk's outputs go through; a row must not depend on others (batch normalisation in evaluation mode).
    feature
        Outputs of the stage (B, D) -> unit rows, as the method will use them.
    source, target, rows
        Trunk outputs of the labelled pictures with their views, their classes, and which of them to use (all by default).
    begin
        A stage tuned before, to go on from.
    guessed
        Further rows whose classes are guesses, in the same numbers; only their clean view is used.
    """
    rows = np.arange(len(target)) if rows is None else rows
    known = len(rows)
    classes = target[rows] if guessed is None else np.concatenate([target[rows], guessed.label])
    present, label = np.unique(classes, return_inverse=True)
    tuned = copy.deepcopy(begin or stage).requires_grad_(True)
    device = next(tuned.parameters()).device
    label_of = torch.from_numpy(label).to(device)
    prior = torch.bincount(label_of).float().div(len(label)).log()

    def clean(batch: np.ndarray) -> Tensor:
        """Clean trunk outputs by place: first the labelled rows, then those with a guess."""
        mine = source.clean(rows[batch[batch < known]])
        if guessed is None:
            return mine
        x = mine.new_empty(len(batch), *mine.shape[1:])
        x[torch.from_numpy(batch < known)] = mine
        x[torch.from_numpy(batch >= known)] = guessed.source.clean(guessed.rows[batch[batch >= known] - known])
        return x

    def views(batch: np.ndarray) -> Tensor:
        """The clean view or, of labelled rows, one of the augmented ones, with the same chance each."""
        which = rng.integers(-1, source.n_views, len(batch))
        seen = (which >= 0) & (batch < known)
        x = clean(batch)
        if seen.any():
            x[torch.from_numpy(seen)] = source.view(rows[batch[seen]], which[seen], 0)
        return x

    with torch.no_grad():
        places = np.array_split(np.arange(len(label)), max(1, len(label) // 64))
        start = torch.cat([feature(tuned(clean(part).to(device))) for part in places])
    mean = start.mean(0)
    directions = torch.zeros(len(present), start.shape[1], device=device).index_add_(0, label_of, start - mean)
    directions = nn.Parameter(F.normalize(directions, dim=1))
    groups = [
        {"params": list(tuned.parameters()), "lr": options.lr},
        {"params": [directions], "lr": HEAD_RATE * options.lr},
    ]
    optimiser = torch.optim.AdamW(groups, weight_decay=0.0)
    steps = options.steps_for(known) if guessed is None else options.steps_with_guesses(len(guessed.source))
    smoothing = 0.0 if guessed is None else options.smoothing
    rates = [group["lr"] for group in optimiser.param_groups]
    rng = np.random.default_rng([seed, 31])
    waiting = np.empty(0, dtype=np.int64)
    with bar(what, steps, enabled=progress) as shown:
        for step in range(steps):
            if len(waiting) < min(options.batch_size, len(label)):
                waiting = np.concatenate([waiting, rng.permutation(len(label))])
            batch, waiting = waiting[: options.batch_size], waiting[options.batch_size :]
            y = label_of[torch.from_numpy(batch).to(device)]
            z = F.normalize(feature(tuned(views(batch).to(device))) - mean, dim=1)
            logits = SCALE * z @ F.normalize(directions, dim=1).T + prior
            loss = F.cross_entropy(logits, y, label_smoothing=smoothing)
            decay = 0.5 * (1 + math.cos(math.pi * step / steps)) * min(1.0, (step + 1) / max(1.0, WARM_UP * steps))
            for group, rate in zip(optimiser.param_groups, rates, strict=True):
                group["lr"] = rate * decay
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            shown.advance(note=f"loss {float(loss.detach()):.2f}")
    if begin is None:  # else the pretrained weights are in it already
        with torch.no_grad():
            for new, old in zip(tuned.parameters(), stage.parameters(), strict=True):
                new.lerp_(old, options.keep)
    return tuned.requires_grad_(False)
