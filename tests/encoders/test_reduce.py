"""Shortening wide features."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from rowssl.core.errors import InputError
from rowssl.data.feed import ArraySource, makes_views
from rowssl.encoders import reduce
from rowssl.encoders.reduce import fit_reduction, reduce_source


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


@pytest.mark.parametrize("roomless", [False, True])
def test_reduced_source_keeps_rows_and_views_apart(
    roomless: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In memory, and where that is too small, in files that nobody else sees."""
    if roomless:
        monkeypatch.setattr(reduce, "ALWAYS", 0)
        monkeypatch.setattr(reduce, "available_memory", lambda: 100)
    rng = np.random.default_rng(4)
    x, views = rng.normal(size=(50, 8)).astype(np.float32), rng.normal(size=(3, 50, 8)).astype(np.float32)
    source = ArraySource(x, views)
    reduction = fit_reduction(source, 5)
    small = reduce_source(source, reduction, what="features", folder=tmp_path / "cache")
    assert [in_a_file(array) for array in (small.embeddings, small.views)] == [roomless] * 2
    small.release()  # what was looked at is read again
    assert list(tmp_path.glob("cache/*")) == []
    assert small.shape == (5,)
    assert small.n_views == 3
    rows = np.array([7, 3])
    torch.testing.assert_close(small.clean(rows), reduction(source.clean(rows)), rtol=1e-2, atol=1e-3)
    which = np.array([2, 0])
    torch.testing.assert_close(small.view(rows, which, 0), reduction(source.view(rows, which, 0)), rtol=1e-2, atol=1e-3)


def in_a_file(array: np.ndarray | None) -> bool:
    return isinstance(array, np.memmap) or (isinstance(array, np.ndarray) and in_a_file(array.base))


@pytest.mark.parametrize("reserves", [False, True])
def test_a_disk_without_room_for_features_is_one_sentence(
    reserves: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the system can reserve the room of a file, and where it can only say how much there is."""

    def full(*place: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(reduce, "ALWAYS", 0)
    monkeypatch.setattr(reduce, "available_memory", lambda: 0)
    if reserves:
        monkeypatch.setattr(reduce.os, "posix_fallocate", full, raising=False)
    else:
        monkeypatch.delattr(reduce.os, "posix_fallocate", raising=False)
        monkeypatch.setattr(reduce.shutil, "disk_usage", lambda folder: SimpleNamespace(free=10))
    with pytest.raises(InputError, match=r"cannot hold 2\.0 GB of features: No space left on device; choose"):
        reduce.roomy((10**6, 1000), tmp_path)


class Fresh:
    """A source that makes views anew in every epoch; counts what it is asked for."""

    shape, n_views, makes_views, asked = (8,), 2, True, 0

    def __len__(self) -> int:
        return 50

    def clean(self, rows: np.ndarray) -> torch.Tensor:
        self.asked += len(rows)
        return torch.from_numpy(np.cos(np.outer(rows + 1, np.arange(8))).astype(np.float32))

    def view(self, rows: np.ndarray, views: np.ndarray, epoch: int) -> torch.Tensor:
        return torch.from_numpy(np.cos(np.outer(rows + 0.1 * views + 0.2 * epoch, np.arange(8))).astype(np.float32))


def test_views_that_are_made_anew_go_through_the_reduction_and_clean_rows_are_kept(tmp_path: Path) -> None:
    source = Fresh()
    reduction = fit_reduction(source, 5)
    small = reduce_source(source, reduction, what="features", folder=tmp_path)
    assert (small.shape, small.n_views, len(small), makes_views(small)) == ((5,), 2, 50, True)
    rows, which, asked = np.array([7, 3]), np.array([1, 0]), source.asked
    for epoch in (0, 3):
        assert torch.equal(small.view(rows, which, epoch), reduction(source.view(rows, which, epoch)))
    kept = small.clean(rows)
    assert source.asked == asked
    torch.testing.assert_close(kept, reduction(source.clean(rows)), rtol=1e-2, atol=1e-3)
