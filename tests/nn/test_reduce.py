"""Shortening wide features."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from rowssl.data.loader import ArraySource
from rowssl.nn.reduce import fit_reduction, reduce_source


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
