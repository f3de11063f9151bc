"""The nearest training rows: all of them where there are few, most of them in a fraction of the time where there are many."""

from __future__ import annotations

import numpy as np
import pytest

from rowssl.serve import neighbours
from rowssl.serve.neighbours import Neighbours

COUNT, WIDTH = 8, 48


def features(rows: int, groups: int = 12) -> np.ndarray:
    """Unit features around as many directions, half of them around one."""
    rng = np.random.default_rng(3)
    group = np.where(rng.random(rows) < 0.5, 4, rng.integers(0, groups, rows))
    feature = rng.standard_normal((groups, WIDTH))[group] + 0.7 * rng.standard_normal((rows, WIDTH))
    return (feature / np.linalg.norm(feature, axis=1, keepdims=True)).astype(np.float32)


def questions(known: np.ndarray, count: int) -> np.ndarray:
    rng = np.random.default_rng(4)
    asked = known[rng.integers(0, len(known), count)] + 0.05 * rng.standard_normal((count, WIDTH))
    return (asked / np.linalg.norm(asked, axis=1, keepdims=True)).astype(np.float32)


def by_hand(known: np.ndarray, asked: np.ndarray) -> list[int]:
    cosines = [float(one @ asked) for one in known]
    return sorted(range(len(cosines)), key=lambda row: -cosines[row])[:COUNT]


@pytest.fixture
def divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows are many: a quarter of 4,000 is looked at, a twentieth in full."""
    limits = {"ALL_VALUES": 1000, "CELL": 100, "LOOKED_AT": 1000, "CANDIDATES": 200, "DIRECTIONS": 24, "PIECE": 1000}
    for name, value in limits.items():
        monkeypatch.setattr(neighbours, name, value)


@pytest.mark.parametrize("rows", [3, 8, 200])
def test_of_few_rows_it_is_exact(rows: int) -> None:
    known = features(rows)
    for asked in questions(known, 5):
        found, cosine = Neighbours(known)(known, asked, COUNT)
        assert found.tolist() == by_hand(known, asked)
        np.testing.assert_allclose(cosine, known[found] @ asked, atol=1e-6)
        assert (np.diff(cosine) <= 0).all()


def test_of_many_rows_most_are_found_and_their_cosines_are_right(divided: None) -> None:
    known = features(4000)
    index, hits = Neighbours(known), 0
    assert not index.exact
    asked = questions(known, 50)
    for one in asked:
        found, cosine = index(known, one, COUNT)
        assert len(set(found.tolist())) == COUNT
        np.testing.assert_allclose(cosine, known[found] @ one, atol=1e-6)
        assert (np.diff(cosine) <= 0).all()
        hits += len({*found.tolist()} & {*by_hand(known, one)})
    assert hits >= 0.8 * COUNT * len(asked)


def test_only_some_rows_are_looked_at(divided: None) -> None:
    known = features(4000)
    assert len(Neighbours(known)._candidates(known[7])) == neighbours.CANDIDATES


def test_a_training_row_is_its_own_nearest_among_many(divided: None) -> None:
    known = features(4000)
    index = Neighbours(known)
    hits = [int(index(known, known[row], COUNT)[0][0]) == row for row in range(0, 4000, 97)]
    assert sum(hits) >= 0.95 * len(hits)


def test_fewer_rows_looked_at_than_asked_for(divided: None) -> None:
    known = features(300)
    found, _ = Neighbours(known)(known, known[0], 400)
    assert 0 in found
    assert len(found) <= 300


def test_copies_of_one_row(divided: None) -> None:
    known = np.repeat(features(1), 500, axis=0)
    found, cosine = Neighbours(known)(known, known[0], COUNT)
    assert len(set(found.tolist())) == COUNT
    np.testing.assert_allclose(cosine, 1.0, atol=1e-5)
