"""Estimating the number of classes: the estimators on long-tailed problems, their edge cases, and what `fit` uses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from contract.problems import long_tailed
from rowssl.clustering.kmeans import kmeans
from rowssl.clustering.tree import cut
from rowssl.core.errors import InputError
from rowssl.counting import base
from rowssl.counting import search as count_search
from rowssl.counting.base import CountData, CountEstimate, count_data, estimate_all, estimate_classes, run_estimator
from rowssl.counting.search import Clusters, brent, labelled_accuracy, search
from rowssl.data.feed import ArraySource, sample_rows


def blobs(classes: int, rows: int, dim: int = 16, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    truth = rng.permutation(np.arange(rows) % classes)
    centres = rng.normal(size=(classes, dim))
    return (centres[truth] + 0.05 * rng.normal(size=(rows, dim))).astype(np.float32), truth


def prepared(x: np.ndarray, targets: np.ndarray, n_old: int, **more: int) -> CountData:
    return count_data(ArraySource(x), nn.Identity(), targets, n_old, **more)


def ordered(found: CountEstimate) -> None:
    assert found.low <= found.best <= found.high
    assert found.seconds >= 0
    assert found.name


@pytest.mark.parametrize("peak", [2, 3, 17, 40, 60])
def test_the_search_finds_the_peak_of_a_hill(peak):
    tried = []

    def score(k: int) -> float:
        tried.append(k)
        return -abs(k - peak)

    brent(2, 60, score)
    assert peak in tried
    assert all(2 <= k <= 60 for k in tried)
    assert len(set(tried)) <= count_search.EVALUATIONS + 4


def test_labelled_accuracy_by_hand():
    cluster, target = np.array([0, 0, 1, 1, 2]), np.array([1, 1, 0, 1, 0])
    assert labelled_accuracy(cluster, target, k=3, n_old=2) == pytest.approx(3 / 5)
    # class 0 has one of two rows in its best free cluster, class 1 two of three
    assert labelled_accuracy(cluster, target, k=3, n_old=2, balanced=True) == pytest.approx((1 / 2 + 2 / 3) / 2)


def test_the_balanced_objective_is_not_earned_by_the_largest_class():
    target = np.array([0] * 98 + [1, 2])
    merged = np.zeros(100, dtype=int)
    assert labelled_accuracy(merged, target, k=3, n_old=3) == pytest.approx(0.98)
    assert labelled_accuracy(merged, target, k=3, n_old=3, balanced=True) == pytest.approx(1 / 3)


# Within a factor: the searches see labels only through k-means, the density estimate is calibrated by them, and heads
# follows the number of heads it is given (two times the first estimate).
@pytest.mark.parametrize(("name", "factor"), [("density", 1.35), ("gcd", 2.2), ("balanced", 1.6), ("heads", 2.2)])
def test_a_long_tailed_problem_is_counted(name, factor, monkeypatch):
    monkeypatch.setattr("rowssl.counting.heads.EPOCHS", (4, 8))
    problem = long_tailed(800, known=8, novel=8, noise=0.6, seed=3)
    found = run_estimator(name, prepared(problem.embeddings, problem.targets, 8))
    ordered(found)
    assert 16 / factor <= found.best <= 16 * factor
    assert found.name == name
    assert found.scores


def test_well_separated_classes_are_counted_exactly_enough():
    x, truth = blobs(9, 600)
    targets = np.where((truth < 5) & (np.arange(600) % 2 == 0), truth, -1)
    found = estimate_classes(ArraySource(x), nn.Identity(), targets, 5)
    ordered(found)
    assert 8 <= found.best <= 10
    assert found.low <= 9 <= found.high


@pytest.mark.parametrize("name", ["density", "gcd"])
def test_without_labels_the_silhouette_decides(name):
    x, _ = blobs(6, 300)
    found = run_estimator(name, prepared(x, np.full(300, -1), 0))
    ordered(found)
    assert found.value == "silhouette"
    assert 5 <= found.best <= 7


def test_no_novel_class_gives_the_known_number():
    x, truth = blobs(7, 420)
    found = run_estimator("density", prepared(x, np.where(np.arange(420) % 2 == 0, truth, -1), 7))
    assert 7 <= found.best <= 8
    assert found.low == 7


@pytest.mark.parametrize("name", base.ESTIMATORS)
def test_all_rows_labelled_leave_nothing_to_estimate(name):
    x, truth = blobs(4, 80)
    found = run_estimator(name, prepared(x, truth, 4))
    assert (found.low, found.best, found.high) == (4, 4, 4)
    assert "no novel class" in found.note


@pytest.mark.parametrize("known", [1, 2])
def test_two_classes_in_all(known):
    x, truth = blobs(2, 60)
    targets = np.where((truth < known) & (np.arange(60) % 3 == 0), truth, -1)
    found = run_estimator("density", prepared(x, targets, known))
    assert 2 <= found.best <= 3
    assert found.low <= 2


def test_one_label_per_class_says_so():
    x, truth = blobs(5, 200)
    targets = np.full(200, -1)
    for known in range(3):
        targets[np.flatnonzero(truth == known)[0]] = known
    found = run_estimator("density", prepared(x, targets, 3))
    assert "no class has two labelled rows" in found.note
    assert 4 <= found.best <= 6


def test_three_rows_in_a_class_and_copies_of_a_row():
    x, truth = blobs(4, 12)
    x = np.repeat(x, 2, axis=0)  # every row twice: distances of zero, ties in every list of neighbours
    truth = np.repeat(truth, 2)
    targets = np.where((truth < 2) & (np.arange(24) % 2 == 0), truth, -1)
    for name in ("density", "gcd", "balanced"):
        found = run_estimator(name, prepared(x, targets, 2))
        ordered(found)
        assert 2 <= found.best <= 8


def test_identical_rows_are_survived():
    x = np.ones((20, 8), dtype=np.float32)
    targets = np.where(np.arange(20) < 6, np.arange(20) % 2, -1)
    for name in ("density", "gcd"):
        ordered(run_estimator(name, prepared(x, targets, 2)))


def test_the_largest_number_is_kept_and_checked():
    x, truth = blobs(12, 360)
    targets = np.where((truth < 4) & (np.arange(360) % 2 == 0), truth, -1)
    for name in ("density", "gcd"):
        found = run_estimator(name, prepared(x, targets, 4, max_classes=6))
        assert found.high <= 6
    with pytest.raises(InputError, match="--max-classes 3 is less than the 4 classes"):
        prepared(x, targets, 4, max_classes=3)
    with pytest.raises(InputError, match="no estimator 'brent'"):
        estimate_all(prepared(x, targets, 4), ["brent"])


def test_the_same_data_give_the_same_numbers():
    problem = long_tailed(300, seed=5)
    data = prepared(problem.embeddings, problem.targets, 6)
    for name in ("density", "gcd"):
        one, two = (run_estimator(name, data) for _ in range(2))
        assert (one.best, one.low, one.high, one.scores) == (two.best, two.low, two.high, two.scores)


def test_estimates_side_by_side_start_with_the_used_one(monkeypatch):
    monkeypatch.setattr("rowssl.counting.heads.EPOCHS", (2, 2))
    problem = long_tailed(200, seed=5)
    found = estimate_all(prepared(problem.embeddings, problem.targets, 6))
    assert [one.name for one in found] == list(base.ESTIMATORS)
    assert found[0].name == base.AUTO
    assert found[-1].note.endswith("heads are in use after 2 epochs")
    assert f"of {2 * found[0].best} heads" in found[-1].note


def test_a_sample_keeps_the_labelled_share_and_every_known_class():
    rng = np.random.default_rng(0)
    targets = np.full(50_000, -1)
    targets[rng.permutation(50_000)[:10_000]] = 0
    targets[[7, 8, 9]] = 1
    rows = sample_rows(targets, 2, 20_000, seed=0)
    assert 20_000 <= len(rows) <= 20_004
    assert np.mean(targets[rows] == 0) == pytest.approx(0.2, abs=0.01)
    assert (targets[rows] == 1).sum() >= 2
    assert (np.diff(rows) > 0).all()


def test_starts_of_every_k_come_from_one_tree():
    x = torch.from_numpy(blobs(6, 200)[0])
    found = search(CountData(x, np.full(200, -1), 0, 5, 7))
    assert set(found.scores) == {5, 6, 7}
    clusters = Clusters(CountData(x, np.full(200, -1), 0, 2, 50))
    for k in (2, 6, 50, 200):
        centres = clusters.start(k)
        assert centres.shape == (k, 16)
        cluster = torch.from_numpy(cut(clusters.tree, k))
        for c in range(k):
            torch.testing.assert_close(centres[c], clusters.x[cluster == c].mean(0))


def test_starts_where_all_rows_are_equally_far_from_each_other():
    centres = Clusters(CountData(torch.eye(600), np.full(600, -1), 0, 2, 50)).start(50)
    assert centres.shape == (50, 600)
    assert (centres.sum(1) > 0.99).all()  # means of rows, or rows


@pytest.mark.parametrize("name", ["density", "gcd", "balanced"])
def test_one_row_has_no_clusters(name):
    with pytest.raises(InputError, match="One row"):
        run_estimator(name, CountData(torch.ones(1, 4), np.full(1, -1), 0, 2, 2))


def test_starts_of_more_clusters_than_distinct_rows():
    x = torch.eye(3)[torch.arange(60) % 3]
    centres = Clusters(CountData(x, np.full(60, -1), 0, 2, 10)).start(10)
    assert centres.shape == (10, 3)
    assert torch.isfinite(centres).all()
    assert search(CountData(x, np.full(60, -1), 0, 2, 10)).best >= 2


@pytest.mark.parametrize("k", [8, 20, 45])
def test_from_the_tree_k_means_ends_about_as_low_as_from_its_own_seeds(k):
    x = torch.from_numpy(blobs(30, 3000)[0])
    data = CountData(x, np.full(len(x), -1), 0, 2, 60)
    shared = kmeans(x, k, init=Clusters(data).start(k), enough=5e-4)
    assert shared.inertia < 1.03 * kmeans(x, k, n_init=3).inertia


def test_rows_that_are_not_in_the_tree_go_to_the_nearest_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    x, truth = blobs(6, 400)
    data = prepared(x, np.where((truth < 3) & (np.arange(400) % 2 == 0), truth, -1), 3)
    whole = Clusters(data)
    monkeypatch.setattr(count_search, "TREE_ROWS", 60)
    some = Clusters(data)
    assert len(whole.x) == 400
    assert 60 <= len(some.x) < 70
    known = data.target[data.labelled]
    for clusters in (whole, some):
        assert len(clusters(6)) == len(known)
        assert labelled_accuracy(clusters(6), known, 6, 3) == 1.0
    assert search(data).best == 6


def test_what_is_shared_between_numbers_of_clusters_changes_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = long_tailed(300, seed=5)
    data = prepared(problem.embeddings, problem.targets, 6)
    shared = search(data)

    class EachByItself(Clusters):
        def __call__(self, k: int) -> np.ndarray:
            return Clusters(data)(k)

    monkeypatch.setattr(count_search, "Clusters", EachByItself)
    assert search(data) == shared
