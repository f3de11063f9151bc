"""Steps of a method, each term compared with plain loops in double precision."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import numpy as np
import torch

from rowssl.data.feed import Batch, Feed
from rowssl.methods.base import Method

TOLERANCE = 1e-6


def compare_steps(
    method: Method,
    feed: Feed,
    steps: Iterable[int],
    by_loops: Callable[[dict[str, np.ndarray], Batch], Mapping[str, float]],
) -> None:
    """The terms are those of `by_loops(weights, batch)`, and each step trains every parameter."""
    method.double()
    optimiser = torch.optim.SGD(method.parameters(), lr=0.05)
    for step in steps:
        batch = feed.batch(step)
        batch = replace(batch, views=tuple(view.double() for view in batch.views))
        result = method.loss(batch)
        expected = by_loops({name: value.detach().numpy().copy() for name, value in method.state_dict().items()}, batch)
        assert set(result.losses) == set(expected)
        for name, value in expected.items():
            assert abs(result.losses[name].item() - value) <= TOLERANCE, (step, name)
        optimiser.zero_grad()
        sum(result.losses.values()).backward()
        assert all(torch.isfinite(p.grad).all() for p in method.parameters())
        optimiser.step()
        method.after_step(batch, result)
