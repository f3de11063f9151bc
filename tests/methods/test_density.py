"""Density, dynamic temperature, prototypes, class uncertainty and phi against plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from methods import naive
from rowssl.methods._kernels import largest, nearest_prototype
from rowssl.methods.density import (
    ClassStatistics,
    dynamic_temperature,
    group_mean,
    neighbour_density,
    refresh_uncertainty,
    tail_discovery,
    update_prototypes,
)

TOLERANCE = 1e-6


def unit_rows(seed: int, rows: int, dim: int = 5) -> Tensor:
    return F.normalize(torch.from_numpy(np.random.default_rng(seed).normal(size=(rows, dim))), dim=1)


@pytest.mark.parametrize("keys", [40, 15, 4, 1])
@pytest.mark.parametrize("official", [False, True])
def test_density_is_the_loop_also_with_fewer_keys_than_neighbours(keys: int, official: bool) -> None:
    prototypes, queue = unit_rows(1, 6), unit_rows(2, keys)
    weighting, scale = ("uniform", "sum") if official else ("rank", "mean")
    got = neighbour_density(prototypes @ queue.T, 15, weighting=weighting, scale=scale)
    expected = [naive.density(m, queue.numpy(), 15, official) for m in prototypes.numpy()]
    np.testing.assert_allclose(got, expected, atol=TOLERANCE, rtol=0)


def test_official_density_is_the_sum_of_the_nearest_cosines() -> None:
    similarity = torch.tensor([[0.9, -0.5, 0.3, 0.7], [0.0, 0.1, 0.2, 0.3]])
    got = neighbour_density(similarity, 3, weighting="uniform", scale="sum")
    np.testing.assert_allclose(got, [0.9 + 0.7 + 0.3, 0.3 + 0.2 + 0.1], atol=TOLERANCE)


def test_rank_weights_by_hand() -> None:
    similarity = torch.tensor([[0.1, 0.9, 0.5]])
    assert float(neighbour_density(similarity, 2)) == pytest.approx((2 * 0.9 + 0.5) / 3)
    assert float(neighbour_density(similarity, 2, weighting="uniform")) == pytest.approx(0.7)
    assert float(neighbour_density(similarity, 2, scale="sum")) == pytest.approx(2 * (2 * 0.9 + 0.5) / 3)


@pytest.mark.parametrize(("rows", "columns", "k"), [(3, 2000, 15), (7, 1027, 4), (2, 64, 1), (2, 63, 1), (4, 40, 15)])
def test_the_largest_and_the_nearest_are_those_of_a_sorted_row(rows: int, columns: int, k: int) -> None:
    values = torch.from_numpy(np.random.default_rng([8, columns]).normal(size=(rows, columns)).round(2))
    values[:, -1] = 9.0  # also what is left over after the last whole group counts
    for table in (values, -values, values.T.contiguous().T):
        expected = [sorted(row, reverse=True)[:k] for row in table.tolist()]
        assert largest(table, k).tolist() == expected
        assert nearest_prototype(table).tolist() == [column.index(max(column)) for column in table.T.tolist()]
    nothing = nearest_prototype(
        torch.full((rows, 2), float("nan"))
    )  # a bad number stops training elsewhere, not as an index here
    assert ((nothing >= 0) & (nothing < rows)).all()


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 8), st.integers(1, 30), st.integers(1, 20))
def test_mean_density_stays_a_cosine_and_ignores_the_order_of_the_queue(seed: int, m: int, q: int, k: int) -> None:
    similarity = unit_rows(seed, m) @ unit_rows(seed + 1, q).T
    for weighting in ("rank", "uniform"):
        d = neighbour_density(similarity, k, weighting=weighting)
        assert ((d >= similarity.amin(1) - 1e-9) & (d <= similarity.amax(1) + 1e-9)).all()
        shuffled = neighbour_density(similarity[:, torch.randperm(q)], k, weighting=weighting)
        np.testing.assert_allclose(d, shuffled, atol=1e-12)


def test_temperature_of_densest_sparsest_and_between() -> None:
    d = torch.tensor([0.2, 0.8, 0.5], dtype=torch.float64)
    tau = dynamic_temperature(d, d.min(), d.max(), 0.05, 1.0)
    np.testing.assert_allclose(tau, [0.05, 1.0, 0.525], atol=1e-12)


def test_temperature_of_scores_beyond_the_prototypes_stays_in_its_range() -> None:
    low, high = torch.tensor(0.2), torch.tensor(0.6)
    tau = dynamic_temperature(torch.tensor([-0.9, 0.1, 0.7, 1.0]), low, high, 0.05, 1.0)
    np.testing.assert_allclose(tau, [0.05, 0.05, 1.0, 1.0], atol=1e-7)


def test_temperature_is_the_middle_when_all_densities_are_equal() -> None:
    d = torch.full((4,), 0.3)
    np.testing.assert_allclose(dynamic_temperature(d, d.min(), d.max(), 0.05, 1.0), np.full(4, 0.525), atol=1e-7)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=12),
    st.floats(0.01, 0.5),
    st.floats(0.5, 2),
)
def test_temperature_is_monotonic_and_within_its_range(densities: list[float], tau_min: float, tau_max: float) -> None:
    d = torch.tensor(densities).sort().values
    tau = dynamic_temperature(d, d.min(), d.max(), tau_min, tau_max)
    assert torch.isfinite(tau).all()
    assert (tau >= tau_min - 1e-6).all()
    assert (tau <= tau_max + 1e-6).all()
    assert (tau.diff() >= -1e-6).all()
    if d[-1] - d[0] > 1e-6:
        assert float(tau[0]) == pytest.approx(tau_min, abs=1e-5)
        assert float(tau[-1]) == pytest.approx(tau_max, abs=1e-5)


def test_prototypes_move_as_in_the_loop() -> None:
    prototypes, keys = unit_rows(4, 5), unit_rows(5, 23)
    got = update_prototypes(prototypes, keys, (prototypes @ keys.T).argmax(0), 0.9)
    np.testing.assert_allclose(got, naive.moved(prototypes.numpy(), keys.numpy(), 0.9), atol=TOLERANCE, rtol=0)


def test_a_prototype_without_keys_stays() -> None:
    prototypes, keys = unit_rows(6, 4), unit_rows(7, 6)
    got = update_prototypes(prototypes, keys, torch.tensor([0, 0, 2, 2, 2, 0]), 0.9)
    np.testing.assert_allclose(got[[1, 3]], prototypes[[1, 3]], atol=1e-12)
    assert not torch.allclose(got[0], prototypes[0], atol=1e-3)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 8), st.integers(1, 30), st.floats(0, 1))
def test_prototypes_keep_length_one(seed: int, m: int, n: int, momentum: float) -> None:
    prototypes, keys = unit_rows(seed, m).float(), unit_rows(seed + 1, n).float()
    assigned = torch.from_numpy(np.random.default_rng(seed).integers(m, size=n))
    got = update_prototypes(prototypes, keys, assigned, momentum)
    empty = torch.bincount(assigned, minlength=m) == 0
    assert torch.equal(got[empty], prototypes[empty])
    np.testing.assert_allclose(got.norm(dim=1), np.ones(m), atol=1e-5)


def test_group_mean_by_hand() -> None:
    mean, size = group_mean(torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 0.0]]), torch.tensor([2, 0, 2]), 4)
    assert mean.tolist() == [[3, 4], [0, 0], [3, 1], [0, 0]]
    assert size.tolist() == [1, 0, 2, 0]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-15, 15, width=32), st.integers(0, 4)), max_size=60),
    st.integers(1, 7),
)
def test_class_statistics_are_numpys_population_std(scores: list[tuple[float, int]], chunk: int) -> None:
    statistics, lists = ClassStatistics(6), [[] for _ in range(6)]
    for begin in range(0, len(scores), chunk):
        part = scores[begin : begin + chunk]
        statistics.add(torch.tensor([s for s, _ in part]), torch.tensor([c for _, c in part], dtype=torch.long))
        for score, label in part:
            lists[label].append(np.float32(score))
    expected = [np.std(np.array(one, dtype=np.float64)) if one else 0.0 for one in lists]
    np.testing.assert_allclose(statistics.std(), expected, atol=1e-6)
    assert statistics.count.tolist() == [len(one) for one in lists]
    assert statistics.std()[5] == 0
    statistics.clear()
    assert not any(buffer.any() for buffer in statistics.buffers())


def test_class_statistics_of_one_sample_are_exactly_zero() -> None:
    statistics = ClassStatistics(2)
    statistics.add(torch.tensor([0.1234567]), torch.tensor([1]))
    assert statistics.std().tolist() == [0, 0]


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), st.floats(0, 0.99), st.sampled_from(["zero", "keep", "one", "max"]))
def test_uncertainty_variants(seed: int, momentum: float, empty: str) -> None:
    rng = np.random.default_rng(seed)
    u, fresh = rng.random(8), rng.random(8) * (rng.random(8) < 0.6)
    got = refresh_uncertainty(torch.tensor(u), torch.tensor(fresh), momentum=momentum, empty=empty)
    for c in range(8):
        if fresh[c] == 0:
            assert float(got[c]) == {"zero": 0, "keep": u[c], "one": 1, "max": max(fresh)}[empty]
        else:
            assert float(got[c]) == pytest.approx(momentum * u[c] + (1 - momentum) * fresh[c], abs=1e-12)
    assert (got >= 0).all()


def test_the_papers_uncertainty_is_the_std_itself_and_zero_for_an_empty_class() -> None:
    got = refresh_uncertainty(torch.tensor([0.5, 0.5]), torch.tensor([0.2, 0.0]))
    np.testing.assert_allclose(got, [0.2, 0.0])


def test_tail_discovery_by_hand() -> None:
    score = torch.tensor([0.9, 0.1, 0.8, 0.2, 0.7, 0.6, 0.5, 0.4, 0.3, 1.0])
    tail = torch.zeros(10, dtype=torch.bool)
    tail[[1, 3, 0, 2]] = True  # two of the four are the sparsest two rows
    assert tail_discovery(score, tail, share=0.2) == pytest.approx(1 / 0.4)
    assert tail_discovery(score, ~tail, share=0.2) == 0
    assert tail_discovery(score, tail, share=0.4) == pytest.approx((2 / 4) / 0.4)
    assert tail_discovery(score, tail, share=1.0) == pytest.approx(1)


def test_tail_discovery_of_nobody_is_not_a_number_and_few_rows_use_one() -> None:
    score = torch.tensor([0.3, 0.1, 0.2])
    assert math.isnan(tail_discovery(score, torch.zeros(3, dtype=torch.bool)))
    assert tail_discovery(score, torch.tensor([False, True, False]), share=0.1) == pytest.approx(3)


def test_on_another_device_nothing_goes_through_numpy() -> None:
    """`meta` stands for a GPU: shapes without values, and no array."""
    wide = torch.empty(3, 2000, device="meta")
    assert largest(wide, 5).shape == (3, 5)
    assert largest(wide, 5).is_meta
    assert nearest_prototype(wide).shape == (2000,)
    assert nearest_prototype(wide).is_meta
