"""k-means on features, with or without labelled rows: seeding, Lloyd iterations, the best of several starts.

Everything takes NumPy arrays or tensors and computes in float32 on the device of its input; results are tensors there. The
same Lloyd iterations serve both: labelled rows are pinned to their class, and enter its centre by their sum and count, which
never change. No N x K matrix is ever held: rows go through in blocks. Starts are tried on a sample where there are many rows.

Plain k-means is not scikit-learn's because ours is 2 to 4 times as fast with 100 clusters and 1.3 times with 20
(docs/performance.md): all starts draw their seeds together, from a few rows. Its sums are added in a fixed order, whatever the
number of threads.
Distance bounds (Hamerly) were tried and do not pay: while any centre moves far, most rows stay in doubt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rowssl.core.console import track
from rowssl.core.errors import InputError

COPY_VALUES = 3 * 2**20  # floats of a matrix that may be copied: 12 MB
SAMPLE_ROWS, SAMPLE_EACH = 25_600, 64  # starts are tried on so many rows, or so many for each cluster if that is more,
SAMPLE_ABOVE, SAMPLE_FROM = 62_500, 1.25  # where there are so many rows, and so many times as many
BLOCK_CELLS = 2**22  # floats that one block of distances may hold: 16 MB, and as fast as any larger block
SMALL_CELLS = 2**17  # floats that a block of small data may hold: half a MB
MOST_ROWS = 1024  # of a block; larger ones only cost the product's own buffers
SLICE = 128  # rows that are made float64 at a time, and the smallest block
FAR = 8.0  # a mean so many times as long as the rows' spread would cost a product of rows as they are too many digits
FINE_EACH = 256  # rows of a sample for each cluster, whose centres then need but one look at all rows
FLAT = 1e-3  # of the rows' squared lengths: an inertia below it is summed from differences, on large data too
MANY_TRIALS = 256  # clusters; for more of them seeding would take longer than what follows
# So many rows, or so many for each cluster if that is more, are enough to draw seeds from.
FEW_ROWS, FEW_EACH = 4_096, 32
_SEED_CELLS = 2**24  # floats that the seeding may hold for the trials of several runs at once
ENOUGH = 5e-4  # share of the inertia: an iteration on large data that lowers it by less is the last
CLOSE = 0.01  # share by which all rows may be farther from a sample's centres than the sample


@dataclass(frozen=True, eq=False)
class KMeansResult:
    """The best run: centres (k, d) float32, labels (N,) int64, summed squared distance to the centres, iterations."""

    centers: Tensor
    labels: Tensor
    inertia: float
    n_iter: int


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
    to_the_end : on large data, too, iterations over all rows go on until `tol` or `max_iter` is reached.
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
    x = as_matrix(x, "x", finite=False)  # a look at every value would take as long as a good start
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
        best = _run(centred(x, mean), fine.centers, **rules)
    elif init is not None:
        mean = x.mean(0)
        given = as_matrix(init, "init")
        if given.shape != (k, x.shape[1]):
            raise InputError(f"init must be {k} x {x.shape[1]}, not {given.shape[0]} x {given.shape[1]}")
        best = _run(centred(x, mean), given - mean, progress=progress, **rules)
    else:
        mean = x.mean(0)
        best = _best_run(centred(x, mean), k, **draws, **rules)
    if not np.isfinite(best.inertia):
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
    progress: bool = False,
) -> KMeansResult:
    """One run from the given centres on rows around zero; `enough`, `expected` and `progress` as in `lloyd`."""
    lengths = start.new_empty(len(rows)) if norms is None else norms

    def settled(shift: Tensor) -> bool:
        return float(shift.square().sum()) <= tol * float(lengths.double().mean()) / start.shape[1]

    rules: dict[str, Any] = {"enough": enough, "expected": expected, "measure": norms is None, "progress": progress}
    centers, n_iter, (labels, distance) = lloyd(rows, lengths, start, max_iter, settled, **rules)
    inertia = float(distance.double().sum())
    if not enough or inertia < FLAT * float(lengths.double().sum()):  # few digits are left of the expanded distances
        inertia = inertia_of(rows, centers, labels)
    return KMeansResult(centers, labels, inertia, n_iter)


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
    to_the_end, progress : as for `kmeans`.

    Notes
    -----
    Known centres start as class means, the others by plain k-means++ on the unlabelled rows. Every step can only lower
    the inertia (labelled and unlabelled rows together), so the last iterate of a run is its best. Labels come in the
    order of the rows of `x`. A class id below the largest one that has no labelled row is a free cluster. Large data (from
    62,500 rows on, of which 32,000, and 80 for each cluster, are unlabelled) are treated as by `kmeans`: starts
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


def assign(x: Any, centers: Any, chunk: int | None = None) -> tuple[Tensor, Tensor]:
    """Nearest centre of each row, (N,) int64, and the squared distance to it, (N,), in blocks of `chunk` rows."""
    x, centers = as_matrix(x, "x"), as_matrix(centers, "centers")
    if x.shape[1] != centers.shape[1]:
        raise InputError(f"x has {x.shape[1]} columns and centers {centers.shape[1]}")
    mean = centers.mean(0)
    rows = centred(x, mean)
    return nearest(rows, squared_norms(rows), centers - mean, chunk)


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


class Centred:
    """Rows of a matrix minus a mean, computed on access: (N, d) without a copy of it.

    Products need not be made of them: x'c = xc - mc, and `near` says whether that keeps the digits.
    """

    def __init__(self, x: Tensor, mean: Tensor, rows: Tensor | None = None) -> None:
        self.x, self.mean, self.rows = x, mean, rows

    @cached_property
    def near(self) -> bool:
        """Whether the mean is no longer than a few times the spread, by some of the rows."""
        some = torch.arange(0, len(self), max(1, len(self) // 1024), device=self.x.device)
        return bool(
            self.mean.square().sum() <= FAR**2 * self[some].square().sum(1).mean()
        )  # of no rows: no number, False

    def __len__(self) -> int:
        return len(self.x) if self.rows is None else len(self.rows)

    def __getitem__(self, which: slice | Tensor | int) -> Tensor:
        given = self.as_given(which)
        picked = which.ndim > 0 if isinstance(which, Tensor) else self.rows is not None and isinstance(which, slice)
        return given.sub_(self.mean) if picked else given - self.mean  # in place only what is not the matrix itself

    def as_given(self, which: slice | Tensor | int) -> Tensor:
        """Rows as they are in the matrix; numbers of rows count from 0 and are on its device."""
        chosen = which if self.rows is None else self.rows[which]
        if isinstance(chosen, Tensor) and chosen.ndim == 1:
            return self.x.index_select(0, chosen)  # in a third of the time of x[chosen]
        return self.x[chosen]


Rows = Tensor | Centred


def centred(x: Tensor, mean: Tensor, rows: Tensor | None = None) -> Rows:
    """Some rows (or all) minus the mean: in memory, or made block by block where that would take much of it."""
    lazy = Centred(x, mean, rows)
    return lazy if x.numel() > COPY_VALUES else lazy[:]


def factor(x: Rows, which: slice) -> Tensor:
    """What to multiply with centred points in the place of these rows: where it can be the rows as they are, it costs nothing."""
    return x.as_given(which) if isinstance(x, Centred) and x.near else x[which]


def products_of(x: Rows) -> Callable[[Tensor], Tensor]:
    """What takes a few points (k, d) to the products of all rows with them, as those of `factor`, (k, N).

    Rows that are most of a matrix are not copied for it: the products of all its rows are made instead.
    """
    if isinstance(x, Centred) and x.near and x.rows is not None and 2 * len(x.rows) > len(x.x):
        whole, rows = x.x, x.rows
        return lambda points: (whole @ points.T).index_select(0, rows).T.contiguous()
    all_rows = factor(x, slice(None))
    return lambda points: (all_rows @ points.T).T.contiguous()  # faster than the product in the other order


def surplus(x: Rows, points: Tensor) -> Tensor | float:
    """What the products of `factor` with these points (k, d) hold too much, (k,)."""
    return points @ x.mean if isinstance(x, Centred) and x.near else 0.0


def block_rows(n: int, k: int, d: int) -> int:
    """So many of n rows x d, and their distances to k centres, are looked at together: of few rows a block is small, too."""
    cells = min(BLOCK_CELLS, max(SMALL_CELLS, n * d // 16))
    return max(SLICE, min(MOST_ROWS, cells // max(k, d)))


def squared_norms(x: Rows) -> Tensor:
    """(N,), in blocks."""
    first = x[:1]
    norms, size = first.new_empty(len(x)), block_rows(len(x), 1, first.shape[1])
    for i in range(0, len(x), size):  # small results kept between large ones freed would leave holes that nothing fits
        torch.norm(x[i : i + size], dim=1, out=norms[i : i + size])
    return norms.square_()


def sample_for(rows: int, k: int, seed: int, each: int = SAMPLE_EACH, among: int | None = None) -> Tensor | None:
    """Rows on which starts are tried where there are many more than it takes to tell good from bad, in order; else None.

    There are `among` so many rows in all, where only some of them may be drawn.
    """
    return None if (among or rows) < SAMPLE_ABOVE else some_rows(rows, max(SAMPLE_ROWS, each * k), seed)


def some_rows(rows: int, size: int, seed: int) -> Tensor | None:
    """So many rows drawn at random, in order; None where they are nearly all."""
    if rows < SAMPLE_FROM * size:
        return None
    return torch.from_numpy(np.sort(np.random.default_rng([seed, 71]).permutation(rows)[:size]))


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


def lloyd(
    x: Rows,
    norms: Tensor,
    centers: Tensor,
    max_iter: int,
    settled: Callable[[Tensor], bool],
    pinned: tuple[Tensor, Tensor] | None = None,
    enough: float = 0.0,
    expected: float = 0.0,
    measure: bool = False,
    progress: bool = False,
) -> tuple[Tensor, int, tuple[Tensor, Tensor]]:
    """Centres, moved in place by Lloyd iterations until `settled(shift of each)`, how many it took, and what is `nearest` to them.

    With `enough`, also when one has lowered the free rows' inertia by less than this share. When a row is on average hardly
    farther from the given centres than `expected`, the rows of the sample that they are the means of, one iteration has to do:
    what is returned beside the means is then what was nearest before it, with distances that have the right sum where no row is
    pinned. `norms` (N,), the rows' squared norms, are computed on the way with `measure`. `pinned` rows are
    given by the means of those clusters that have any, and by how many each has, (k,).
    """
    k = len(centers)
    sums = centers.new_zeros(centers.shape, dtype=torch.float64)
    if pinned is not None:
        means, weights = pinned
        for one, where in zip(means.split(SLICE), (weights > 0).nonzero()[:, 0].split(SLICE), strict=True):
            sums[where] = one.double().mul_(weights[where, None])

    def meet(block: slice, rows: Tensor, group: Tensor) -> None:
        _add(sums, rows, group)
        if measure:
            norms[block] = rows.norm(dim=1).square_()

    labels, distance = nearest(x, norms, centers, meet=meet)
    before = float(distance.double().sum()) if enough else 0.0
    for step in track(range(1, max_iter + 1), "k-means, iterations at most", enabled=progress):
        counts = torch.bincount(labels, minlength=k)
        if pinned is not None:
            counts = counts + pinned[1]
        filled = bool((counts == 0).any())
        if filled:
            _fill_empty(x, centers, labels, distance, sums, counts)
        shift = _move(centers, sums, counts)
        if before and not filled and before <= (1 + CLOSE) * expected * len(x):
            return centers, step, (labels, distance - shift.square()[labels])  # the mean takes |shift|^2 off every row
        previous = labels
        labels, distance = nearest_again(x, norms, centers, shift, previous, distance)
        rows = (labels != previous).nonzero()[:, 0]
        now = float(distance.double().sum()) if enough else 0.0
        if len(rows) == 0 or settled(shift) or (enough and now > (1 - enough) * before):
            break
        for part in rows.split(block_rows(len(x), *centers.shape)):
            changed = x[part]
            _add(sums, changed, previous[part], sign=-1)
            _add(sums, changed, labels[part])
        before = now
    return centers, step, (labels, distance)


def _move(centers: Tensor, sums: Tensor, counts: Tensor) -> Tensor:
    """Put every centre at the mean of its rows, in place, but for those without any; how far each went, (k,)."""
    shift = torch.empty_like(centers[:, 0])
    for i in range(0, len(centers), SLICE):
        block = slice(i, i + SLICE)
        size = counts[block, None]
        means = torch.where(size > 0, (sums[block] / size).to(centers.dtype), centers[block])
        shift[block] = (means - centers[block]).norm(dim=1)
        centers[block] = means
    return shift


def nearest(
    x: Rows,
    norms: Tensor,
    centers: Tensor,
    chunk: int | None = None,
    meet: Callable[[slice, Tensor, Tensor], None] | None = None,
) -> tuple[Tensor, Tensor]:
    """Index of the nearest centre (N,) and squared distance (N,); `norms` are the squared norms of the rows.

    `meet` is called with every block, its rows and what is nearest to them, while they are at hand.
    """
    chunk = chunk or block_rows(len(x), *centers.shape)
    bias, transposed = centers.norm(dim=1).square_(), centers.T
    if meet is None:
        bias += 2 * surplus(x, centers)
    labels = torch.empty(len(x), dtype=torch.int64, device=centers.device)
    distance = torch.empty_like(norms)
    cells = centers.new_empty(min(chunk, len(x)), len(centers))  # the same pages for every block
    for i in range(0, len(x), chunk):
        block = slice(i, i + chunk)
        rows = factor(x, block) if meet is None else x[block]
        part = torch.addmm(bias, rows, transposed, alpha=-2, out=cells[: len(rows)])
        labels[block], distance[block] = _least(part)
        if meet is not None:
            meet(block, rows, labels[block])
    return labels, distance.add_(norms).clamp_(min=0)


def nearest_again(
    x: Rows, norms: Tensor, centers: Tensor, shift: Tensor, labels: Tensor, distance: Tensor
) -> tuple[Tensor, Tensor]:
    """As `nearest`, given what was nearest before the centres moved by `shift` (k,).

    A row is no nearer to a centre that stands still than it was. So its nearest is among those that moved, or its own; only
    where its own moved away from it and none came as near are all compared.
    """
    moved = (shift > 0).nonzero()[:, 0]
    if len(moved) == 0:
        return labels, distance
    left = (shift > 0)[labels]  # rows whose own centre is not where it was
    if len(moved) / len(centers) + float(left.float().mean()) > 1:
        return nearest(x, norms, centers)
    candidate, least = nearest(x, norms, centers[moved])
    wins = left | (least < distance)
    doubt = (left & (least > distance)).nonzero()[:, 0]
    labels = torch.where(wins, moved[candidate], labels)
    distance = torch.where(wins, least, distance)
    for rows in doubt.split(block_rows(len(x), *centers.shape)):
        labels[rows], distance[rows] = nearest(x[rows], norms[rows], centers)
    return labels, distance


def _least(values: Tensor) -> tuple[Tensor, Tensor]:
    """Position and value of the least of each row, (n, k) -> (n,), (n,)."""
    if values.device.type != "cpu":
        found = values.min(1)
        return found.indices, found.values
    where = torch.from_numpy(values.numpy().argmin(1))  # with vector instructions: a fifth to a half of torch's time
    return where, values.gather(1, where[:, None])[:, 0]


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
        labels[row], distance[row] = cluster, 0.0


def _add(sums: Tensor, rows: Tensor, group: Tensor, sign: int = 1) -> None:
    """Add (or subtract) rows to the float64 sums (k, d) of their clusters."""
    if len(rows) < max(MOST_ROWS, len(sums)):
        for i in range(0, len(rows), SLICE):
            sums.index_add_(0, group[i : i + SLICE], rows[i : i + SLICE].double(), alpha=sign)
    else:  # whole blocks of large data and few clusters in float32 first: a third of the time
        sums.add_(torch.zeros_like(sums, dtype=rows.dtype).index_add_(0, group, rows), alpha=sign)


def sum_rows(x: Rows, labels: Tensor, k: int) -> Tensor:
    """Float64 sums (k, d) of the rows of each cluster."""
    sums = torch.zeros((k, x[:1].shape[1]), dtype=torch.float64, device=labels.device)
    size = block_rows(len(x), *sums.shape)
    for i in range(0, len(x), size):
        _add(sums, x[i : i + size], labels[i : i + size])
    return sums


def inertia_of(x: Rows, centers: Tensor, labels: Tensor) -> float:
    """Summed squared distance to the assigned centre, by differences and in float64 over rows."""
    distance = centers.new_empty(len(x))
    size = block_rows(len(x), 1, centers.shape[1])
    for i in range(0, len(x), size):
        block = slice(i, i + size)
        torch.norm(centers.index_select(0, labels[block]).sub_(x[block]), dim=1, out=distance[block])
    return float(distance.double().square_().sum())
