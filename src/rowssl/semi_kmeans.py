"""Semi-supervised k-means, and the seeding and Lloyd iterations it shares with plain k-means.

Rows may be pinned to a cluster: they enter every centre by their sum and count, which never change. Plain k-means pins
nothing. `rowssl.cluster` is the public face of this module.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rowssl.centred import Rows, centred, factor, sample_for, squared_norms, surplus
from rowssl.errors import InputError
from rowssl.progress import track

BLOCK_CELLS = 2**22  # floats that one block of distances may hold: 16 MB, and as fast as any larger block
SMALL_CELLS = 2**18
BLOCK_ROWS = 256  # that are made float64 at a time
ENOUGH = 5e-4  # share of the inertia: an iteration on large data that lowers it by less is the last
CLOSE = 0.01  # share by which all rows may be farther from a sample's centres than the sample
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
    progress: bool = False,
) -> KMeansResult:
    """k-means in which labelled rows stay with their class, as in generalised category discovery.

    Parameters
    ----------
    x : (N, d) array or tensor
    targets : (N,) class id of a labelled row, -1 for an unlabelled one. Cluster c of the result is class c.
    k : number of clusters, known and novel together.
    tol : a run stops when the squared sum of the centres' shifts is below it, or when no label changes.

    Notes
    -----
    Known centres start as class means, the others by plain k-means++ on the unlabelled rows. Every step can only lower
    the inertia (labelled and unlabelled rows together), so the last iterate of a run is its best. Labels come in the
    order of the rows of `x`. A class id below the largest one that has no labelled row is a free cluster. Large data are
    treated as by `rowssl.cluster.kmeans`: starts are tried on a sample.
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
    sums = x.new_zeros((k, x.shape[1]), dtype=torch.float64)
    _accumulate(sums, pinned, target[known_rows])
    counts = torch.bincount(target[known_rows], minlength=k)
    known = counts > 0
    n_free = k - int(known.sum())
    if n_free > len(free_rows):
        raise InputError(f"k={k} asks for {n_free} novel clusters, but there are {len(free_rows)} unlabelled rows")
    norms = squared_norms(free_rows)
    class_means = (sums / counts.clamp(min=1)[:, None]).float()
    start = class_means.clone()

    def settled(shift: Tensor) -> bool:
        return float(shift.sum()) ** 2 < tol

    def judged(centers: Tensor, n_iter: int, found: tuple[Tensor, Tensor]) -> KMeansResult:
        free_labels, _ = found
        inertia = inertia_of(free_rows, centers, free_labels) + inertia_of(pinned, centers, target[known_rows])
        labels = target.clone()
        labels[other_rows] = free_labels
        return KMeansResult(centers + mean, labels, inertia, n_iter)

    if n_free == 0:  # nothing is drawn
        return judged(*lloyd(free_rows, norms, start, max_iter, settled, sums, counts))
    base = class_means[known] if bool(known.any()) else None
    some = sample_for(len(free_rows), k, seed)
    if some is not None:  # the best start is found on a sample, with the labelled rows weighed like it
        part = free_rows[some]
        part_norms, share = squared_norms(part), len(some) / len(free_rows)
        seeds = plus_plus(part, part_norms, n_free, seed=seed, runs=n_init, trials=1, base=base)
        best_centers, least = start, float("inf")
        for run in track(range(n_init), "semi-supervised k-means", enabled=progress):
            start[~known] = part[seeds[run]]
            pinned_part = (share * sums, share * counts)
            centers, _, (_, distance) = lloyd(
                part, part_norms, start.clone(), max_iter, settled, *pinned_part, enough=ENOUGH
            )
            pull = float(((class_means - centers).square().sum(1).double() * counts).sum())  # of the labelled rows
            if (inertia := float(distance.double().sum()) + share * pull) < least:
                best_centers, least = centers, inertia
        return judged(*lloyd(free_rows, norms, best_centers, max_iter, settled, sums, counts, ENOUGH))
    seeds = plus_plus(free_rows, norms, n_free, seed=seed, runs=n_init, trials=1, base=base)
    best = None
    for run in track(range(n_init), "semi-supervised k-means", enabled=progress):
        start[~known] = free_rows[seeds[run]]
        result = judged(*lloyd(free_rows, norms, start.clone(), max_iter, settled, sums, counts))
        if best is None or result.inertia < best.inertia:
            best = result
    assert best is not None
    return best


