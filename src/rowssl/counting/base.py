"""How many classes there are: several estimators of one kind, each with an interval, and the one `--classes auto` uses.

`hidden` and `density` count clusters in units of known classes, which `hidden` hides in turn; `gcd` and `balanced` search the
k-means that agrees best with the labels; `heads` trains too many heads and drops the idle ones. All work on the encoder's features
before training.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rowssl.core.distributed import device_of
from rowssl.core.errors import InputError
from rowssl.data.feed import Source, let_go, sample_rows

SAMPLE = 20_000  # rows used at the most, drawn evenly so that the labelled share stays what it is
CHUNK = 1024
AUTO = "hidden"  # what `--classes auto` uses; it hands over to `density` where there is nothing to hide
ESTIMATORS = ("hidden", "density", "gcd", "balanced", "heads")


@dataclass(frozen=True)
class CountEstimate:
    """One estimator's answer.

    Attributes
    ----------
    best, low, high
        The number, and an interval around it: low <= best <= high. What it covers is in `docs/counting.md`.
    scores
        The search: what `value` says of each entry of `axis`.
    name, seconds
        Which estimator, and how long it took.
    axis, value
        What the keys and the values of `scores` are.
    marked
        The key of `scores` the estimate was read at.
    note
        One sentence on how sure the estimate is, empty if there is nothing to say.
    """

    best: int
    low: int
    high: int
    scores: dict[int, float]
    name: str = ""
    seconds: float = 0.0
    axis: str = "number of clusters k"
    value: str = "score"
    marked: int | None = None
    note: str = ""

    @property
    def unstable(self) -> bool:
        """Whether the estimate itself says that it may be far off."""
        return self.note.startswith("unstable")


@dataclass(frozen=True)
class CountData:
    """What every estimator sees: unit features, targets below `n_old` or -1, and the range to search."""

    x: Tensor  # (N, d)
    target: np.ndarray  # (N,)
    n_old: int
    low: int
    high: int
    seed: int = 0
    max_classes: int | None = None  # as the user gave it

    @property
    def labelled(self) -> np.ndarray:
        """(N,) mask."""
        return self.target >= 0


@torch.no_grad()
def count_data(
    source: Source, tail: nn.Module, targets: np.ndarray, n_old: int, *, seed: int = 0, max_classes: int | None = None
) -> CountData:
    """Unit features of all rows, or of a sample, computed once for all estimators.

    Parameters
    ----------
    source, tail
        Trunk outputs, and what turns them into features (the encoder's tail before training).
    targets
        (N,) class ids below `n_old`, -1 = unlabelled.
    max_classes
        Upper end of all searches; by default 4 times the known classes, at least 20, at most a quarter of the rows.
    """
    if max_classes is not None and max_classes < max(2, n_old):
        raise InputError(f"--max-classes {max_classes} is less than the {max(2, n_old)} classes there are at least.")
    rows = sample_rows(targets, n_old, SAMPLE, seed)
    device = device_of(tail)
    parts = (rows[begin : begin + CHUNK] for begin in range(0, len(rows), CHUNK))
    chunks = [tail(source.clean(part).to(device)).cpu() for part in parts]
    let_go(source)
    x = F.normalize(torch.cat(chunks).flatten(1).float(), dim=1)
    low = max(2, n_old)
    high = max_classes or max(20, 4 * n_old)
    return CountData(
        x, targets[rows], n_old, low, max(low, min(high, max(2, len(rows) // 4))), seed=seed, max_classes=max_classes
    )


def run_estimator(name: str, data: CountData, *, base: int | None = None) -> CountEstimate:
    """One estimator by name, timed; `base` is the estimate that `heads` doubles."""
    began = time.monotonic()
    if not (data.target < 0).any() and data.n_old:
        what = "every row has a label, so there is no novel class"
        estimate = CountEstimate(data.n_old, data.n_old, data.n_old, {}, note=what)
    elif name == "hidden":
        from rowssl.counting.hidden import hidden

        estimate = hidden(data)
    elif name == "density":
        from rowssl.counting.density import density

        estimate = density(data)
    elif name in ("gcd", "balanced"):
        from rowssl.counting.search import search

        estimate = search(data, balanced=name == "balanced")
    elif name == "heads":
        from rowssl.counting.heads import heads

        estimate = heads(data, base or run_estimator(AUTO, data).best)
    else:
        raise InputError(f"There is no estimator {name!r}: choose among {', '.join(ESTIMATORS)}.")
    low, high = min(estimate.low, estimate.best), max(estimate.high, estimate.best)
    return replace(estimate, low=low, high=high, name=name, seconds=time.monotonic() - began)


def estimate_all(data: CountData, names: Sequence[str] = ESTIMATORS) -> list[CountEstimate]:
    """Every estimator on the same features, the one `--classes auto` uses first; `heads` doubles that one's number."""
    unknown = [name for name in names if name not in ESTIMATORS]
    if unknown:
        raise InputError(f"There is no estimator {unknown[0]!r}: choose among {', '.join(ESTIMATORS)}.")
    first = run_estimator(AUTO, data)
    rest = [run_estimator(name, data, base=first.best) for name in names if name != AUTO]
    return [first, *rest]


@torch.no_grad()
def estimate_classes(
    source: Source, tail: nn.Module, targets: np.ndarray, n_old: int, *, seed: int = 0, max_classes: int | None = None
) -> CountEstimate:
    """The number of classes as `--classes auto` understands it: see `count_data` for the parameters."""
    return run_estimator(AUTO, count_data(source, tail, targets, n_old, seed=seed, max_classes=max_classes))
