"""The map: neighbours stay neighbours, it is the same every time, an edit moves nothing, and few rows have a place too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rowssl.report.build import build_report
from rowssl.runs import layout as module
from rowssl.runs.layout import layout, principal
from rowssl.runs.run import Run


def classes(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Unit features of five classes in 16 dimensions, and which is which."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(5, size=rows)
    x = np.eye(16)[truth] + 0.15 * rng.normal(size=(rows, 16))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32), truth


def neighbours_of_the_same_class(place: np.ndarray, truth: np.ndarray) -> float:
    distance = np.linalg.norm(place[:, None] - place[None], axis=2)
    np.fill_diagonal(distance, np.inf)
    return float((truth[distance.argmin(1)] == truth).mean())


def test_classes_come_apart_where_two_components_mix_them() -> None:
    x, truth = classes(240)
    place, how = layout(x)
    assert how == "t-SNE"
    assert place.shape == (240, 2)
    assert neighbours_of_the_same_class(place, truth) > 0.97
    assert neighbours_of_the_same_class(principal(x), truth) < 0.95
    np.testing.assert_array_equal(place, layout(x)[0])


def test_rows_beyond_the_limit_lie_beside_those_they_resemble(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LAID_OUT", 120)
    x, truth = classes(400)
    place, _ = layout(x)
    assert np.isfinite(place).all()
    assert neighbours_of_the_same_class(place, truth) > 0.95


def test_only_rows_that_are_drawn_are_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LAID_OUT", 120)
    x, _ = classes(400)
    whole, _ = layout(x)
    monkeypatch.setattr(module, "MAP_ROWS", 150)
    place, _ = layout(x)
    shown = module.drawn(400)
    assert len(shown) == 150
    np.testing.assert_allclose(place[shown], whole[shown], rtol=1e-4, atol=1e-4)
    assert place.shape == whole.shape
    assert 400 - 150 - 120 <= (place == 0).all(1).sum() < 400 - 150


@pytest.mark.parametrize("x", [np.ones((30, 8)) / 8**0.5, np.eye(4), np.ones((1, 3)), np.ones((9, 1))])
def test_too_few_or_equal_rows_have_a_place(x: np.ndarray) -> None:
    place, how = layout(x.astype(np.float32))
    assert how == "PCA"
    assert place.shape == (len(x), 2)
    assert np.isfinite(place).all()


def test_an_edit_moves_nothing_on_the_map(own_run: Path) -> None:
    before = Run.load(own_run)
    assert before.answers.place is not None
    assert before.facts["map"] == "t-SNE"
    Run.load(own_run).split("a")
    after = Run.load(own_run)
    np.testing.assert_array_equal(before.answers.place, after.answers.place)
    shown = build_report(after).positions
    np.testing.assert_array_equal(shown, before.answers.place)