def as_matrix(x: Any, name: str) -> Tensor:
    """`x` as a finite float32 (N, d) tensor; copied only when it must be converted."""
    if not isinstance(x, Tensor):
        x = torch.from_numpy(np.require(x, np.float32, ["C", "W"]))
    x = x.detach().float().contiguous()
    if x.ndim != 2 or x.shape[1] == 0:
        raise InputError(f"{name} must be a matrix with one row per sample, not of shape {tuple(x.shape)}")
    bad = (~torch.isfinite(x.sum(1))).nonzero()
    if len(bad):
        raise InputError(f"row {int(bad[0])} of {name} holds a value that is not finite")
    return x


def check_counts(n: int, k: int, n_init: int, max_iter: int) -> None:
    if not 1 <= k <= n:
        raise InputError(f"k={k} clusters cannot be made of {n} rows")
    if n_init < 1 or max_iter < 1:
        raise InputError(f"n_init and max_iter must be at least 1, not {n_init} and {max_iter}")


def nearest(x: Rows, norms: Tensor, centers: Tensor, chunk: int | None = None) -> tuple[Tensor, Tensor]:
    """Index of the nearest centre (N,) and squared distance (N,); `norms` are the squared norms of the rows."""
    cells = min(BLOCK_CELLS, max(SMALL_CELLS, len(x) * centers.shape[1] // 16))  # of few rows a block is small, too
    chunk = chunk or max(256, min(1024, cells // len(centers)))  # larger ones only cost the product's own buffers
    bias, transposed = centers.square().sum(1) + 2 * surplus(x, centers), centers.T
    labels = torch.empty(len(x), dtype=torch.int64, device=centers.device)
    distance = torch.empty_like(norms)
    for i in range(0, len(x), chunk):
        part = torch.addmm(bias, factor(x, slice(i, i + chunk)), transposed, alpha=-2).min(1)
        labels[i : i + chunk] = part.indices
        distance[i : i + chunk] = part.values
    return labels, distance.add_(norms).clamp_(min=0)


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
    everyone, all_rows = torch.arange(runs, device=device), factor(x, slice(None))
    for step in range(k):
        cumulative = closest.double().cumsum(1)
        draws = torch.from_numpy(np.stack([g.random(trials) for g in generators])).to(device)
        rows = torch.searchsorted(cumulative, draws * cumulative[:, -1:], right=True).clamp_(max=n - 1)
        drawn = rows.flatten()
        points = x[drawn]
        distance = (all_rows @ points.T).T.contiguous()  # faster than the product in the other order
        bias = norms[drawn] + 2 * surplus(x, points)
        distance = distance.mul_(-2).add_(norms).add_(bias[:, None]).clamp_(min=0).view(runs, trials, n)
        if step > 0 or base is not None:
            torch.minimum(distance, closest[:, None], out=distance)
        winner = distance.sum(2).argmin(1)
        closest = distance[everyone, winner]
        seeds[:, step] = rows[everyone, winner]
    return seeds


def lloyd(
    x: Rows,
    norms: Tensor,
    centers: Tensor,
    max_iter: int,
    settled: Callable[[Tensor], bool],
    pinned_sums: Tensor | None = None,
    pinned_counts: Tensor | None = None,
    enough: float = 0.0,
    expected: float = 0.0,
) -> tuple[Tensor, int, tuple[Tensor, Tensor]]:
    """Centres after Lloyd iterations until `settled(shift of each centre)`, how many that took, and what is `nearest` to them.

    With `enough`, also when one has lowered the free rows' inertia by less than this share. When a row is on average hardly
    farther from the given centres than `expected`, the rows of the sample that they are the means of, one iteration has to do:
    what is returned beside the means is then what was nearest before it, with distances that have the right sum.
    """
    k = len(centers)
    sums = centers.new_zeros(centers.shape, dtype=torch.float64) if pinned_sums is None else pinned_sums.clone()
    labels = torch.full((len(x),), -1, dtype=torch.int64, device=centers.device)
    before = float("inf")
    for step in range(1, max_iter + 1):
        new, distance = nearest(x, norms, centers)
        now = float(distance.double().sum()) if enough else 0.0
        if enough and now > (1 - enough) * before:
            return centers, step, (new, distance)
        before = now
        rows = (new != labels).nonzero()[:, 0]
        if step > 1 and len(rows) == 0:
            return centers, step, (new, distance)
        if step > 1:
            _accumulate(sums, x, labels, rows, sign=-1)
        _accumulate(sums, x, new, rows)
        labels = new
        counts = torch.bincount(labels, minlength=k)
        if pinned_counts is not None:
            counts = counts + pinned_counts
        if bool((counts == 0).any()):
            _fill_empty(x, centers, labels, distance, sums, counts)
        moved, idle = centers.clone(), counts == 0
        for i in range(0, k, BLOCK_ROWS):
            moved[i : i + BLOCK_ROWS] = sums[i : i + BLOCK_ROWS] / counts[i : i + BLOCK_ROWS, None]
        moved[idle] = centers[idle]
        shift = (moved - centers).norm(dim=1)
        centers = moved
        if now and now <= (1 + CLOSE) * expected * len(x):
            return centers, step, (labels, distance - shift.square()[labels])  # the mean takes |shift|^2 off every row
        if settled(shift):
            break
    return centers, step, nearest(x, norms, centers)


def _fill_empty(x: Rows, centers: Tensor, labels: Tensor, distance: Tensor, sums: Tensor, counts: Tensor) -> None:
    """Give each empty cluster the row farthest from its centre, in place; no row that is alone or on its centre."""
    # Of the rows passed over at most one per cluster is alone, so 2k rows are enough.
    rows = distance.argsort(descending=True, stable=True)[: 2 * len(centers)]
    exact = (x[rows] - centers[labels[rows]]).square().sum(1)
    donors = iter([(row, d) for row, d in zip(rows.tolist(), exact.tolist(), strict=True) if d > 0])
    for cluster in (counts == 0).nonzero()[:, 0].tolist():
        row = next((row for row, _ in donors if int(counts[labels[row]]) > 1), None)
        if row is None:
            return  # fewer distinct points than clusters: the centre stays where it is
        sums[labels[row]] -= x[row].double()
        counts[labels[row]] -= 1
        sums[cluster] = x[row].double()
        counts[cluster] = 1
        labels[row] = cluster


def _accumulate(sums: Tensor, x: Rows, labels: Tensor, rows: Tensor | None = None, sign: int = 1) -> None:
    """Add (or subtract) rows of `x` to the float64 sum (k, d) of their cluster, in blocks."""
    count = len(x) if rows is None else len(rows)
    for i in range(0, count, BLOCK_ROWS):
        block = slice(i, i + BLOCK_ROWS) if rows is None else rows[i : i + BLOCK_ROWS]
        sums.index_add_(0, labels[block], x[block].double(), alpha=sign)


def inertia_of(x: Rows, centers: Tensor, labels: Tensor) -> float:
    """Summed squared distance to the assigned centre, by differences and in float64 over rows."""
    distance = centers.new_empty(len(x))
    for i in range(0, len(x), 1024):
        torch.sum((x[i : i + 1024] - centers[labels[i : i + 1024]]).square(), 1, out=distance[i : i + 1024])
    return float(distance.double().sum())
