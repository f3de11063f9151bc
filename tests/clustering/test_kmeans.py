"""Clustering against scikit-learn, against naive loops, and in the corners: duplicates, empty clusters, k = 1, k = N."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from rowssl.clustering import assignment
from rowssl.clustering import kmeans as module
from rowssl.clustering.assignment import hungarian, knn, sinkhorn
from rowssl.clustering.kmeans import assign, kmeans, semi_supervised_kmeans
from rowssl.core.errors import InputError


def blobs(rows: int = 400, classes: int = 8, dimensions: int = 6, spread: float = 3.0, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centers = spread * rng.standard_normal((classes, dimensions))
    x = centers[rng.integers(0, classes, rows)] + rng.standard_normal((rows, dimensions))
    return x.astype(np.float32)


def naive_distance(x: np.ndarray, centers: np.ndarray) -> np.ndarray:
    return np.array([[((row - center) ** 2).sum() for center in centers] for row in x.astype(np.float64)])


@pytest.mark.parametrize(("classes", "spread"), [(8, 3.0), (20, 1.0), (20, 0.3)])
def test_inertia_is_not_above_scikit_learn(classes: int, spread: float) -> None:
    from sklearn.cluster import KMeans

    x = blobs(1000, classes, 16, spread)
    ours = kmeans(x, classes, n_init=5, seed=1)
    theirs = KMeans(classes, n_init=5, random_state=1).fit(x)
    assert ours.inertia <= 1.01 * theirs.inertia_
    assert ours.inertia == pytest.approx(naive_distance(x, ours.centers.numpy()).min(1).sum(), rel=1e-5)


def test_one_step_agrees_with_a_naive_loop() -> None:
    x = blobs()
    start = x[:8]
    found = kmeans(x, 8, init=start, max_iter=1)
    labels = naive_distance(x, start).argmin(1)
    means = np.stack([x[labels == c].astype(np.float64).mean(0) for c in range(8)])
    assert found.centers.numpy() == pytest.approx(means, abs=1e-5)
    assert np.array_equal(found.labels.numpy(), naive_distance(x, means).argmin(1))
    assert found.n_iter == 1


def test_labels_centres_and_inertia_agree_after_convergence() -> None:
    x = blobs(seed=4)
    found = kmeans(x, 8, tol=0.0)
    assert found.centers.dtype == torch.float32
    assert found.labels.dtype == torch.int64
    for c in range(8):
        assert found.centers[c].numpy() == pytest.approx(x[found.labels.numpy() == c].mean(0), abs=1e-4)
    assert np.array_equal(found.labels.numpy(), naive_distance(x, found.centers.numpy()).argmin(1))


def test_same_seed_same_result_and_a_run_does_not_depend_on_the_others() -> None:
    x = blobs(classes=20, spread=0.5)
    first, again, other = kmeans(x, 20, seed=3), kmeans(torch.from_numpy(x), 20, seed=3), kmeans(x, 20, seed=4)
    assert torch.equal(first.centers, again.centers)
    assert torch.equal(first.labels, again.labels)
    assert first.inertia == again.inertia
    assert not torch.equal(first.centers, other.centers)
    runs = [kmeans(x, 20, seed=3, n_init=n).inertia for n in (1, 3, 10)]
    assert runs == sorted(runs, reverse=True)  # more runs contain the fewer ones


def test_more_data_than_one_chunk_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    x = blobs(700, spread=2.0)
    whole, nearest = kmeans(x, 8, n_init=3), assign(x, x[:8])
    monkeypatch.setattr(module, "_SEED_CELLS", 1)
    monkeypatch.setattr(module, "BLOCK_CELLS", 8)
    parts = kmeans(x, 8, n_init=3)
    assert torch.equal(whole.labels, parts.labels)
    assert whole.inertia == pytest.approx(parts.inertia, rel=1e-6)
    for chunk in (1, 7, 10_000):
        labels, distance = assign(x, x[:8], chunk)
        assert torch.equal(labels, nearest[0])
        assert distance.numpy() == pytest.approx(nearest[1].numpy(), abs=1e-3)


def test_assign_is_accurate_far_from_the_origin() -> None:
    x = blobs(100) + np.float32(1000)
    labels, distance = assign(x, x[:5])
    expected = naive_distance(x, x[:5])
    assert np.array_equal(labels.numpy(), expected.argmin(1))
    assert distance.numpy() == pytest.approx(expected.min(1), abs=1e-2)


def test_one_cluster_is_the_mean_and_n_clusters_are_the_points() -> None:
    x = blobs(30)
    one, every = kmeans(x, 1), kmeans(x, 30)
    assert one.centers[0].numpy() == pytest.approx(x.mean(0), abs=1e-5)
    assert one.inertia == pytest.approx(((x - x.mean(0)) ** 2).sum(), rel=1e-5)
    assert every.inertia == pytest.approx(0, abs=1e-6)
    assert len(every.labels.unique()) == 30


def test_more_clusters_than_distinct_points() -> None:
    x = np.repeat(blobs(5), 10, axis=0)
    found = kmeans(x, 9)
    assert found.inertia == pytest.approx(0, abs=1e-6)
    assert bool(torch.isfinite(found.centers).all())
    assert len(found.labels.unique()) == 5


def test_an_empty_cluster_moves_to_the_farthest_point() -> None:
    x = np.array([[0.0], [1.0], [2.0], [50.0]], dtype=np.float32)
    start = np.array([[1.0], [1000.0]], dtype=np.float32)  # nobody is nearest to the second
    found = kmeans(x, 2, init=start)
    assert found.labels.tolist() == [0, 0, 0, 1]
    assert found.centers.flatten().tolist() == pytest.approx([1.0, 50.0])


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda x: kmeans(x, 6), "k=6"),
        (lambda x: kmeans(x, 0), "k=0"),
        (lambda x: kmeans(x, 2, n_init=0), "n_init"),
        (lambda x: kmeans(x, 2, init=x[:3]), "init must be 2 x 2"),
        (lambda x: kmeans(x[:, 0], 2), "matrix"),
        (lambda x: kmeans(np.where(x > 8, np.nan, x), 2), "row 4 of x"),
        (lambda x: assign(x, x[:, :1]), "columns"),
        (lambda x: knn(x, x, 6), "k=6"),
        (lambda x: semi_supervised_kmeans(x, [0, 1, 2, -1, -1], 2), "3 known classes"),
        (lambda x: semi_supervised_kmeans(x, [0, 1, 1, 1, -1], 4), "2 novel clusters"),
        (lambda x: semi_supervised_kmeans(x, [0, 1], 2), "targets"),
        (lambda x: semi_supervised_kmeans(x, [0, 1, -2, -1, -1], 2), "-2"),
        (lambda x: sinkhorn(x, prior=[1.0, -1.0]), "prior"),
    ],
)
def test_mistakes_are_named(call: Callable[[np.ndarray], object], word: str) -> None:
    with pytest.raises(InputError, match=word):
        call(np.arange(10, dtype=np.float32).reshape(5, 2))


def naive_semi_supervised(x: np.ndarray, targets: np.ndarray, start: np.ndarray, max_iter: int, tol: float) -> tuple:
    """The algorithm as it is described: loops, means of nothing avoided by the data."""
    centers, best = start.astype(np.float64), (np.inf, None, None)
    for _ in range(max_iter):
        distance = naive_distance(x, centers)
        labels = np.where(targets >= 0, targets, distance.argmin(1))
        inertia = distance[np.arange(len(x)), labels].sum()
        moved = np.stack([x[labels == c].mean(0, dtype=np.float64) for c in range(len(centers))])
        if inertia < best[0]:
            best = (inertia, labels, moved)
        shift = sum(np.sqrt(((a - b) ** 2).sum()) for a, b in zip(moved, centers, strict=True))
        centers = moved
        if shift**2 < tol:
            break
    return best


@pytest.mark.parametrize("seed", range(5))
def test_semi_supervised_agrees_with_a_naive_reference(seed: int) -> None:
    rng = np.random.default_rng([9, seed])
    x = blobs(150, 6, 4, 2.0, seed)
    x -= x.mean(0)
    truth = naive_distance(x, x[:6]).argmin(1)
    targets = np.where((truth < 3) & (rng.random(len(x)) < 0.4), truth, -1)
    targets[:3] = [0, 1, 2]
    free = torch.from_numpy(x[targets < 0])
    means = np.stack([x[targets == c].mean(0) for c in range(3)])
    rows = module.plus_plus(free, free.square().sum(1), 3, seed=seed, runs=4, trials=1, base=torch.from_numpy(means))
    runs = [naive_semi_supervised(x, targets, np.concatenate([means, free[r].numpy()]), 100, 1e-4) for r in rows]
    inertia, labels, centers = min(runs, key=lambda run: run[0])
    found = semi_supervised_kmeans(x, targets, 6, seed=seed, n_init=4)
    assert found.inertia == pytest.approx(inertia, rel=1e-4)
    assert np.array_equal(found.labels.numpy(), labels)
    assert found.centers.numpy() == pytest.approx(centers, abs=1e-3)


def test_labelled_rows_stay_with_their_class_and_centres_carry_its_id() -> None:
    x = np.array([[0.0], [10.0], [0.1], [10.1], [20.0], [20.2], [9.9]], dtype=np.float32)
    targets = torch.tensor([1, 0, -1, -1, -1, -1, 1])  # the last row lies among class 0 but is labelled 1
    found = semi_supervised_kmeans(x, targets, 3)
    assert found.labels.tolist() == [1, 0, 1, 0, 2, 2, 1]
    assert found.centers.flatten().tolist() == pytest.approx([10.05, 10 / 3, 20.1], abs=1e-4)


def test_semi_supervised_corners() -> None:
    x = np.array([[0.0], [5.0], [0.5], [5.5], [9.0]], dtype=np.float32)
    every = semi_supervised_kmeans(x[:2], [1, 0], 2)  # nothing unlabelled
    assert every.labels.tolist() == [1, 0]
    assert every.centers.flatten().tolist() == [5.0, 0.0]
    skipped = semi_supervised_kmeans(x, [2, -1, -1, -1, -1], 3)  # ids 0 and 1 have no labelled row
    assert skipped.labels[[0, 2]].tolist() == [2, 2]
    assert len(skipped.labels.unique()) == 3
    nobody = semi_supervised_kmeans(x, [-1] * 5, 2)
    assert nobody.inertia == pytest.approx(kmeans(x, 2, tol=0.0).inertia)
    copies = semi_supervised_kmeans(np.zeros((6, 2), np.float32), [0, 0, -1, -1, -1, -1], 3)  # an empty cluster
    assert bool(torch.isfinite(copies.centers).all())
    assert copies.inertia == 0.0


def test_hungarian_takes_tensors_and_both_directions() -> None:
    weight = torch.tensor([[1.0, 5.0, 0.0], [4.0, 6.0, 0.0]])
    assert hungarian(weight)[1].tolist() == [1, 0]
    assert hungarian(weight.numpy(), maximize=False)[1].sum() in (2, 3)
    assert weight[hungarian(weight, maximize=False)].sum() == 1.0


@pytest.mark.parametrize("prior", [None, [0.5, 0.3, 0.2, 0.0]])
def test_sinkhorn_reaches_both_marginals(prior: list[float] | None) -> None:
    scores = np.random.default_rng(0).standard_normal((64, 4))
    found = sinkhorn(scores, prior, epsilon=0.5, iterations=200)
    assert found.sum(1).numpy() == pytest.approx(np.ones(64))
    assert found.mean(0).numpy() == pytest.approx(np.full(4, 0.25) if prior is None else np.array(prior), abs=1e-6)


def test_sinkhorn_agrees_with_plain_scaling_and_survives_large_scores() -> None:
    scores = np.random.default_rng(1).random((10, 3))
    plain = np.exp(scores / 0.05)
    for _ in range(3):
        plain /= plain.sum(0) * 3
        plain /= plain.sum(1, keepdims=True) * 10
    assert sinkhorn(scores).numpy() == pytest.approx(plain * 10)
    assert bool(torch.isfinite(sinkhorn(torch.full((5, 3), 1e4) * torch.eye(3)[[0, 1, 2, 0, 1]])).all())


def test_knn_agrees_with_a_naive_search(monkeypatch: pytest.MonkeyPatch) -> None:
    query, reference = blobs(20, seed=1), blobs(50, seed=2)
    unit = reference / np.linalg.norm(reference, axis=1, keepdims=True)
    expected = (query / np.linalg.norm(query, axis=1, keepdims=True)) @ unit.T
    for cells in (2**22, 150):
        monkeypatch.setattr(assignment, "BLOCK_CELLS", cells)
        similarity, rows = knn(query, reference, 7)
        assert similarity.numpy() == pytest.approx(-np.sort(-expected, axis=1)[:, :7], abs=1e-5)
        assert np.array_equal(rows.numpy(), np.argsort(-expected, axis=1)[:, :7])


@pytest.mark.shared
def test_real_features_match_scikit_learn(shared_dir: Path) -> None:
    from sklearn.cluster import KMeans

    x = np.load(shared_dir / "data" / "cifar100-lt-features.npz")["embeddings"][::8].astype(np.float32)
    theirs = KMeans(50, n_init=3, random_state=0).fit(x)
    assert kmeans(x, 50, n_init=3).inertia <= 1.005 * theirs.inertia_


def test_one_look_at_many_rows_gives_means_of_them_all() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((70_000, 8)).astype(np.float32)
    alone = kmeans(x, 1)
    np.testing.assert_allclose(alone.centers[0], x.astype(float).mean(0), atol=1e-6)
    found = kmeans(x, 12, n_init=1)
    labels = found.labels.numpy()
    assert found.n_iter == 1
    for c in range(12):
        np.testing.assert_allclose(found.centers[c], x[labels == c].astype(float).mean(0), atol=1e-5)
    by_hand = np.square(x.astype(float) - found.centers.double().numpy()[labels]).sum()
    assert found.inertia == pytest.approx(by_hand, rel=1e-6)
    assert found.inertia < 1.01 * kmeans(x[:60_000], 12, n_init=1).inertia * 7 / 6


def test_rows_unlike_their_sample_are_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many clusters for the sample to place: its rows are closer to their centres than the others are."""
    monkeypatch.setattr(module, "FINE_EACH", 64)
    x = np.random.default_rng(0).standard_normal((80_000, 16)).astype(np.float32)
    assert kmeans(x, 600, n_init=1).n_iter > 1


def test_the_inertia_of_many_copies_is_nothing() -> None:
    x = (100 + np.random.default_rng(0).standard_normal((5, 8)).astype(np.float32))[np.arange(70_000) % 5]
    assert kmeans(x, 5, n_init=1).inertia < 1e-3


def test_enough_is_a_rule_for_stopping_alone() -> None:
    x = np.random.default_rng(0).standard_normal((3000, 4)).astype(np.float32)
    whole, short = kmeans(x, 20, n_init=1), kmeans(x, 20, n_init=1, enough=1e-9)
    torch.testing.assert_close(short.centers, whole.centers, atol=1e-3, rtol=0)  # from the same seeds
    assert kmeans(x, 20, n_init=1, enough=0.5).n_iter == 1


@pytest.mark.parametrize("rows", [300, 70_000])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_value_that_is_none_is_named_however_many_rows(rows: int, value: float) -> None:
    x = np.random.default_rng(0).standard_normal((rows, 4)).astype(np.float32)
    x[277, 1] = value
    with pytest.raises(InputError, match="row 277 of x"):
        kmeans(x, 5, n_init=2)
