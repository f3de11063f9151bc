"""Hidden labels that judge a training as it goes: the last state before they say that it does harm is the one that is kept.

A part of the labels is held back. After every epoch the balanced accuracy of their rows is looked at, and the state is stored
while it is within one standard error of the best so far. What is stored is in buffers of the method, so that a run that was
killed goes on with the same judgement.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from rowssl.data.feed import Feed
    from rowssl.methods.base import Method

LEFT = 2  # labels that every class keeps


def held_back(targets: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Rows (n,), in order, of so large a share of the labels of every class, (N,) with -1 for unlabelled; two are left to it."""
    rng = np.random.default_rng([seed, 52])
    found = [np.zeros(0, dtype=np.int64)]
    for one in np.unique(targets[targets >= 0]):
        rows = rng.permutation(np.flatnonzero(targets == one))
        found.append(rows[: max(0, min(round(share * len(rows)), len(rows) - LEFT))])
    return np.sort(np.concatenate(found))


class Kept(nn.Module):
    """The state of tail and classifier that the hidden labels speak for.

    Parameters
    ----------
    method
        Whose state it is.
    rows, classes
        The rows that are hidden, (n,), and their classes, (n,).
    """

    best: Tensor  # () the best balanced accuracy so far, -1 before the first
    epoch: Tensor  # () epochs that were done when the state was stored

    def __init__(self, method: Method, rows: np.ndarray, classes: np.ndarray) -> None:
        super().__init__()
        self.rows, self.classes = rows, torch.from_numpy(np.asarray(classes, dtype=np.int64))
        self.register_buffer("best", torch.tensor(-1.0, dtype=torch.float64))
        self.register_buffer("epoch", torch.tensor(0))
        for name, value in state_of(method).items():
            self.register_buffer(name.replace(".", "/"), value.detach().clone())

    @torch.no_grad()
    def look(self, method: Method, feed: Feed, epochs: int) -> float:
        """Judge the state after so many epochs, and store it unless it is worse than the best by more than a standard error."""
        training = method.training
        method.eval()
        heads = torch.cat([method.predict_logits(x).argmax(1).cpu() for _, x in feed.chunks(self.rows)])
        method.train(training)
        score, error = balanced(heads, self.classes)
        if score >= float(self.best) - error:
            self.epoch.fill_(epochs)
            for name, value in state_of(method).items():
                getattr(self, name.replace(".", "/")).copy_(value)
        self.best.clamp_(min=score)
        return score

    @torch.no_grad()
    def put_back(self, method: Method) -> None:
        """Give the method the state that was stored."""
        for name, value in state_of(method).items():
            value.copy_(getattr(self, name.replace(".", "/")))


def state_of(method: Method) -> dict[str, Tensor]:
    """What answers depend on: the weights and buffers of tail and classifier."""
    parts = {"tail": method.tail, "classifier": method.classifier}
    return {f"{part}.{name}": value for part, module in parts.items() for name, value in module.state_dict().items()}


def balanced(heads: Tensor, classes: Tensor) -> tuple[float, float]:
    """Mean recall of the classes that are there, and its standard error: (n,), (n,)."""
    right = torch.bincount(classes, (heads == classes).double())
    size = torch.bincount(classes)
    recall, rows = (right / size.clamp_min(1))[size > 0], size[size > 0]
    error = float((recall * (1 - recall) / rows).sum().sqrt()) / len(rows)
    pooled = float(recall.mean())
    # A class of one row says nothing of its spread: never less than that of as many rows of one kind.
    return pooled, max(error, (pooled * (1 - pooled) / len(classes)) ** 0.5)
