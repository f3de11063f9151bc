"""Estimating the number of classes, and shortening wide features."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from rowssl.count import _golden, estimate_classes, labelled_accuracy
from rowssl.data.loader import ArraySource
from rowssl.nn.reduce import fit_reduction, reduce_source


def blobs(classes: int, rows: int, dim: int = 16, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    truth = rng.integers(classes, size=rows)
    centres = rng.normal(size=(classes, dim))
    return (centres[truth] + 0.05 * rng.normal(size=(rows, dim))).astype(np.float32), truth


@pytest.mark.parametrize("peak", [2, 3, 17, 40, 60])
def test_the_search_finds_the_peak_of_a_hill(peak):
    tried = []

    def score(k: int) -> float:
        tried.append(k)
        return -abs(k - peak)

    _golden(2, 60, score)
    assert peak in tried
    assert all(2 <= k <= 60 for k in tried)


def test_labelled_accuracy_by_hand():
    cluster, target = np.array([0, 0, 1, 1, 2]), np.array([1, 1, 0, 1, 0])
    assert labelled_accuracy(cluster, target, k=3, n_old=2) == pytest.approx(3 / 5)


def test_well_separated_classes_are_counted():
    x, truth = blobs(9, 600)
    targets = np.where((truth < 5) & (np.arange(600) % 2 == 0), truth, -1)
    found = estimate_classes(ArraySource(x), nn.Identity(), targets, 5)
    assert found.low <= found.best <= found.high
    assert 7 <= found.best <= 11
    assert found.scores[found.best] == max(found.scores.values())


def test_without_labels_the_silhouette_decides():
    x, _ = blobs(6, 300)
    found = estimate_classes(ArraySource(x), nn.Identity(), np.full(300, -1), 0)
    assert 5 <= found.best <= 7


def test_reduction_is_the_principal_components_of_unit_rows():
    rng = np.random.default_rng(3)
    x = (rng.normal(size=(200, 12)) * np.linspace(3, 0.1, 12) + 1).astype(np.float32)
    reduction = fit_reduction(ArraySource(x), 4)
    unit = F.normalize(torch.from_numpy(x), dim=1)
    centred = (unit - unit.mean(0)).double()
    _, values, vectors = torch.linalg.svd(centred, full_matrices=False)
    ours = reduction(torch.from_numpy(x)).double()
    torch.testing.assert_close(ours.norm(dim=0), values[:4], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.abs(), (centred @ vectors[:4].T).abs(), rtol=1e-3, atol=1e-4)


def test_reduced_source_keeps_rows_and_views_apart():
    rng = np.random.default_rng(4)
    x, views = rng.normal(size=(50, 8)).astype(np.float32), rng.normal(size=(3, 50, 8)).astype(np.float32)
    source = ArraySource(x, views)
    reduction = fit_reduction(source, 5)
    small = reduce_source(source, reduction, what="features")
    assert small.shape == (5,)
    assert small.n_views == 3
    rows = np.array([7, 3])
    torch.testing.assert_close(small.clean(rows), reduction(source.clean(rows)), rtol=1e-2, atol=1e-3)
    which = np.array([2, 0])
    torch.testing.assert_close(small.view(rows, which, 0), reduction(source.view(rows, which, 0)), rtol=1e-2, atol=1e-3)
