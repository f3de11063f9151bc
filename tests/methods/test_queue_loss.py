"""The closed form of the two queue losses: values against plain loops, gradients against autograd on the readable version."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from methods import naive
from rowssl.methods import losses
from rowssl.methods._kernels import queue_loss

TOLERANCE = 1e-6
WEIGHTS = (0.65, 0.35)


def case(seed: int, rows: int, queue: int, supervised: float, *, dim: int = 5) -> dict[str, Any]:
    """Random unit rows, temperatures and positives."""
    rng = np.random.default_rng(seed)
    h, b, keys = (F.normalize(torch.from_numpy(rng.normal(size=(n, dim))), dim=1) for n in (rows, rows, queue))
    chosen = torch.from_numpy(np.flatnonzero(rng.random(rows) < supervised))
    ignored = torch.from_numpy(rng.random(queue) < 0.3)
    return {
        "h": h,
        "b": b,
        "keys": keys,
        "tau": torch.from_numpy(rng.uniform(0.05, 1, size=rows)),
        "rows": chosen,
        "same": torch.from_numpy(rng.random((len(chosen), queue)) < 0.3) & ~ignored,
        "ignored": ignored if seed % 2 else None,
        "same_image": torch.from_numpy(rng.random((rows, queue)) < 0.2) if seed % 3 else None,
        "sup_tau": float(rng.uniform(0.1, 1.5)),
    }


def by_autograd(c: dict[str, Any], h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The readable version, with PyTorch's own gradient."""
    return losses.queue_loss(h, **{name: value for name, value in c.items() if name != "h"}, weights=WEIGHTS)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 7), st.integers(0, 12), st.sampled_from([0.0, 0.5, 1.0]))
def test_value_and_gradient(seed: int, rows: int, queue: int, supervised: float) -> None:
    c = case(seed, rows, queue, supervised)
    h = c.pop("h").requires_grad_()
    loss, l_u, l_sup = queue_loss(h, **c, weights=WEIGHTS)
    (gradient,) = torch.autograd.grad(3 * loss, h)
    expected, expected_u, expected_sup = by_autograd(c, h)
    (expected_gradient,) = torch.autograd.grad(3 * expected, h)
    np.testing.assert_allclose(loss.item(), expected.item(), atol=TOLERANCE)
    np.testing.assert_allclose(l_u.detach(), expected_u.detach(), atol=TOLERANCE)
    np.testing.assert_allclose(l_sup.item(), expected_sup.item(), atol=TOLERANCE)
    np.testing.assert_allclose(gradient, expected_gradient, atol=TOLERANCE)
    assert not l_u.requires_grad
    assert not l_sup.requires_grad


@pytest.mark.parametrize("by", [queue_loss, losses.queue_loss])
def test_value_by_loops(by: Any) -> None:
    c = case(6, 5, 9, 1.0)  # neither ignored entries nor masked images
    assert c["ignored"] is None
    assert c["same_image"] is None
    loss, l_u, l_sup = by(**c, weights=WEIGHTS)
    own_sup = []
    for i in range(5):
        positive = naive.dot(c["h"][i], c["b"][i])
        cosine = [naive.dot(c["h"][i], key) for key in c["keys"]]
        assert abs(float(l_u[i]) - naive.info_nce(positive, cosine, float(c["tau"][i]))) <= TOLERANCE
        tau = c["sup_tau"]
        positives = [positive / tau] + [x / tau for x, same in zip(cosine, c["same"][i], strict=True) if same]
        negatives = [x / tau for x, same in zip(cosine, c["same"][i], strict=True) if not same]
        own_sup.append(naive.unified(positives, negatives))
    assert abs(float(l_sup) - sum(own_sup) / 5) <= TOLERANCE
    assert abs(float(loss) - (0.65 * float(l_u.mean()) + 0.35 * float(l_sup))) <= TOLERANCE


def single(c: dict[str, Any]) -> dict[str, Any]:
    """In the precision of training."""
    return {k: v.float() if isinstance(v, Tensor) and v.dtype == torch.float64 else v for k, v in c.items()}


def test_single_precision_at_the_size_of_training() -> None:
    exact = case(2, 64, 4096, 0.5, dim=32)
    loss, _, _ = queue_loss(**single(exact), weights=WEIGHTS)
    assert abs(float(loss) - float(by_autograd(exact, exact["h"])[0])) <= 1e-4


@pytest.mark.parametrize("everything", [True, False])
def test_no_negatives_at_all(everything: bool) -> None:
    c = single(case(3, 4, 300, 1.0))
    c["same"][:] = everything
    c["ignored"] = None if everything else torch.ones(300, dtype=torch.bool)
    c["h"].requires_grad_()
    loss, _, l_sup = queue_loss(**c, weights=(0.0, 1.0))
    loss.backward()
    assert abs(l_sup.item()) <= TOLERANCE  # log(1 + 0)
    assert torch.isfinite(c["h"].grad).all()


@pytest.mark.parametrize("tau", [1.0, 0.05, 0.025])
@pytest.mark.parametrize("queue", [0, 50])
def test_opposite_rows_at_low_temperatures_in_single_precision(tau: float, queue: int) -> None:
    h = F.normalize(torch.ones(2, 8), dim=1)
    c = {"b": -h, "keys": -h[:1].expand(queue, -1), "rows": torch.zeros(0, dtype=torch.long)}
    loss, _, _ = queue_loss(h, **c, tau=tau, same=torch.zeros(0, queue, dtype=torch.bool), weights=WEIGHTS)
    assert abs(float(loss) - 0.65 * np.log(queue + 1)) <= 1e-4
