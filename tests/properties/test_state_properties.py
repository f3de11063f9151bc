"""The queue is a deque, the momentum copy an exponential moving average, and a state dict holds all of it."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from contract.problems import METHODS, build, digest, feed_of, long_tailed
from rowssl.methods.base import MomentumCopy, Queue
from rowssl.methods.dts import DTS
from rowssl.training.loop import Optimisation, train

SIZES = st.lists(st.integers(0, 9), max_size=12)  # of batches, some larger than the queue


def keys_of(numbers: list[int]) -> Tensor:
    """A different unit key for every number."""
    angle = torch.tensor(numbers, dtype=torch.float32)
    return torch.stack([angle.cos(), angle.sin()], dim=1) if numbers else torch.zeros(0, 2)


def push(queue: Queue, numbers: list[int]) -> None:
    rows = torch.tensor(numbers, dtype=torch.long)
    queue.push(keys_of(numbers), rows % 5 - 1, rows)


def contents(queue: Queue) -> list[int]:
    """Row numbers, oldest first."""
    rows = queue.valid()[2].tolist()
    start = int(queue.cursor[0]) if queue.filled == queue.size else 0
    return rows[start:] + rows[:start]


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 7), SIZES)
def test_queue_is_a_deque(size: int, batches: list[int]) -> None:
    queue, model = Queue(size, 2), deque(maxlen=size)
    next_number = 0
    for count in batches:
        numbers = list(range(next_number, next_number + count))
        next_number += count
        expected_slots = queue.slots(count).tolist()
        push(queue, numbers)
        model.extend(numbers)
        assert contents(queue) == list(model)
        assert queue.filled == len(model)
        assert queue.rows[expected_slots].tolist() == numbers[-size:]
        keys, labels, rows = queue.valid()
        assert torch.equal(keys, keys_of(rows.tolist()))
        assert torch.equal(labels, rows % 5 - 1)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 7), SIZES, SIZES)
def test_queue_goes_on_from_its_state_dict(size: int, before: list[int], after: list[int]) -> None:
    queue, other = Queue(size, 2), Queue(size, 2)
    number = 0
    for count in before:
        push(queue, list(range(number, number + count)))
        number += count
    other.load_state_dict(queue.state_dict())
    for count in after:
        for each in (queue, other):
            push(each, list(range(number, number + count)))
        number += count
    assert digest(queue) == digest(other)


def test_random_queue_is_valid_and_of_one_class() -> None:
    queue = Queue(6, 3)
    queue.fill_randomly(0, torch.Generator().manual_seed(1))
    assert queue.filled == 6
    assert queue.labels.tolist() == [0] * 6
    np.testing.assert_allclose(queue.keys.norm(dim=1), np.ones(6), atol=1e-6)
    queue.push(torch.ones(2, 3), torch.tensor([4, 5]), torch.tensor([7, 8]))
    assert queue.labels.tolist() == [4, 5, 0, 0, 0, 0]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.floats(0, 1), st.integers(1, 5))
def test_momentum_copy_is_a_moving_average(seed: int, momentum: float, steps: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    online = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    copy = MomentumCopy(online, momentum)
    expected = [p.detach().double().numpy().copy() for p in online.parameters()]
    for _ in range(steps):
        with torch.no_grad():
            for tensor in online.parameters():
                tensor.copy_(torch.randn(tensor.shape, generator=generator))
            online[1].running_mean.copy_(torch.randn(2, generator=generator))
        copy.follow(online)
        expected = [
            momentum * e + (1 - momentum) * p.detach().double().numpy()
            for e, p in zip(expected, online.parameters(), strict=True)
        ]
    for got, wanted in zip(copy.module.parameters(), expected, strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-5)
        assert not got.requires_grad
    assert torch.equal(copy.module[1].running_mean, online[1].running_mean)


def test_momentum_copy_is_a_copy() -> None:
    online = nn.Linear(3, 2)
    copy = MomentumCopy(online, 0.5)
    x = torch.randn(4, 3)
    assert torch.equal(copy(x), online(x))
    with torch.no_grad():
        online.weight.add_(1)
    assert not torch.equal(copy(x), online(x))


@pytest.mark.parametrize("name", METHODS)
def test_state_dict_round_trip_and_laws_of_the_state(name: str) -> None:
    problem = long_tailed(80)
    method = build(name, problem)
    for epoch in train(method, feed_of(problem, epochs=3, batch_size=16), Optimisation()):
        assert epoch.number <= 3
        if isinstance(method, DTS):
            np.testing.assert_allclose(method.prototypes.norm(dim=1), np.ones(len(method.prototypes)), atol=1e-5)
            np.testing.assert_allclose(F.normalize(method.queue.valid()[0], dim=1), method.queue.valid()[0], atol=1e-5)
            assert (method.u >= 0).all()
            assert not method.statistics.count.any()
    fresh = build(name, problem, seed=5)
    assert digest(fresh) != digest(method)
    fresh.load_state_dict(method.state_dict())
    assert digest(fresh) == digest(method)


def test_uncertainty_of_a_class_without_samples_is_zero_in_the_paper() -> None:
    problem = long_tailed(80)
    method = build("dts-paper", problem)
    assert isinstance(method, DTS)
    feed = feed_of(problem, epochs=1, batch_size=16)
    method.start(feed)
    method.u.fill_(0.5)
    seen: set[int] = set()
    for step in range(feed.steps):
        batch = feed.batch(step)
        result = method.loss(batch)
        seen |= set(result.extras["assigned"].tolist())
        method.after_step(batch, result)
    unseen = [c for c in range(problem.n_classes) if c not in seen]
    assert unseen
    assert method.u[unseen].tolist() == [0] * len(unseen)
