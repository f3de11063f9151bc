"""Our SGD against torch's, to the bit, and what it spares."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from rowssl.training.loop import SGD, Group


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_same_bits_as_torch(momentum: float) -> None:
    generator = torch.Generator().manual_seed(0)
    ours = [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in [(7, 5), (5,), (3, 3)]]
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    one = SGD([Group([ours[0], ours[2]], 0.01), Group([ours[1]], 0.0)], lr=0.1, momentum=momentum)
    two = torch.optim.SGD(
        [{"params": [theirs[0], theirs[2]], "weight_decay": 0.01}, {"params": [theirs[1]], "weight_decay": 0.0}],
        lr=0.1, momentum=momentum, fused=True,
    )  # fmt: skip
    for step in range(6):
        one.lr = 0.1 / (step + 1)
        for group in two.param_groups:
            group["lr"] = one.lr
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn(a.shape, generator=generator)
            b.grad = a.grad.clone()
        one.step()
        two.step()
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert len(one.momenta) == (3 if momentum else 0)
    one.zero_grad()
    assert all(p.grad is None for p in ours)


def test_a_parameter_whose_gradient_comes_late() -> None:
    early, late = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    optimiser = SGD([Group([early, late], 0.0)], lr=0.5, momentum=0.9)
    early.grad = torch.ones(2)
    optimiser.step()
    assert early.tolist() == [0.5, 0.5]
    assert late.tolist() == [1.0, 1.0]
    late.grad = torch.full((2,), 2.0)
    optimiser.step()
    assert early.tolist() == pytest.approx([-0.45, -0.45])  # v = 0.9 + 1
    assert late.tolist() == [0.0, 0.0]


def test_training_loads_no_compiler() -> None:
    program = """
import sys, numpy as np, torch
from rowssl.data.feed import ArraySource, Feed
from rowssl.methods import build_method
from rowssl.encoders.tails import AdapterTail
from rowssl.training.loop import Optimisation, build_optimiser
method = build_method("dts", AdapterTail(8), {}, n_old=2, n_classes=3, n_rows=9, seed=0)
optimiser = build_optimiser(method, Optimisation())
method.tail(torch.randn(4, 8)).sum().backward()
optimiser.step()
opencon = build_method("opencon", AdapterTail(8), {}, n_old=2, n_classes=3, n_rows=9, seed=0)
opencon.finish(Feed(ArraySource(np.ones((9, 8))), np.arange(9) % 3 - 1, batch_size=4, epochs=1, seed=0))
print("torch._dynamo" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
