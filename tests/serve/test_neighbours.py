"""The nearest training rows: all of them where there are few, most of them in a fraction of the time where there are many."""

from __future__ import annotations

import numpy as np
import pytest

from rowssl.results import Answers
from rowssl.serve import neighbours
from rowssl.serve.neighbours import Neighbours

COUNT = 8


def answers(rows: int, width: int = 48, classes: int = 12) -> Answers:
    """Unit features around class directions, the last class empty and one of them huge."""
    rng = np.random.default_rng(3)
    head = np.where(rng.random(rows) < 0.5, 4, rng.integers(0, classes - 1, rows))
    feature = rng.standard_normal((classes, width))[head] + 0.7 * rng.standard_normal((rows, width))
    feature = (feature / np.linalg.norm(feature, axis=1, keepdims=True)).astype(np.float32)
    return Answers(head, np.ones(rows, np.float32), head, feature, None)


def queries(known: Answers, count: int) -> np.ndarray:
    rng = np.random.default_rng(4)
    asked = known.feature[rng.integers(0, len(known.head), count)] + 0.05 * rng.standard_normal((count, 48))
    return (asked / np.linalg.norm(asked, axis=1, keepdims=True)).astype(np.float32)


def by_hand(known: Answers, feature: np.ndarray) -> list[int]:
    cosines = [float(one @ feature) for one in known.feature]
    return sorted(range(len(cosines)), key=lambda row: -cosines[row])[:COUNT]


@pytest.mark.parametrize("rows", [3, 8, 200])
def test_of_few_rows_it_is_exact(rows: int) -> None:
    known = answers(rows)
    for feature in queries(known, 5):
        found, cosine = Neighbours(known)(feature, COUNT)
        assert found.tolist() == by_hand(known, feature)
        np.testing.assert_allclose(cosine, known.feature[found] @ feature, atol=1e-6)
        assert (np.diff(cosine) <= 0).all()


def test_of_many_rows_nearly_all_are_found_and_their_cosines_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    known = answers(4000)
    monkeypatch.setattr(neighbours, "ALL_VALUES", 1000)
    monkeypatch.setattr(neighbours, "LOOKED_AT", 800)
    monkeypatch.setattr(neighbours, "CANDIDATES", 200)
    monkeypatch.setattr(neighbours, "DIRECTIONS", 24)
    index, hits = Neighbours(known), 0
    assert not index.exact
    asked = queries(known, 50)
    for feature in asked:
        found, cosine = index(feature, COUNT)
        assert len(set(found.tolist())) == COUNT
        np.testing.assert_allclose(cosine, known.feature[found] @ feature, atol=1e-6)
        hits += len({*found.tolist()} & {*by_hand(known, feature)})
    assert hits >= 0.9 * COUNT * len(asked)


def test_a_training_row_is_its_own_nearest_among_many(monkeypatch: pytest.MonkeyPatch) -> None:
    known = answers(2000)
    monkeypatch.setattr(neighbours, "ALL_VALUES", 1000)
    index = Neighbours(known)
    for row in range(0, 2000, 97):
        assert index(known.feature[row], COUNT)[0][0] == row


def test_fewer_rows_looked_at_than_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A nearest class of one row, and a limit of one: whatever was looked at is what there is."""
    known = answers(300)
    monkeypatch.setattr(neighbours, "ALL_VALUES", 10)
    monkeypatch.setattr(neighbours, "LOOKED_AT", 1)
    found, _ = Neighbours(known)(known.feature[0], 400)
    assert 0 in found
    assert len(found) <= 300
