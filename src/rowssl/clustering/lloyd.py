"""Lloyd iterations: who is nearest, the means that follow, again; rows may be pinned to a cluster.

No N x K matrix is ever held: rows go through in blocks. Centres follow from the rows that changed cluster only, and once most
of them stand still, products with those that moved decide nearly every row. Distance bounds (Hamerly) were tried and do not
pay: while any centre moves far, most rows stay in doubt.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rowssl.clustering.rows import MOST_ROWS, SLICE, Rows, block_rows, factor, surplus
from rowssl.core.console import track

ENOUGH = 5e-4  # share of the inertia: an iteration on large data that lowers it by less is the last
CLOSE = 0.01  # share by which all rows may be farther from a sample's centres than the sample


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
    pinned. `norms` (N,), the rows' squared norms, are filled on the way where one is told to `measure` them. `pinned` rows are
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
    where its own moved away from it and none came as near must all be asked.
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
