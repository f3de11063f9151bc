"""The same configuration gives the same bits, draws from nobody's random numbers, and reads each row by itself."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from encoders.test_trunk import RECIPE, make_encoder, make_table
from faults.trainings import weights
from rowssl.api import fit
from rowssl.config import build_config
from rowssl.encoders.trunk import FreshSource, open_trunk_cache
from rowssl.methods import METHODS
from rowssl.runs.classifier import Classifier
from rowssl.sklearn import OpenWorldClassifier

SHORT = ("dts", "promptcal")
Tally = Callable[[str, int, int], None]


def train(data: Path, method: str, out: Path) -> None:
    content = {
        "data": {"source": str(data)}, "method": {"name": method}, "classes": 8,
        "train": {"epochs": 2, "batch_size": 32},
    }  # fmt: skip
    fit(build_config(content), out)


def random_states() -> list[object]:
    """Of every generator that somebody else may rely on."""
    return [torch.get_rng_state().tolist(), repr(np.random.get_state()), random.getstate()]  # noqa: NPY002


@pytest.mark.parametrize("method", METHODS)
def test_three_runs_are_one_and_touch_no_global_generator(
    method: str, embeddings: Path, tmp_path: Path, full: bool, tally: Tally
) -> None:
    if not full and method not in SHORT:
        pytest.skip("only with the full counts: make faults")
    found = []
    for name in ("one", "two", "three"):
        torch.rand(len(found))  # what others drew before has no say
        before = random_states()
        train(embeddings, method, tmp_path / name)
        assert random_states() == before
        found.append(weights(tmp_path / name))
    tally(f"determinism: three runs of {method} give the same sha256", sum(one == found[0] for one in found), 3)


@pytest.mark.parametrize("method", METHODS)
def test_the_estimator_touches_no_global_generator(method: str) -> None:
    rows = np.random.default_rng(0).normal(size=(40, 3))
    before = random_states()
    OpenWorldClassifier(method, n_classes=3, epochs=1).fit(rows, np.where(np.arange(40) < 10, np.arange(40) % 2, -1))
    assert random_states() == before


@pytest.mark.parametrize("method", METHODS)
def test_a_saved_model_reads_each_row_by_itself(
    method: str, embeddings: Path, tmp_path: Path, full: bool, tally: Tally
) -> None:
    if not full and method != "dts":
        pytest.skip("only with the full counts: make faults")
    train(embeddings, method, tmp_path / "run")
    model = Classifier.load(tmp_path / "run")
    rng = np.random.default_rng(4)
    rows = torch.from_numpy(rng.normal(size=(1000, 16)).astype(np.float32))
    order = torch.from_numpy(rng.permutation(1000))
    together, alone = model.scores(rows), torch.cat([model.scores(row[None]) for row in rows])
    permuted = torch.empty_like(together)
    permuted[order] = model.scores(rows[order])
    labels = [one.class_id for one in model.predict(rows)]
    equal = np.array([labels[i] == model.predict(rows[i : i + 1])[0].class_id for i in range(1000)])
    for other in (alone, permuted):
        equal &= ((together - other).abs().amax(1) <= 1e-5).numpy()
        equal &= (together.argmax(1) == other.argmax(1)).numpy()
    tally(f"rows one by one, together and permuted: {method} says the same, scores within 1e-5", int(equal.sum()), 1000)


@pytest.mark.parametrize("workers", [2, 5])
def test_the_number_of_workers_changes_no_bit(workers: int, tmp_path: Path) -> None:
    """Threads that decode and augment; for processes see tests/encoders/test_fill.py."""
    files, views, rows = [], [], np.arange(12)
    for number in (1, workers):
        options = {"recipe": RECIPE, "n_views": 2, "seed": 3, "folder": tmp_path / str(number), "progress": False}
        folder = open_trunk_cache(make_table(12), make_encoder(), workers=number, **options).folder  # type: ignore[arg-type]
        files.append((folder / "trunk.f16").read_bytes())
        fresh = FreshSource(make_table(12), make_encoder(), RECIPE, 3, workers=number)
        views.append(fresh.view(rows, rows % 2, 4))
    assert files[0] == files[1]
    assert torch.equal(*views)
