"""The class prior that a method assumes for its heads, or, where an option says `true_prior`, the one of the true classes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rowssl.clustering.assignment import hungarian
from rowssl.core.errors import InputError


class HeadPrior(nn.Module):
    """A distribution over classifier heads, (C,), that an oracle may overwrite before every epoch.

    Parameters
    ----------
    assumed : Tensor
        (C,) weights, not necessarily of sum 1: what the method takes for granted.
    oracle : bool
        Whether the true classes may be read.
    truth : Tensor or None
        (N,) true classes of the training rows; kept for an oracle only.
    """

    value: Tensor
    truth: Tensor

    def __init__(self, assumed: Tensor, *, oracle: bool, truth: Tensor | None) -> None:
        super().__init__()
        if oracle and truth is None:
            raise InputError("The true_prior oracle needs the true class of every row (oracle_truth).")
        self.oracle = oracle
        self.register_buffer("value", assumed / assumed.sum())
        kept = truth.clone() if oracle and truth is not None else torch.zeros(0, dtype=torch.long)
        self.register_buffer("truth", kept)

    def share(self, heads: Tensor, rows: Tensor, n_old: int) -> Tensor:
        """True share of the rows (n,) of each head, given the heads predicted for them: -> (C,)."""
        return true_prior_of_heads(heads, self.truth[rows], n_old, len(self.value)).to(self.value)


def true_prior_of_heads(heads: Tensor, truth: Tensor, n_old: int, n_classes: int) -> Tensor:
    """Share of the rows that each head should answer for: predicted heads (N,), true classes (N,) -> (C,), sums to 1.

    A known head is its class; novel heads are matched to novel classes by overlap. A head with no class is given half a row,
    so that the logarithm of the prior stays finite.
    """
    true_classes = max(n_classes, int(truth.max()) + 1)
    pairs = torch.bincount(heads * true_classes + truth, minlength=n_classes * true_classes)
    counts = pairs.view(n_classes, true_classes)
    rows, columns = hungarian(counts[n_old:, n_old:])
    size = counts.sum(0).float()
    prior = torch.zeros(n_classes, device=size.device)
    prior[:n_old] = size[:n_old]
    prior[n_old + torch.as_tensor(rows)] = size[n_old + torch.as_tensor(columns)]
    prior = prior.clamp_min(0.5)
    return prior / prior.sum()
