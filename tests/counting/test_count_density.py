"""The parts of the density estimate: labelled share, agreement, clusters per class, interval; each against a hand count."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.cluster.hierarchy import linkage

from rowssl.clustering.tree import cut, ward_tree
from rowssl.counting.base import CountData
from rowssl.counting.density import Level, density, labelled_share, level, simulate, solve


def sphere(sizes: list[int], noise: float, seed: int = 0, dim: int = 24) -> tuple[torch.Tensor, np.ndarray]:
    """Gaussian classes of the given sizes on the sphere, rows in random order."""
    rng = np.random.default_rng(seed)
    truth = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    x = F.normalize(torch.from_numpy(rng.normal(size=(len(sizes), dim))), dim=1).numpy()[truth]
    x = x + noise * rng.normal(size=x.shape) / dim**0.5
    return F.normalize(torch.from_numpy(x).float(), dim=1), truth


def test_the_tree_is_scipys_own():
    x, _ = sphere([40, 30, 700], 0.5)
    np.testing.assert_allclose(ward_tree(x)[:, 2], linkage(x.numpy(), "ward")[:, 2], rtol=1e-3, atol=2e-3)


def test_a_cut_numbers_its_clusters_without_gaps():
    x, truth = sphere([30, 20, 10], 0.2)
    found = cut(ward_tree(x), 3)
    assert sorted(np.unique(found)) == [0, 1, 2]
    assert len({(a, b) for a, b in zip(found, truth, strict=True)}) == 3


@pytest.mark.parametrize(("share", "tolerance"), [(0.1, 0.4), (0.5, 0.15), (0.9, 0.15)])
def test_the_labelled_share_is_read_from_neighbours(share, tolerance):
    x, truth = sphere([120, 100, 80, 60] * 2, 0.7, seed=1)
    rng = np.random.default_rng(2)
    target = np.where((truth < 4) & (rng.random(len(truth)) < share), truth, -1)
    labels = np.bincount(target[target >= 0], minlength=4)
    found, doubt = labelled_share(x, target, 4)
    assert (labels / found).sum() == pytest.approx(360, rel=tolerance)
    assert abs(np.log((labels / found).sum() / 360)) < 3 * doubt + 0.05


def test_the_share_of_a_class_may_differ_from_the_others():
    x, truth = sphere([150, 150, 150, 150], 0.6, seed=3)
    rng = np.random.default_rng(4)
    rate = np.array([0.9, 0.2, 0.0, 0.0])[truth]
    target = np.where(rng.random(len(truth)) < rate, truth, -1)
    share, _ = labelled_share(x, target, 2)
    assert share[0] > 0.7
    assert share[1] < 0.4


def test_more_known_rows_than_rows_are_impossible():
    x, truth = sphere([50, 50], 2.0, seed=5)  # one cloud: neighbours say nothing
    target = np.where(np.arange(100) % 4 == 0, truth, -1)
    labels = np.bincount(target[target >= 0], minlength=2)
    assert (labels / labelled_share(x, target, 2)[0]).sum() <= 100 + 1e-6


def test_agreement_and_clusters_per_class_by_hand():
    # Class 0 (4 rows, all labelled) is split in two; class 1 (2 labelled rows of 4) shares a cluster with 4 novel rows.
    cluster = np.array([0, 0, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2])
    target = np.array([0, 0, 0, 0, 1, 1, -1, -1, -1, -1, -1, -1])
    found = level(cluster, target, np.array([4.0, 4.0]))
    recall = ((2 + 2) / 12 + 1.0) / 2  # pairs of distinct labelled rows that stayed together
    precision = (1.0 + 4 / 8) / 2  # of 8 in the cluster, the row itself and its share of class 1's 3 others: 1 + 1 * 3
    assert found.k == 3
    assert found.agreement == pytest.approx(2 * recall * precision / (recall + precision))
    np.testing.assert_allclose(found.held, [2.0, 0.5])  # two clusters; half of one
    assert found.classes() == pytest.approx(2 * 3 / 2.5)


def test_unlabelled_cluster_mates_cost_precision():
    target = np.array([0, 0, 1, 1, -1, -1, -1, -1])
    sizes = np.array([2.0, 2.0])
    apart = level(np.array([0, 0, 1, 1, 2, 2, 2, 2]), target, sizes)
    together = level(np.array([0, 0, 1, 1, 0, 0, 1, 1]), target, sizes)
    assert apart.agreement == pytest.approx(1.0)
    assert together.agreement < 0.8  # the labels alone could not tell the two apart


def test_no_cluster_left_means_no_novel_class():
    assert Level(10, 1.0, np.full(10, 1.2)).classes() == 10


def test_the_interval_grows_with_the_difference_between_classes():
    rng = np.random.default_rng(0)
    alike, unlike = np.full(20, 1.0), np.concatenate([np.full(10, 0.2), np.full(10, 1.8)])
    narrow = simulate([Level(40, 0.9, alike)], 0.0, rng)
    wide = simulate([Level(40, 0.9, unlike)], 0.0, rng)
    unsure = simulate([Level(40, 0.9, alike)], 0.3, rng)
    np.testing.assert_allclose(narrow, 40, atol=1e-6)
    assert abs(np.median(wide) - 40) < 3
    for draws in (wide, unsure):
        assert np.ptp(np.quantile(draws, [0.1, 0.9])) > 5
    assert unsure.min() >= 20  # never below the known classes


def test_bisection_finds_roots_and_stops_at_ends():
    roots = solve(lambda s: s - np.array([0.25, 5.0, 1e-9]), np.full(3, 0.01), np.ones(3))
    np.testing.assert_allclose(roots, [0.25, 1.0, 0.01], rtol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_head_and_tail_classes_are_counted_among_known_and_novel(seed):
    sizes = [90, 40, 18, 8, 4] * 4
    x, truth = sphere(sizes, 0.6, seed=seed, dim=32)
    rng = np.random.default_rng(seed)
    target = np.where((truth < 10) & (rng.random(len(truth)) < 0.5), truth, -1)
    present = np.unique(target[target >= 0])
    place = np.full(21, -1)
    place[present] = np.arange(len(present))
    found = density(CountData(x, place[target], len(present), len(present), 80))
    assert 15 <= found.best <= 26
    assert found.low <= 21
    assert found.high >= 19
    assert found.scores[found.marked or 0] == max(found.scores.values())
