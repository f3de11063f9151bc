"""The classification losses in closed form: values against plain loops, gradients against autograd's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from methods import naive
from rowssl.methods import losses
from rowssl.methods._kernels import class_losses


def problem(rows: int, classes: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Logits of both views, and soft labels some of which are certain."""
    rng = np.random.default_rng(seed)
    o = torch.from_numpy(rng.uniform(-1, 1, size=(2 * rows, classes)))
    q = torch.softmax(torch.from_numpy(rng.normal(size=(2 * rows, classes))) * 3, dim=1)
    q[0] = torch.eye(classes, dtype=q.dtype)[0]
    return o, q


@pytest.mark.parametrize("by", [class_losses, losses.class_losses])
@pytest.mark.parametrize("tau", [1.0, 0.1])
@pytest.mark.parametrize(("rows", "classes"), [(1, 2), (4, 3), (3, 11)])
def test_values_are_the_loops(rows: int, classes: int, tau: float, by: Any) -> None:
    o, q = problem(rows, classes)
    classification, entropy = by(o, q, tau)
    views, labels = (o / tau).numpy().reshape(2, rows, classes), q.numpy().reshape(2, rows, classes)
    assert abs(float(classification) - naive.crossed((labels[0], labels[1]), (views[0], views[1]))) <= 1e-9
    assert abs(float(entropy) - naive.entropy_gap([naive.softmax(row) for row in (o / tau).numpy()])) <= 1e-9


@pytest.mark.parametrize("weights", [(1.0, 0.0), (0.0, 1.0), (0.7, 4.0)])
def test_gradients_of_any_sum_are_autograds(weights: tuple[float, float]) -> None:
    o, q = problem(5, 7)
    found: list[Tensor] = []
    for by in (class_losses, losses.class_losses):
        logits = o.clone().requires_grad_()
        first, second = by(logits, q, 0.1)
        (weights[0] * first + weights[1] * second).backward()
        assert logits.grad is not None
        found.append(logits.grad)
    torch.testing.assert_close(*found, atol=1e-12, rtol=1e-10)


def test_a_class_that_nobody_predicts_has_a_finite_gradient() -> None:
    o, q = problem(4, 6)
    o[:, 5] = -100.0
    assert float(torch.softmax(o / 0.1, dim=1).mean(0)[5]) < losses.LEAST
    found: list[Tensor] = []
    for by in (class_losses, losses.class_losses):
        logits = o.clone().requires_grad_()
        sum(by(logits, q, 0.1)).backward()
        assert logits.grad is not None
        assert torch.isfinite(logits.grad).all()
        found.append(logits.grad)
    torch.testing.assert_close(*found, atol=1e-12, rtol=1e-10)


def test_many_classes_cost_no_digits() -> None:
    o, q = problem(128, 1000)
    exact = class_losses(o, q, 0.1)
    for found, expected in zip(class_losses(o.float(), q.float(), 0.1), exact, strict=True):
        assert abs(float(found) - float(expected)) <= 5e-6
