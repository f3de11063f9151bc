"""k-means on features, from several starts, and on a sample first where there are many rows.

Everything takes NumPy arrays or tensors and computes in float32 on the device of its input; results are tensors there. No
function ever holds an N x K matrix for a large N: rows go through in chunks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rowssl.clustering.assignment import hungarian, knn, sinkhorn
from rowssl.clustering.constrained import (
    FEW_EACH,
    FEW_ROWS,
    KMeansResult,
    as_matrix,
    check_counts,
    drawn_from_few,
    require_finite,
    semi_supervised_kmeans,
)
from rowssl.clustering.lloyd import ENOUGH, inertia_of, lloyd, nearest
from rowssl.clustering.rows import Rows, centred, sample_for, squared_norms
from rowssl.core.console import track
from rowssl.core.errors import InputError

__all__ = ["KMeansResult", "assign", "hungarian", "kmeans", "knn", "semi_supervised_kmeans", "sinkhorn"]
FINE_EACH = 256  # rows of a sample for each cluster, whose centres then need but one look at all rows
FLAT = 1e-3  # of the rows' squared lengths: an inertia below it is summed from differences, on large data too
MANY_TRIALS = 256  # clusters; for more of them seeding would take longer than what follows


def kmeans(
    x: Any,
    k: int,
    *,
    seed: int = 0,
    n_init: int = 10,
    max_iter: int = 100,
    tol: float = 1e-4,
    init: Any = None,
    enough: float = 0.0,
    to_the_end: bool = False,
    backend: str = "auto",
    progress: bool = False,
) -> KMeansResult:
    """Euclidean k-means: greedy k-means++ seeding, Lloyd iterations, the best of `n_init` runs.

    Parameters
    ----------
    x : (N, d) array or tensor
    k : number of clusters, at most N; more clusters than distinct points leave the surplus ones empty.
    seed : run r draws from `np.random.default_rng([seed, r])`, so it does not depend on how many runs there are.
    n_init, max_iter : runs, and iterations of each at most.
    tol : a run stops when the summed squared shift of the centres is at most `tol` times the mean variance of a feature
        (scikit-learn's rule), or when no label changes.
    init : (k, d) start centres; one run from there instead of the seeding.
    enough : an iteration that lowers the inertia by less than this share of it is the last.
    to_the_end : on large data, too, all rows are asked until `tol` or `max_iter` is reached.
    backend : "torch", "faiss" (same seeding, Lloyd iterations by faiss) or "auto", which is torch: from the same seeds
        on two cores faiss reaches the same inertia, but it has no stopping rule and is no faster
        (`benchmarks/clustering.py` prints the ratio).
    progress : show a progress bar over the runs, and over the iterations from `init` and `to_the_end`.

    Notes
    -----
    Seeds are drawn from a few rows (4,096, or 32 for each cluster): more of them leave the inertia as it is. All runs draw
    together, so that one pass over these rows serves the trials of every run; up to 256 clusters that pays for four times as
    many trials as scikit-learn makes, which leave less inertia where clusters are well apart.
    From 62,500 rows (and 80 for each cluster) on, the `n_init` runs are made on the few rows alone, the best of them is where a
    run on a random sample of 25,600 (256 for each cluster, or 64 where there are fewer than 320) starts, and that is where one
    on all rows does: most of its iterations are then saved. In these an iteration that lowers the inertia by less than a
    two-thousandth is the last, whatever `tol` is; and where all rows lie as close to the sample's centres as the sample itself,
    but for a hundredth, one look at them has to do: then the labels are the clusters whose means the centres are, and not
    every row's nearest centre. That leaves about a hundredth more inertia than going on would (0 to 1.4 % where it was tried),
    which is good enough to start or to count from; clusters that are the answer are worth `to_the_end`.
    """
    if backend not in ("auto", "torch", "faiss"):
        raise InputError(f"backend must be auto, torch or faiss, not {backend!r}")
    x = as_matrix(x, "x", finite=backend == "faiss")
    check_counts(len(x), k, n_init, max_iter)
    rules: dict[str, Any] = {"max_iter": max_iter, "tol": tol, "enough": enough}
    draws: dict[str, Any] = {"seed": seed, "n_init": n_init, "progress": progress}
    # The expanded distance ||x||^2 - 2xc + ||c||^2 is accurate when the data lie around zero.
    some = None
    if init is None:
        some = sample_for(len(x), k, seed, FINE_EACH)
        some = sample_for(len(x), k, seed) if some is None else some
    if some is not None:
        rules["enough"] = max(enough, ENOUGH)
        every = max(1, len(some) // max(FEW_ROWS, FEW_EACH * k))
        few = x[some[::every].to(x.device)]
        mean = few.mean(0)
        coarse = _best_run(few.sub_(mean), k, **draws, **rules).centers
        del few
        sample = x[some.to(x.device)].sub_(mean)
        fine = _run(sample, coarse, **rules)
        rules |= {"enough": enough, "progress": progress} if to_the_end else {"expected": fine.inertia / len(sample)}
        del sample
        best = _run(centred(x, mean), fine.centers, backend=backend, **rules)
    elif init is not None:
        mean = x.mean(0)
        given = as_matrix(init, "init")
        if given.shape != (k, x.shape[1]):
            raise InputError(f"init must be {k} x {x.shape[1]}, not {given.shape[0]} x {given.shape[1]}")
        best = _run(centred(x, mean), given - mean, backend=backend, progress=progress, **rules)
    else:
        mean = x.mean(0)
        best = _best_run(centred(x, mean), k, backend=backend, **draws, **rules)
    if not np.isfinite(best.inertia):  # a look at every value before would take as long as a good start
        require_finite(x, "x")
    return replace(best, centers=best.centers + mean)


def _best_run(rows: Rows, k: int, *, seed: int, n_init: int, progress: bool, **rules: Any) -> KMeansResult:
    """The best of `n_init` runs from greedy k-means++ on rows around zero."""
    norms = squared_norms(rows)
    trials = (1 if k > MANY_TRIALS else 4) * (2 + int(np.log(k)))
    seeds = drawn_from_few(rows, norms, k, seed=seed, runs=n_init, trials=trials)
    runs = track(seeds, "k-means", enabled=progress)
    return min((_run(rows, rows[drawn], norms, **rules) for drawn in runs), key=lambda run: run.inertia)


def _run(
    rows: Rows,
    start: Tensor,
    norms: Tensor | None = None,
    *,
    max_iter: int,
    tol: float,
    enough: float = 0.0,
    expected: float = 0.0,
    backend: str = "torch",
    progress: bool = False,
) -> KMeansResult:
    """One run from the given centres on rows around zero; `enough`, `expected` and `progress` as in `lloyd`."""
    lengths = start.new_empty(len(rows)) if norms is None else norms

    def settled(shift: Tensor) -> bool:
        return float(shift.square().sum()) <= tol * float(lengths.double().mean()) / start.shape[1]

    if backend == "faiss":
        centers, n_iter = _faiss_lloyd(rows[:], start, max_iter), max_iter
        lengths = squared_norms(rows) if norms is None else norms
        labels, distance = nearest(rows, lengths, centers)
    else:
        rules: dict[str, Any] = {"enough": enough, "expected": expected, "measure": norms is None, "progress": progress}
        centers, n_iter, (labels, distance) = lloyd(rows, lengths, start, max_iter, settled, **rules)
    inertia = float(distance.double().sum())
    if not enough or inertia < FLAT * float(lengths.double().sum()):  # few digits are left of the expanded distances
        inertia = inertia_of(rows, centers, labels)
    return KMeansResult(centers, labels, inertia, n_iter)


def assign(x: Any, centers: Any, chunk: int | None = None) -> tuple[Tensor, Tensor]:
    """Nearest centre of each row, (N,) int64, and the squared distance to it, (N,), in blocks of `chunk` rows."""
    x, centers = as_matrix(x, "x"), as_matrix(centers, "centers")
    if x.shape[1] != centers.shape[1]:
        raise InputError(f"x has {x.shape[1]} columns and centers {centers.shape[1]}")
    mean = centers.mean(0)
    rows = centred(x, mean)
    return nearest(rows, squared_norms(rows), centers - mean, chunk)


def _faiss_lloyd(x: Tensor, start: Tensor, max_iter: int) -> Tensor:
    """Centres after `max_iter` Lloyd iterations of faiss from the given start."""
    try:
        import faiss
    except ImportError as error:
        raise InputError("backend faiss needs `pip install 'rowssl[cluster]'`") from error
    k, d = start.shape
    model = faiss.Kmeans(d, k, niter=max_iter, nredo=1, min_points_per_centroid=1, max_points_per_centroid=len(x))
    model.train(x.cpu().numpy(), init_centroids=start.cpu().numpy())
    return torch.from_numpy(model.centroids).to(x.device)
