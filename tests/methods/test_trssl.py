"""TRSSL steps and its state against plain loops in double precision."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from contract.problems import Problem, build, feed_of, long_tailed
from methods import naive
from rowssl.core.errors import InputError
from rowssl.data.feed import Batch
from rowssl.methods.trssl import TRSSL, expected_share

TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def tiny() -> Problem:
    return long_tailed(48, known=3, novel=3, dim=7, views=4)


def weights_of(method: nn.Module) -> dict[str, np.ndarray]:
    return {name: value.detach().numpy().copy() for name, value in method.state_dict().items()}


def double(batch: Batch) -> Batch:
    return replace(batch, views=tuple(view.double() for view in batch.views))


def transport(logits: list[np.ndarray], prior: list[float], epsilon: float = 0.05, steps: int = 3) -> np.ndarray:
    """Sinkhorn-Knopp on a table of exponentials: columns to the prior, rows to 1 / n, and so on; rows sum to 1 at the end."""
    table = [[math.exp(float(x) / epsilon) for x in row] for row in logits]
    rows, classes = len(table), len(table[0])
    for _ in range(steps):
        for k in range(classes):
            total = sum(table[i][k] for i in range(rows))
            for i in range(rows):
                table[i][k] *= prior[k] / total
        for i in range(rows):
            total = sum(table[i])
            table[i] = [x / total / rows for x in table[i]]
    return np.array(table) * rows


def shares(prior: np.ndarray, rows: int, least: float = 1.0) -> list[float]:
    """Expected rows of each class, at least one, as shares."""
    expected = [max(least, rows * float(p)) for p in prior]
    return [x / sum(expected) for x in expected]


def pseudo_labels(logits: list[np.ndarray], target: list[int], prior: np.ndarray, n_old: int) -> list[np.ndarray]:
    """The label, or the transport of the unlabelled rows, made hard where a novel class has half of a row."""
    classes = len(logits[0])
    hidden = [i for i, t in enumerate(target) if t < 0]
    result = [np.eye(classes)[t] if t >= 0 else np.zeros(classes) for t in target]
    if hidden:
        q = transport([logits[i] for i in hidden], shares(prior, len(hidden)))
        for place, i in enumerate(hidden):
            row = q[place]
            hard = any(row[k] >= 0.5 for k in range(n_old, classes))
            result[i] = np.array([float(x >= 0.5) for x in row]) if hard else row
    return result


def by_loops(method: TRSSL, batch: Batch) -> float:
    """Mixed-up cross-entropy with a temperature per row."""
    weights = weights_of(method)
    network, target, rows = naive.Network(weights), batch.target.tolist(), len(batch.index)
    x = [row for view in batch.views for row in view.numpy()]
    o = [network.logits(network.feature(row)) for row in x]
    labels = [pseudo_labels(part, target, weights["prior"], method.n_old) for part in (o[rows:], o[:rows])]  # swapped
    q = labels[0] + labels[1]
    temperature = [
        0.1 if target[i % rows] >= 0 else weights["temperature"][batch.index[i % rows]] for i in range(2 * rows)
    ]
    rng = np.random.default_rng([method.seed, 32, batch.step])
    amount, partner = rng.beta(0.75, 0.75), rng.permutation(2 * rows)
    total = 0.0
    for i in range(2 * rows):
        j = partner[i]
        mixed = amount * x[i] + (1 - amount) * x[j]
        wanted = amount * q[i] + (1 - amount) * q[j]
        tau = amount * temperature[i] + (1 - amount) * temperature[j]
        total += naive.cross_entropy(wanted, network.logits(network.feature(mixed)) / tau)
    return total / (2 * rows)


@pytest.mark.parametrize("prior", ["uniform", "estimated"])
def test_steps_and_the_average_are_the_loops(tiny: Problem, prior: str) -> None:
    feed = feed_of(tiny, epochs=4, batch_size=12)
    method = build("trssl", tiny, prior=prior).double()
    optimiser = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=0.05)
    method.temperature.copy_(torch.from_numpy(np.random.default_rng(0).uniform(0.1, 1, size=len(tiny.truth))))
    if prior == "estimated":
        method.prior.copy_(torch.tensor([0.4, 0.3, 0.15, 0.1, 0.05, 0.0]))
    for step in range(6):
        batch = double(feed.batch(step))
        result = method.loss(batch)
        assert list(result.losses) == ["classification"]
        assert abs(result.losses["classification"].item() - by_loops(method, batch)) <= TOLERANCE, step
        optimiser.zero_grad()
        result.losses["classification"].backward()
        optimiser.step()
        before = weights_of(method)
        method.after_step(batch, result)
        momentum = min(0.999, (1 + step) / (10 + step))
        after = weights_of(method)
        for name, now in before.items():
            if name.startswith("average.module.") and not name.endswith(("gain", "offset", "centre")):
                online = name.replace("average.module.0", "tail").replace("average.module.1", "classifier")
                np.testing.assert_allclose(after[name], momentum * now + (1 - momentum) * before[online], atol=1e-12)


@pytest.mark.parametrize("views", [10, 3, 1])
def test_temperatures_and_the_estimated_prior_are_the_loops(tiny: Problem, views: int) -> None:
    feed = feed_of(tiny, epochs=4, batch_size=12)
    method = build("trssl", tiny, prior="estimated", uncertainty_views=views)
    method.start(feed)
    with torch.no_grad():
        for parameter in method.average.module.parameters():  # an average unlike the network itself
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))
    method.begin_epoch(feed, 0)
    assert torch.equal(method.temperature, torch.full((len(tiny.truth),), 0.1))  # the first epoch knows nothing
    method.begin_epoch(feed, 1)

    average = {
        name.replace("average.module.0", "tail").replace("average.module.1", "classifier"): value
        for name, value in weights_of(method).items()
        if name.startswith("average.")
    }
    network, std, counts = naive.Network(average), {}, np.zeros(6)
    used = min(views, len(tiny.views))
    for row in np.flatnonzero(tiny.targets < 0):
        p = [naive.softmax(network.logits(network.feature(tiny.views[v][row]))) for v in range(used)]
        mean = sum(p) / used
        best = int(np.argmax(mean))
        counts[best] += 1
        std[row] = math.sqrt(sum((q[best] - mean[best]) ** 2 for q in p) / (used - 1)) if used > 1 else 0.0
    expected = np.full(len(tiny.truth), 0.1)
    for row, value in std.items():
        expected[row] = min(1.0, max(0.1, value / max(std.values()))) if used > 1 else 0.1
    np.testing.assert_allclose(method.temperature, expected, atol=2e-5)  # a spread of 1e-3 in single precision
    np.testing.assert_allclose(method.prior, 0.9 / 6 + 0.1 * counts / counts.sum(), atol=1e-7)
    if used > 1:
        assert method.temperature.max() == 1.0


def test_without_mixing_and_uncertainty_labelled_rows_have_plain_cross_entropy(
    tiny: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    labelled = replace(tiny, targets=tiny.truth, n_old=6)
    method, batch = build("trssl", labelled), feed_of(labelled, epochs=1, batch_size=12).batch(0)
    monkeypatch.setattr(method, "_mixing", lambda step, rows, device: (1.0, torch.arange(rows).flip(0)))
    logits = method.predict_logits(torch.cat(batch.views))
    expected = nn.functional.cross_entropy(logits / 0.1, batch.target.repeat(2))
    torch.testing.assert_close(method.loss(batch).losses["classification"], expected)


def test_only_a_novel_class_is_made_hard(tiny: Problem) -> None:
    method = build("trssl", tiny, least=0.0)
    o = 0.2 * torch.eye(6)  # each row sure of its own class
    o[:, 0] += 0.01 * torch.arange(6)
    q = method._targets(o, torch.full((6,), -1))
    assert torch.equal(q[3:], torch.eye(6)[3:])
    assert (q[:3].max(1).values > 0.5).all()
    assert (q[:3].max(1).values < 1).all()


def test_the_prior_goes_by_size_and_leaves_every_class_a_row() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0, 0.0], [0.0, 3.0, 2.0, 1.0]]).repeat(5, 1).double()
    prior = torch.tensor([0.05, 0.6, 0.1, 0.25], dtype=torch.float64)
    ordered = expected_share(logits, prior, 0.0, ordered=True)
    np.testing.assert_allclose(ordered, [0.05, 0.6, 0.25, 0.1])  # mass: class 1, then 2, then 3, then 0
    np.testing.assert_allclose(expected_share(logits, prior, 0.0, ordered=False), prior)
    clamped = expected_share(logits, prior, 1.0, ordered=False)
    np.testing.assert_allclose(clamped, np.array([1.0, 6.0, 1.0, 2.5]) / 10.5)
    few = expected_share(logits[:2], prior, 1.0, ordered=False)
    np.testing.assert_allclose(few, np.array([1.0, 1.2, 1.0, 1.0]) / 4.2)  # a small batch is close to uniform


def test_the_oracle_counts_unlabelled_rows_and_must_be_given(tiny: Problem) -> None:
    with pytest.raises(InputError, match="oracle"):
        build("trssl", tiny, prior="oracle")
    with pytest.raises(InputError, match="prior"):
        build("trssl", tiny, prior="true")
    feed = feed_of(tiny, epochs=2, batch_size=12)
    method = build("trssl", tiny, prior="oracle", oracle_truth=torch.from_numpy(tiny.truth))
    method.start(feed)
    counts = np.bincount(tiny.truth[tiny.targets < 0], minlength=6)
    np.testing.assert_allclose(method.prior, np.sort(counts)[::-1] / counts.sum(), atol=1e-7)
    before = method.prior.clone()
    method.begin_epoch(feed, 1)
    assert torch.equal(method.prior, before)


def test_the_averaged_network_is_the_model(tiny: Problem) -> None:
    feed = feed_of(tiny, epochs=2, batch_size=12)
    method = build("trssl", tiny)
    method.start(feed)
    with torch.no_grad():
        method.classifier.weight.normal_(generator=torch.Generator().manual_seed(1))
        method.tail.fc2.weight.fill_(0.1)
    method.after_step(feed.batch(3), method.loss(feed.batch(3)))
    x = torch.from_numpy(tiny.test)
    before, average = method.predict_logits(x), method.average(x)
    assert (before - average).abs().max() > 1e-3
    method.finish(feed)
    assert torch.equal(method.predict_logits(x), average)
