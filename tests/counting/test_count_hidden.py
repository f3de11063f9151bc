"""Counting with hidden classes: each way to measure the known share against a count by hand, and what happens without labels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from rowssl.clustering.tree import ward_tree
from rowssl.counting.base import CountData, estimate_classes, run_estimator
from rowssl.counting.hidden import (
    LEAST,
    PRIOR,
    Evidence,
    Fold,
    gate_sizes,
    gather,
    hidden,
    in_order,
    mate_sizes,
    neighbour_sizes,
)
from rowssl.data.feed import ArraySource


def clouds(sizes: list[int], noise: float, seed: int = 0, dim: int = 32) -> tuple[torch.Tensor, np.ndarray]:
    """Gaussian classes of the given sizes on the sphere, rows in random order; some directions are noisier than others."""
    rng = np.random.default_rng(seed)
    truth = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    own = noise * rng.normal(size=(len(truth), dim)) * np.linspace(0.2, 1.8, dim)
    x = rng.normal(size=(len(sizes), dim))[truth] + own
    return F.normalize(torch.from_numpy(x).float(), dim=1), truth


def problem(
    sizes: list[int], known: int, share: float, noise: float = 0.6, seed: int = 0
) -> tuple[CountData, np.ndarray]:
    """Every known class labelled by a share of its rows, two at least."""
    x, truth = clouds(sizes, noise, seed)
    target = np.full(len(truth), -1)
    for one in range(known):
        rows = np.flatnonzero(truth == one)
        target[rows[: max(2, round(share * len(rows)))]] = one
    return CountData(x, target, known, max(2, known), max(20, 4 * known), seed=seed), truth


TAIL = [120, 90, 70, 50, 40, 30, 25, 20, 15, 12]


@pytest.mark.parametrize(
    ("sizes", "known", "share"),
    [([60] * 30, 15, 0.3), ([60] * 30, 10, 0.1), (TAIL * 3, 15, 0.3), ([50] * 12, 5, 0.2), ([40] * 24, 20, 0.3)],
)
def test_separate_classes_are_counted(sizes, known, share):
    found = hidden(problem(sizes, known, share)[0])
    assert abs(found.best - len(sizes)) <= 0.15 * len(sizes)
    assert found.low <= len(sizes) <= found.high
    assert found.marked in found.scores


def test_what_labels_do_not_tell_is_called_unstable():
    clear, blurred = (run_estimator("hidden", problem([60] * 20, 10, 0.1, noise)[0]) for noise in (0.4, 3.0))
    assert not clear.unstable
    assert blurred.unstable
    assert blurred.note.startswith("unstable: four ways to count say")
    assert blurred.high / blurred.low > clear.high / clear.low


def test_no_novel_class_gives_about_the_known_number():
    found = hidden(problem([50] * 12, 12, 0.4, noise=0.3)[0])
    assert 12 <= found.best <= 13
    assert found.low == 12


def test_rows_of_a_class_are_read_from_mates_in_its_clusters():
    truth = np.repeat(np.arange(4), 100)
    target = np.where((np.arange(400) % 4 == 0) & (truth < 2), truth, -1)
    whole = mate_sizes(truth, target)
    np.testing.assert_allclose(whole, 100, rtol=0.05)
    assert (mate_sizes(np.arange(400) // 4 % 2 + 2 * truth, target) > 50).all()  # split classes are not half classes


def test_neighbours_and_gate_find_the_size_of_hidden_and_of_shown_classes():
    data, truth = problem([90, 60, 30] * 6, 9, 0.3, noise=0.5, seed=1)
    half, shown = np.arange(0, 4), np.arange(4, 9)
    sizes, pairs = neighbour_sizes(Fold(half, data.x, ward_tree(data.x)), data.target)
    assert pairs > 50
    assert sizes.sum() == pytest.approx((truth < 4).sum(), rel=0.2)
    gate = gate_sizes(data.x, data.target, half, shown, seed=0)
    assert gate.sum() == pytest.approx(((truth >= 4) & (truth < 9)).sum(), rel=0.2)
    assert np.corrcoef(gate, np.bincount(truth)[4:9])[0, 1] > 0.9


def test_classes_are_renumbered_in_order():
    target = np.array([-1, 0, 3, 5, 3, 9])
    assert in_order(target, np.array([3, 9])).tolist() == [-1, -1, 0, -1, 0, 1]


def test_evidence_is_weighed_and_drawn_to_the_usual_ratio_where_it_is_weak():
    sure = Evidence(0.3, 0.3, 0.3, 0.3, 1.0, 1e9).combined()
    assert sure[0] == pytest.approx(0.3, abs=0.01)
    assert sure[1] == pytest.approx(LEAST, rel=0.1)
    torn = Evidence(2.0, 2.0, 0.0, 0.0, 0.2, 10).combined()
    apart = Evidence(2.0, 2.0, 1.5, 1.5, 0.2, 10).combined()
    assert PRIOR < torn[0] < apart[0]
    assert torn[1] > apart[1] > sure[1]


@pytest.mark.parametrize("known", [0, 1, 3])
def test_with_too_few_known_classes_density_counts_and_it_is_said(known):
    data, _ = problem([40] * 6, known, 0.3, noise=0.3)
    found, other = run_estimator("hidden", data), run_estimator("density", data)
    assert (found.best, found.low, found.high) == (other.best, other.low, other.high)
    assert "fewer than 4 known classes have two labels" in found.note


def test_one_label_a_class_beside_others_is_no_hindrance():
    data, _ = problem([40] * 16, 8, 0.3, noise=0.4)
    target = data.target.copy()
    first = np.flatnonzero(target == 7)
    target[first[1:]] = -1  # class 7 keeps one
    found = run_estimator("hidden", CountData(data.x, target, 8, 8, 32))
    assert abs(found.best - 16) <= 3


def test_the_answer_depends_on_the_seed_alone():
    data, _ = problem([30] * 12, 6, 0.3)
    assert gather(data.x, data.target, 6, 0) == gather(data.x, data.target, 6, 0)
    assert gather(data.x, data.target, 6, 0) != gather(data.x, data.target, 6, 1)


def test_copies_and_two_labels_a_class_are_survived():
    x, truth = clouds([12] * 6, 0.3)
    x = x.repeat_interleave(2, dim=0)
    truth = np.repeat(truth, 2)
    target = np.full(len(truth), -1)
    for one in range(5):
        target[np.flatnonzero(truth == one)[:2]] = one
    found = estimate_classes(ArraySource(x.numpy()), torch.nn.Identity(), target, 5)
    assert 5 <= found.low <= found.best <= found.high
    same = CountData(torch.ones(60, 4) / 2, np.where(np.arange(60) < 20, np.arange(60) % 5, -1), 5, 5, 20)
    assert run_estimator("hidden", same).best >= 5
