"""Semi-supervised k-means, and the seeding it shares with plain k-means.

Labelled rows are pinned to their class: they enter its centre by their sum and count, which never change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rowssl.clustering.lloyd import ENOUGH, inertia_of, lloyd, nearest, sum_rows
from rowssl.clustering.rows import Rows, centred, products_of, sample_for, some_rows, squared_norms, surplus
from rowssl.core.console import track
from rowssl.core.errors import InputError

# So many rows, or so many for each cluster if that is more, are enough to draw seeds from.
FEW_ROWS, FEW_EACH = 4_096, 32
_SEED_CELLS = 2**24  # floats that the seeding may hold for the trials of several runs at once


@dataclass(frozen=True, eq=False)
class KMeansResult:
    """The best run: centres (k, d) float32, labels (N,) int64, summed squared distance to the centres, iterations."""

    centers: Tensor
    labels: Tensor
    inertia: float
    n_iter: int


def semi_supervised_kmeans(
    x: Any,
    targets: Any,
    k: int,
    *,
    seed: int = 0,
    n_init: int = 10,
    max_iter: int = 100,
    tol: float = 1e-4,
    to_the_end: bool = False,
    progress: bool = False,
) -> KMeansResult:
    """k-means in which labelled rows stay with their class, as in generalised category discovery.

    Parameters
    ----------
    x : (N, d) array or tensor
    targets : (N,) class id of a labelled row, -1 for an unlabelled one. Cluster c of the result is class c.
    k : number of clusters, known and novel together.
    tol : a run stops when the squared sum of the centres' shifts is below it, or when no label changes.
    to_the_end, progress : as for `kmeans.kmeans`.

    Notes
    -----
    Known centres start as class means, the others by plain k-means++ on the unlabelled rows. Every step can only lower
    the inertia (labelled and unlabelled rows together), so the last iterate of a run is its best. Labels come in the
    order of the rows of `x`. A class id below the largest one that has no labelled row is a free cluster. Large data (from
    62,500 rows on, of which 32,000, and 80 for each cluster, are unlabelled) are treated as by `kmeans.kmeans`: starts
    are tried on a sample, and without `to_the_end` one look at all rows may have to do, after which some of them are not with
    their nearest centre.
    """
    x = as_matrix(x, "x")
    if not isinstance(targets, Tensor):
        targets = torch.from_numpy(np.require(targets, np.int64, ["C", "W"]))
    target = targets.to(x.device, torch.int64)
    check_counts(len(x), k, n_init, max_iter)
    if target.shape != (len(x),):
        raise InputError(f"targets must hold one id for each of the {len(x)} rows, not {tuple(target.shape)}")
    if int(target.min()) < -1:
        raise InputError(f"targets must be -1 (unlabelled) or a class id, not {int(target.min())}")
    if int(target.max()) >= k:
        raise InputError(f"k={k} is less than the {int(target.max()) + 1} known classes")
    mean, labelled = x.mean(0), target >= 0
    known_rows, other_rows = labelled.nonzero()[:, 0], (~labelled).nonzero()[:, 0]
    pinned, free_rows = centred(x, mean, known_rows), centred(x, mean, other_rows)
    counts = torch.bincount(target[known_rows], minlength=k)
    known = counts > 0
    n_free = k - int(known.sum())
    if n_free > len(free_rows):
        raise InputError(f"k={k} asks for {n_free} novel clusters, but there are {len(free_rows)} unlabelled rows")
    number = known.cumsum(0) - 1  # of the known classes, without gaps
    class_means = sum_rows(pinned, number[target[known_rows]], k - n_free).div_(counts[known, None]).float()

    def start_at(drawn: Tensor) -> Tensor:
        """Class means, and for the others what a run has drawn, (k, d)."""
        start = drawn.new_empty(k, x.shape[1])
        start[known], start[~known] = class_means, drawn
        return start

    def settled(shift: Tensor) -> bool:
        return float(shift.sum()) ** 2 < tol

    def judged(centers: Tensor, n_iter: int, found: tuple[Tensor, Tensor]) -> KMeansResult:
        free_labels, _ = found
        inertia = inertia_of(free_rows, centers, free_labels) + inertia_of(pinned, centers, target[known_rows])
        labels = target.clone()
        labels[other_rows] = free_labels
        return KMeansResult(centers.add_(mean), labels, inertia, n_iter)

    norms, fixed = mean.new_empty(len(free_rows)), (class_means, counts)
    if n_free == 0:  # nothing is drawn
        start = class_means.clone()
        return judged(*lloyd(free_rows, norms, start, max_iter, settled, fixed, measure=True, progress=progress))
    base = class_means if len(class_means) else None
    some = sample_for(len(free_rows), k, seed, among=len(x))
    if some is not None:  # the best start is found on a sample, with the labelled rows weighed like it
        part = free_rows[some]
        part_norms, share = squared_norms(part), len(some) / len(free_rows)
        seeds = drawn_from_few(part, part_norms, n_free, seed=seed, runs=n_init, trials=1, base=base)

        def tried(drawn: Tensor) -> tuple[float, float, Tensor]:
            """Inertia of a run on the sample with and without that of the labelled rows, and its centres."""
            start, weighed = start_at(part[drawn]), (class_means, share * counts)
            centers, _, (_, distance) = lloyd(part, part_norms, start, max_iter, settled, weighed, enough=ENOUGH)
            pulls = (class_means - centers[known]).square().sum(1).double() * counts[known]  # of the labelled rows
            own = float(distance.double().sum())
            return own + share * float(pulls.sum()), own, centers

        runs = track(seeds, "semi-supervised k-means", enabled=progress)
        _, own, start = min(map(tried, runs), key=lambda run: run[0])
        quick = {"enough": ENOUGH, "expected": own / len(part)}
        rules: dict[str, Any] = {"progress": progress} if to_the_end else quick
        return judged(*lloyd(free_rows, norms, start, max_iter, settled, fixed, measure=True, **rules))
    norms = squared_norms(free_rows)
    seeds = plus_plus(free_rows, norms, n_free, seed=seed, runs=n_init, trials=1, base=base)
    best = None
    for run in track(range(n_init), "semi-supervised k-means", enabled=progress):
        start = start_at(free_rows[seeds[run]])
        result = judged(*lloyd(free_rows, norms, start, max_iter, settled, fixed))
        if best is None or result.inertia < best.inertia:
            best = result
    assert best is not None
    return best


def as_matrix(x: Any, name: str, *, finite: bool = True) -> Tensor:
    """`x` as a (N, d) float32 tensor, which must be `finite`; copied only when it must be converted."""
    if not isinstance(x, Tensor):
        x = torch.from_numpy(np.require(x, np.float32, ["C", "W"]))
    x = x.detach().float().contiguous()
    if x.ndim != 2 or x.shape[1] == 0:
        raise InputError(f"{name} must be a matrix with one row per sample, not of shape {tuple(x.shape)}")
    if finite:
        require_finite(x, name)
    return x


def require_finite(x: Tensor, name: str) -> None:
    """An InputError names the first row with a value that is none."""
    bad = (~torch.isfinite(x.sum(1))).nonzero()
    if len(bad):
        raise InputError(f"row {int(bad[0])} of {name} holds a value that is not finite")


def check_counts(n: int, k: int, n_init: int, max_iter: int) -> None:
    if not 1 <= k <= n:
        raise InputError(f"k={k} clusters cannot be made of {n} rows")
    if n_init < 1 or max_iter < 1:
        raise InputError(f"n_init and max_iter must be at least 1, not {n_init} and {max_iter}")


def drawn_from_few(x: Rows, norms: Tensor, k: int, *, seed: int, **how: Any) -> Tensor:
    """As `plus_plus`, from a few of many rows: more of them leave the inertia as it is."""
    few = some_rows(len(x), max(FEW_ROWS, FEW_EACH * k), seed)
    if few is None:
        return plus_plus(x, norms, k, seed=seed, **how)
    few = few.to(norms.device)
    return few[plus_plus(x[few], norms[few], k, seed=seed, **how)]


def plus_plus(
    x: Rows, norms: Tensor, k: int, *, seed: int, runs: int, trials: int, base: Tensor | None = None
) -> Tensor:
    """Rows (runs, k) of `x` drawn with probability proportional to the squared distance to the nearest centre so far.

    This is k-means++; of `trials` draws the one that lowers the inertia most is kept. `base` (m, d) are centres that
    exist already. Runs advance together as far as memory allows, because one pass over `x` can serve all of them.
    """
    together = max(1, min(runs, _SEED_CELLS // max(1, trials * len(x))))
    seeds = [
        _plus_plus_together(x, norms, k, [np.random.default_rng([seed, r]) for r in group], trials, base)
        for group in (range(i, min(i + together, runs)) for i in range(0, runs, together))
    ]
    return torch.cat(seeds)


def _plus_plus_together(
    x: Rows, norms: Tensor, k: int, generators: list[np.random.Generator], trials: int, base: Tensor | None
) -> Tensor:
    """Row numbers (runs, k) of the seeds of several runs, one run per generator; all runs share each pass over `x`."""
    n, runs, device = len(x), len(generators), norms.device
    seeds = torch.zeros((runs, k), dtype=torch.int64, device=device)
    closest = norms.new_full((runs, n), 1.0)  # before there is any centre, every row is as likely
    if base is not None:
        closest = nearest(x, norms, base)[1].repeat(runs, 1)
    everyone, products = torch.arange(runs, device=device), products_of(x)
    for step in range(k):
        cumulative = closest.double().cumsum(1)
        draws = torch.from_numpy(np.stack([g.random(trials) for g in generators])).to(device)
        rows = torch.searchsorted(cumulative, draws * cumulative[:, -1:], right=True).clamp_(max=n - 1)
        drawn = rows.flatten()
        points = x[drawn]
        distance = products(points)
        bias = norms[drawn] + 2 * surplus(x, points)
        distance = distance.mul_(-2).add_(norms).add_(bias[:, None]).clamp_(min=0).view(runs, trials, n)
        if step > 0 or base is not None:
            torch.minimum(distance, closest[:, None], out=distance)
        winner = distance.sum(2).argmin(1)
        closest = distance[everyone, winner]
        seeds[:, step] = rows[everyone, winner]
    return seeds
