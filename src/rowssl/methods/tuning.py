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
    keep: float = 0.3  # weight of the pretrained parameters in the mean at the end

    def steps_for(self, rows: int) -> int:
        """Steps for so many labelled rows."""
        return int(min(self.most_steps, max(self.steps, self.epochs * math.ceil(rows / self.batch_size))))

    def samples_for(self, labelled: int) -> int:
        """Rows that pass the stage in all trainings: for the answer and for two rehearsals of it."""
        return self.batch_size * (self.steps_for(labelled) + 2 * self.steps_for(round(0.4 * labelled)))


def tune(
    stage: nn.Module,
    feature: Callable[[Tensor], Tensor],
    source: Source,
    target: np.ndarray,
    options: Tuning,
    *,
    rows: np.ndarray | None = None,
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
    """
    rows = np.arange(len(target)) if rows is None else rows
    present, label = np.unique(target[rows], return_inverse=True)
    tuned = copy.deepcopy(stage).requires_grad_(True)
    device = next(tuned.parameters()).device
    label_of = torch.from_numpy(label).to(device)
    prior = torch.bincount(label_of).float().div(len(label)).log()

    def views(batch: np.ndarray) -> Tensor:
        """The clean view or one of the augmented ones, with the same chance each."""
        which = rng.integers(-1, source.n_views, len(batch))
        x, seen = source.clean(rows[batch]), which >= 0
        if seen.any():
            x[torch.from_numpy(seen)] = source.view(rows[batch[seen]], which[seen], 0)
        return x

    with torch.no_grad():
        places = np.array_split(np.arange(len(label)), max(1, len(label) // 64))
        start = torch.cat([feature(tuned(source.clean(rows[part]).to(device))) for part in places])
    mean = start.mean(0)
    directions = torch.zeros(len(present), start.shape[1], device=device).index_add_(0, label_of, start - mean)
    directions = nn.Parameter(F.normalize(directions, dim=1))
    groups = [
        {"params": list(tuned.parameters()), "lr": options.lr},
        {"params": [directions], "lr": HEAD_RATE * options.lr},
    ]
    optimiser = torch.optim.AdamW(groups, weight_decay=0.0)
    steps = options.steps_for(len(rows))
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
            loss = F.cross_entropy(logits, y)
            decay = 0.5 * (1 + math.cos(math.pi * step / steps)) * min(1.0, (step + 1) / max(1.0, WARM_UP * steps))
            for group, rate in zip(optimiser.param_groups, rates, strict=True):
                group["lr"] = rate * decay
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            shown.advance(note=f"loss {float(loss.detach()):.2f}")
    with torch.no_grad():
        for new, old in zip(tuned.parameters(), stage.parameters(), strict=True):
            new.lerp_(old, options.keep)
    return tuned.requires_grad_(False)
