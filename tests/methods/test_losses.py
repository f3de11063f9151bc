"""Losses against plain loops in double precision, to 1e-6, and the identities that tie them together."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from methods import naive
from rowssl.methods import losses

TOLERANCE = 1e-6


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def unit_rows(rng: np.random.Generator, rows: int, dim: int = 6) -> Tensor:
    return F.normalize(torch.from_numpy(rng.normal(size=(rows, dim))), dim=1)


def cosines(rng: np.random.Generator, *shape: int) -> Tensor:
    return torch.from_numpy(rng.uniform(-1, 1, size=shape))


@pytest.mark.parametrize("tau", [1.0, 0.07, 0.05])
def test_info_nce_with_one_temperature(rng: np.random.Generator, tau: float) -> None:
    positive, negative = cosines(rng, 7), cosines(rng, 7, 11)
    expected = [naive.info_nce(float(positive[i]), negative[i].tolist(), tau) for i in range(7)]
    got = losses.info_nce(positive, negative, tau)
    assert got.dtype == torch.float64
    np.testing.assert_allclose(got, expected, atol=TOLERANCE, rtol=0)


def test_info_nce_with_a_temperature_per_row(rng: np.random.Generator) -> None:
    positive, negative, tau = cosines(rng, 5), cosines(rng, 5, 9), torch.from_numpy(rng.uniform(0.05, 1, size=5))
    expected = [naive.info_nce(float(positive[i]), negative[i].tolist(), float(tau[i])) for i in range(5)]
    np.testing.assert_allclose(losses.info_nce(positive, negative, tau), expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("tau", [0.05, torch.full((4,), 0.3, dtype=torch.float64)])
def test_info_nce_without_negatives_is_zero(rng: np.random.Generator, tau: float | Tensor) -> None:
    got = losses.info_nce(cosines(rng, 4), torch.zeros(4, 0, dtype=torch.float64), tau)
    np.testing.assert_allclose(got, np.zeros(4), atol=TOLERANCE)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(0, 8), st.booleans())
def test_unified_contrastive(seed: int, rows: int, queue: int, with_ignore: bool) -> None:
    rng = np.random.default_rng(seed)
    positive, cosine = cosines(rng, rows), cosines(rng, rows, queue)
    same = torch.from_numpy(rng.random((rows, queue)) < 0.4)
    ignore = torch.from_numpy(rng.random((rows, queue)) < 0.3) & ~same if with_ignore else None
    got = losses.unified_contrastive(positive, cosine, same, ignore=ignore)
    for i in range(rows):
        positives = [float(positive[i])] + [float(cosine[i, j]) for j in range(queue) if same[i, j]]
        negatives = [float(cosine[i, j]) for j in range(queue) if not same[i, j] and not (with_ignore and ignore[i, j])]
        assert abs(float(got[i]) - naive.unified(positives, negatives)) <= TOLERANCE


def test_unified_contrastive_with_one_positive_is_info_nce_at_temperature_one(rng: np.random.Generator) -> None:
    positive, cosine = cosines(rng, 6), cosines(rng, 6, 20)
    nobody = torch.zeros(6, 20, dtype=torch.bool)
    unified = losses.unified_contrastive(positive, cosine, nobody)
    np.testing.assert_allclose(unified, losses.info_nce(positive, cosine, 1.0), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("tau", [1.0, 0.1])
def test_info_nce_batch(rng: np.random.Generator, tau: float) -> None:
    first, second = unit_rows(rng, 5), unit_rows(rng, 5)
    got = losses.info_nce_batch(first, second, tau)
    assert abs(float(got) - naive.info_nce_batch(first.numpy(), second.numpy(), tau)) <= TOLERANCE


def test_sup_con(rng: np.random.Generator) -> None:
    first, second = unit_rows(rng, 8), unit_rows(rng, 8)
    target = torch.tensor([0, 1, -1, 0, 2, -1, 1, 0])
    got = losses.sup_con(first, second, target)
    assert abs(float(got) - naive.sup_con(first.numpy(), second.numpy(), target.tolist(), 0.07)) <= TOLERANCE


def test_sup_con_reads_no_unlabelled_row(rng: np.random.Generator) -> None:
    first, second, target = unit_rows(rng, 6), unit_rows(rng, 6), torch.tensor([0, 1, 0, -1, -1, 1])
    before = losses.sup_con(first, second, target)
    first[target < 0] = unit_rows(rng, 2)
    assert torch.equal(before, losses.sup_con(first, second, target))


def test_sup_con_without_labels_is_zero_and_differentiable(rng: np.random.Generator) -> None:
    first = unit_rows(rng, 4).requires_grad_()
    value = losses.sup_con(first, unit_rows(rng, 4), torch.full((4,), -1))
    value.backward()
    assert value.item() == 0
    assert first.grad is not None
    assert torch.equal(first.grad, torch.zeros_like(first))


def test_soft_cross_entropy_and_crossed_distillation(rng: np.random.Generator) -> None:
    teacher = tuple(F.softmax(cosines(rng, 6, 4) / 0.05, dim=1) for _ in range(2))
    student = tuple(cosines(rng, 6, 4) / 0.1 for _ in range(2))
    rows = [naive.cross_entropy(teacher[0][i].numpy(), student[0][i].numpy()) for i in range(6)]
    assert abs(float(losses.soft_cross_entropy(teacher[0], student[0])) - sum(rows) / 6) <= TOLERANCE
    expected = naive.crossed(tuple(t.numpy() for t in teacher), tuple(s.numpy() for s in student))
    assert abs(float(losses.crossed_distillation(teacher, student)) - expected) <= TOLERANCE


def test_soft_cross_entropy_of_one_hot_rows_is_cross_entropy(rng: np.random.Generator) -> None:
    logits, label = cosines(rng, 5, 3) / 0.1, torch.tensor([0, 2, 1, 1, 0])
    soft = losses.soft_cross_entropy(F.one_hot(label, 3).double(), logits)
    assert abs(float(soft - F.cross_entropy(logits, label))) <= TOLERANCE


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 7), st.integers(2, 9))
def test_entropy_gap_is_the_loop_and_never_negative(seed: int, rows: int, classes: int) -> None:
    probability = F.softmax(torch.from_numpy(np.random.default_rng(seed).normal(size=(rows, classes))), dim=1)
    gap = float(losses.entropy_gap(probability))
    assert abs(gap - naive.entropy_gap(probability.numpy())) <= TOLERANCE
    distance = float((probability.mean(0) - 1 / classes).abs().max())
    assert gap >= 2 * distance**2 - 1e-12  # Pinsker's inequality: 0 is reached by the uniform mean alone


def test_entropy_gap_is_zero_only_for_a_uniform_mean() -> None:
    assert float(losses.entropy_gap(torch.eye(5, dtype=torch.float64))) == pytest.approx(0, abs=1e-12)
    one_class = torch.zeros(3, 5, dtype=torch.float64)
    one_class[:, 2] = 1
    assert float(losses.entropy_gap(one_class)) == pytest.approx(math.log(5))
    nearly = torch.full((1, 5), 0.2, dtype=torch.float64)
    nearly[0, :2] += torch.tensor([1e-3, -1e-3])
    assert float(losses.entropy_gap(nearly)) > 1e-7


def dead_class(o: Tensor) -> Tensor:
    """Probabilities with one class at exactly 0, where a plain p log p has no gradient."""
    return losses.entropy_gap(F.softmax(torch.cat([o, torch.full_like(o[:, :1], -math.inf)], dim=1), dim=1))


@pytest.mark.parametrize(
    "loss",
    [
        lambda x: losses.info_nce(x[:, 0], x[:, 1:], 0.05).mean(),
        lambda x: losses.info_nce(x[:, 0], x[:, 1:1], 0.05).mean(),
        lambda x: losses.unified_contrastive(x[:, 0], x[:, 1:], x[:, 1:] > 0).mean(),
        lambda x: losses.unified_contrastive(x[:, 0], x[:, 1:], torch.ones_like(x[:, 1:], dtype=torch.bool)).mean(),
        lambda x: losses.unified_contrastive(x[:, 0], x[:, 1:1], x[:, 1:1] > 0).mean(),
        lambda x: losses.info_nce_batch(F.normalize(x, dim=1), F.normalize(x + 0.1, dim=1), 0.07),
        lambda x: losses.sup_con(F.normalize(x, dim=1), F.normalize(x + 0.1, dim=1), torch.tensor([0, 0, -1, 1])),
        lambda x: losses.crossed_distillation((F.softmax(x.detach() / 1e-3, 1),) * 2, (x / 0.1, x / 0.1)),
        dead_class,
    ],
)
def test_gradients_are_finite_in_single_precision(rng: np.random.Generator, loss: Callable[[Tensor], Tensor]) -> None:
    x = cosines(rng, 4, 7).float().requires_grad_()
    value = loss(x)
    value.backward()
    assert torch.isfinite(value)
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()


def test_extreme_cosines_stay_finite_in_single_precision() -> None:
    positive, cosine = torch.tensor([-1.0, 1.0]), torch.tensor([[1.0] * 50, [-1.0] * 50])
    for tau in (0.01, torch.tensor([0.01, 0.05])):
        value = losses.info_nce(positive, cosine, tau)
        assert torch.isfinite(value).all()
        assert value[0] > 100
        assert value[1] == pytest.approx(0, abs=1e-6)
    assert torch.isfinite(losses.unified_contrastive(positive / 0.01, cosine / 0.01, cosine > 2)).all()


def log_share(scores: list[float], chosen: int) -> float:
    """log of the softmax at one place."""
    return scores[chosen] - math.log(sum(math.exp(score) for score in scores))


@pytest.mark.parametrize("tau", [1.0, 0.1])
def test_info_nce_batch_compares_with_other_keys_where_these_are_given(rng: np.random.Generator, tau: float) -> None:
    first, second, keys = unit_rows(rng, 4), unit_rows(rng, 4), unit_rows(rng, 8)
    features, expected = torch.cat([first, second]), []
    for i in range(8):
        others = [j for j in range(8) if j != i]
        scores = [float(features[i] @ keys[j]) / tau for j in others]
        expected.append(-log_share(scores, others.index((i + 4) % 8)))
    got = float(losses.info_nce_batch(first, second, tau, keys))
    assert abs(got - sum(expected) / 8) <= TOLERANCE
    assert abs(got - float(losses.info_nce_batch(first, second, tau))) > 1e-3


def test_sup_con_compares_with_other_keys_where_these_are_given(rng: np.random.Generator) -> None:
    first, second, keys = unit_rows(rng, 5), unit_rows(rng, 5), unit_rows(rng, 10)
    target = [0, -1, 1, 0, 1]
    rows = [i for i in range(10) if target[i % 5] >= 0]
    features, expected = torch.cat([first, second]), []
    for i in rows:
        others = [j for j in rows if j != i]
        scores = [float(features[i] @ keys[j]) / 0.3 for j in others]
        same = [place for place, j in enumerate(others) if target[j % 5] == target[i % 5]]
        expected.append(-sum(log_share(scores, place) for place in same) / len(same))
    got = float(losses.sup_con(first, second, torch.tensor(target), 0.3, keys))
    assert abs(got - sum(expected) / len(expected)) <= TOLERANCE


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 7), st.integers(2, 9))
def test_entropy_gap_with_a_prior_is_the_divergence_from_it(seed: int, rows: int, classes: int) -> None:
    rng = np.random.default_rng(seed)
    probability, prior = (F.softmax(torch.from_numpy(rng.normal(size=(n, classes))), dim=1) for n in (rows, 1))
    mean = probability.mean(0).tolist()
    expected = sum(p * math.log(p / q) for p, q in zip(mean, prior[0].tolist(), strict=True))
    assert abs(float(losses.entropy_gap(probability, prior[0])) - expected) <= TOLERANCE
    uniform = torch.full((classes,), 1 / classes, dtype=torch.float64)
    assert abs(float(losses.entropy_gap(probability, uniform) - losses.entropy_gap(probability))) <= TOLERANCE


def test_labelled_cross_entropy_is_the_mean_over_both_views_of_the_labelled_rows(rng: np.random.Generator) -> None:
    student, target = (cosines(rng, 5, 3), cosines(rng, 5, 3)), [2, -1, 0, 1, -1]
    rows = [i for i in range(5) if target[i] >= 0]
    each = [-log_share(view[i].tolist(), target[i]) for view in student for i in rows]
    got = losses.labelled_cross_entropy(student, torch.tensor(target))
    assert abs(float(got) - sum(each) / len(each)) <= TOLERANCE


def test_labelled_cross_entropy_without_labels_is_zero_and_differentiable(rng: np.random.Generator) -> None:
    logits = cosines(rng, 4, 3).requires_grad_()
    value = losses.labelled_cross_entropy((logits, cosines(rng, 4, 3)), torch.full((4,), -1))
    value.backward()
    assert value.item() == 0
    assert logits.grad is not None
    assert torch.equal(logits.grad, torch.zeros_like(logits))
