"""Lloyd iterations against naive loops, and the short cuts that must change nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from rowssl.clustering import kmeans as module
from rowssl.clustering.kmeans import Centred, Rows, kmeans, lloyd, nearest, nearest_again, sum_rows


def rows_of(n: int, width: int = 6, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((n, width)).astype(np.float32))


def by_hand(x: Tensor, centers: Tensor) -> tuple[Tensor, Tensor]:
    distance = torch.cdist(x.double(), centers.double()).square()
    return distance.argmin(1), distance.amin(1).float()


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.6, 1.0])
@pytest.mark.parametrize("far", [0.1, 3.0])
def test_after_some_centres_moved_the_nearest_are_those_of_a_full_search(share: float, far: float) -> None:
    x, centers = rows_of(2500), rows_of(40, seed=1)
    norms = x.square().sum(1)
    labels, distance = nearest(x, norms, centers)
    moved = centers + far * (torch.arange(40) < 40 * share)[:, None] * rows_of(40, seed=2)
    found = nearest_again(x, norms, moved, (moved - centers).norm(dim=1), labels, distance)
    expected = by_hand(x, moved)
    assert torch.equal(found[0], expected[0])
    torch.testing.assert_close(found[1], expected[1], atol=1e-4, rtol=1e-4)


def test_few_moved_centres_are_cheaper_than_a_full_search(monkeypatch: pytest.MonkeyPatch) -> None:
    x, centers = rows_of(2500), rows_of(40, seed=1)
    norms = x.square().sum(1)
    labels, distance = nearest(x, norms, centers)
    cells: list[int] = []

    def counted(x: Rows, norms: Tensor, centers: Tensor) -> tuple[Tensor, Tensor]:
        cells.append(len(x) * len(centers))
        return nearest(x, norms, centers)

    monkeypatch.setattr(module, "nearest", counted)
    shift = torch.zeros(40)
    assert nearest_again(x, norms, centers, shift, labels, distance)[0] is labels
    assert not cells
    centers[3] += 0.2
    shift[3] = 0.5
    nearest_again(x, norms, centers, shift, labels, distance)
    assert sum(cells) < 0.2 * len(x) * len(centers)
    cells.clear()
    nearest_again(x, norms, centers, torch.ones(40), labels, distance)
    assert cells == [len(x) * len(centers)]


@pytest.mark.parametrize("k", [3, 60])
def test_iterations_agree_with_a_naive_loop(k: int) -> None:
    x = rows_of(1500)
    start = x[:k].clone()
    centers = start.double()
    for _ in range(12):
        labels = torch.cdist(x.double(), centers).argmin(1)
        centers = torch.stack([x[labels == c].double().mean(0) for c in range(k)])
    found, steps, (labels, distance) = lloyd(x, x.square().sum(1), start, 12, lambda shift: False)
    assert steps == 12
    torch.testing.assert_close(found, centers.float(), atol=1e-4, rtol=1e-4)
    expected = by_hand(x, found)
    assert torch.equal(labels, expected[0])
    torch.testing.assert_close(distance, expected[1], atol=1e-4, rtol=1e-4)


def test_lengths_are_measured_on_the_way() -> None:
    x = rows_of(3000)
    lazy = Centred(x + 2, torch.full((6,), 2.0))
    norms, measured = x.square().sum(1), torch.empty(3000)
    known = lloyd(x, norms, x[:9].clone(), 5, lambda shift: False)
    found = lloyd(lazy, measured, x[:9].clone(), 5, lambda shift: False, measure=True)
    torch.testing.assert_close(measured, norms, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found[0], known[0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("count", [0, 5, 1024, 2500])
def test_rows_are_added_to_their_cluster(count: int) -> None:
    x, labels = rows_of(count), torch.arange(count) % 7
    expected = torch.stack([x[labels == c].double().sum(0) for c in range(7)])
    torch.testing.assert_close(sum_rows(x, labels, 7), expected, atol=1e-4, rtol=1e-5)


def test_a_cluster_that_was_empty_is_where_its_row_is_and_all_others_follow() -> None:
    """The row that fills it is given with a distance of 0; few centres move, so that only these are compared."""
    x = torch.cat([rows_of(400), torch.full((1, 6), 30.0)])
    start = torch.cat([x[:20], torch.full((1, 6), -50.0)])  # nothing is nearest to the last
    for steps in (1, 2, 3, 30):
        centers, _, (labels, distance) = lloyd(x, x.square().sum(1), start.clone(), steps, lambda shift: False)
        expected = by_hand(x, centers)
        assert torch.equal(labels, expected[0])
        torch.testing.assert_close(distance, expected[1], atol=2e-3, rtol=1e-4)
        assert int((labels == 20).sum()) >= 1


def test_pinned_rows_stay_in_their_means_however_few_centres_move() -> None:
    x, pinned = rows_of(900), 3 + rows_of(30, seed=4)
    target = torch.arange(30) % 10
    means = torch.stack([pinned[target == c].mean(0) for c in range(10)])
    weights = means, torch.bincount(target, minlength=60)
    centers, _, (labels, _) = lloyd(x, x.square().sum(1), x[:60].clone(), 100, lambda shift: False, weights)
    assert torch.equal(labels, by_hand(x, centers)[0])
    for c in range(60):
        mine = torch.cat([x[labels == c], pinned[target == c]])
        torch.testing.assert_close(centers[c], mine.double().mean(0).float(), atol=1e-4, rtol=1e-4)


def test_no_rows_leave_the_centres_where_they_are() -> None:
    start = rows_of(4)
    centers, _, (labels, distance) = lloyd(rows_of(0), torch.zeros(0), start.clone(), 3, lambda shift: False)
    assert torch.equal(centers, start)
    assert labels.shape == distance.shape == (0,)


def test_the_least_of_each_row_on_another_device() -> None:
    where, value = module._least(torch.empty(5, 3, device="meta"))
    assert where.shape == value.shape == (5,)


def test_the_centres_that_one_gives_stay_as_they_are() -> None:
    x = rows_of(200)
    given = x[:6].clone()
    found = kmeans(x, 6, init=given)
    assert torch.equal(given, x[:6])
    assert not torch.equal(found.centers, given)
