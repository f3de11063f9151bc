"""ORCA's steps, pairs, uncertainty and prior against plain loops."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from contract.problems import Problem, build, feed_of, long_tailed
from methods import naive
from methods.steps import TOLERANCE, compare_steps
from rowssl.core.errors import InputError
from rowssl.data.feed import Batch
from rowssl.methods.base import true_prior_of_heads
from rowssl.methods.losses import entropy_gap
from rowssl.methods.orca import EQUAL, ORCA, positive_pairs


@pytest.fixture(scope="module")
def tiny() -> Problem:
    return long_tailed(48, known=3, novel=3, dim=7, views=3)


def arrays(method: torch.nn.Module) -> dict[str, np.ndarray]:
    return {name: value.detach().numpy().copy() for name, value in method.state_dict().items()}


def mates_by_loops(z: list[np.ndarray], target: list[int], index: list[int], step: int) -> list[int]:
    """The labelled row's mate has the largest lot among its class, the unlabelled row's the largest cosine, first of equals."""
    lot, mates = np.random.default_rng([41, step]).random((len(z), len(z))), []
    for i in range(len(z)):
        others = [j for j in range(len(z)) if index[j] != index[i]]
        if target[i] >= 0:
            others = [j for j in others if target[j] == target[i]]
            mates.append(max(others, key=lambda j: lot[i, j]) if others else i)
        else:
            cosine = {j: naive.dot(naive.unit(z[i]), naive.unit(z[j])) for j in others}
            mates.append(next((j for j in others if cosine[j] >= max(cosine.values()) - EQUAL), i))
    return mates


def by_loops(weights: dict[str, np.ndarray], batch: Batch, raised: float) -> dict[str, float]:
    """Cross-entropy with the target's logit raised, -log of the pairs' common probability, log C - H of view 0."""
    network, target = naive.Network(weights), batch.target.tolist()
    z = [[network.feature(x) for x in view.numpy()] for view in batch.views]
    o = [[10 * network.logits(row) for row in view] for view in z]
    p = [[naive.softmax(row) for row in view] for view in o]
    classes = len(o[0][0])
    supervised = []
    for i, t in enumerate(target):
        if t >= 0:
            logits = o[0][i].copy()
            logits[t] += raised
            supervised.append(naive.cross_entropy(np.eye(classes)[t], logits))
    mates = mates_by_loops(z[0], target, batch.index.tolist(), batch.step)
    pairs = [-math.log(naive.dot(p[0][i], p[1][j])) for i, j in enumerate(mates)]
    return {
        "classification": sum(supervised) / len(supervised) if supervised else 0.0,
        "pairwise": 0.3 * sum(pairs) / len(pairs),
        "entropy": naive.entropy_gap(p[0]),
    }


@pytest.mark.parametrize(
    ("options", "u", "raised"),
    [
        ({}, 0.3, 3.0),
        ({}, 0.8, 5.0),
        ({"margin_cap": 0.2}, 0.3, 2.0),
        ({"margin": "fixed"}, 0.1, 5.0),
        ({"margin": "zero"}, 0.3, 0.0),
    ],
)
def test_steps_are_the_loops(tiny: Problem, options: dict[str, Any], u: float, raised: float) -> None:
    feed = feed_of(tiny, epochs=4, batch_size=12)
    method = build("orca", tiny, **options)
    method.u_bar.fill_(u)
    compare_steps(method, feed, (0, 1, 2, feed.steps - 1), lambda weights, batch: by_loops(weights, batch, raised))


def test_weights_scale_their_terms_alone(tiny: Problem) -> None:
    batch = feed_of(tiny, epochs=1, batch_size=12).batch(0)
    plain = build("orca", tiny).loss(batch).losses
    weighted = build("orca", tiny, eta_pair=0.0, eta_prior=3.0).loss(batch).losses
    assert weighted["pairwise"].item() == 0
    assert weighted["entropy"].item() == pytest.approx(3 * plain["entropy"].item())
    assert weighted["classification"].item() == plain["classification"].item()


def test_uncertainty_is_that_of_the_unlabelled_rows(tiny: Problem) -> None:
    feed = feed_of(tiny, epochs=1, batch_size=12)
    method = build("orca", tiny)
    with torch.no_grad():
        method.begin_epoch(feed, 0)
    network = naive.Network(arrays(method))
    doubts = [
        1 - max(naive.softmax(10 * network.logits(network.feature(x))))
        for x, t in zip(tiny.embeddings, tiny.targets, strict=True)
        if t < 0
    ]
    assert method.u_bar.item() == pytest.approx(sum(doubts) / len(doubts), abs=TOLERANCE)


def test_nothing_unlabelled_leaves_nothing_uncertain(tiny: Problem) -> None:
    known = replace(tiny, targets=tiny.truth, n_old=6)
    method = build("orca", known)
    method.begin_epoch(feed_of(known, epochs=1, batch_size=12), 0)
    assert method.u_bar.item() == 0


def test_uncertainty_holds_the_supervised_loss_back(tiny: Problem) -> None:
    batch = feed_of(tiny, epochs=1, batch_size=12).batch(0)
    method = build("orca", tiny)
    found = []
    for u in (0.0, 0.2, 0.5, 0.9):
        method.u_bar.fill_(u)
        found.append(method.loss(batch).losses["classification"].item())
    assert found[0] > found[1] > found[2] == found[3]


def pairs(target: list[int], index: list[int] | None = None, step: int = 0, seed: int = 0) -> list[int]:
    rows = len(target)
    z = torch.nn.functional.normalize(torch.randn(rows, 5, generator=torch.Generator().manual_seed(seed)), dim=1)
    where = torch.arange(rows) if index is None else torch.tensor(index)
    mate: Tensor = positive_pairs(z, torch.tensor(target), where, step)
    return mate.tolist()


def test_labelled_rows_are_paired_within_their_class() -> None:
    target = [0, 0, 0, 1, 2, 2, -1, -1]
    drawn = [pairs(target, step=step) for step in range(300)]
    assert all(mate[3] == 3 for mate in drawn)  # alone in its class
    assert all(mate[4] == 5 and mate[5] == 4 for mate in drawn)
    share = np.mean([mate[0] == 1 for mate in drawn])
    assert {mate[0] for mate in drawn} == {1, 2}
    assert 0.4 < share < 0.6
    assert len({mate[6] for mate in drawn}) == 1  # a neighbour, not a lot
    assert pairs(target, step=7) == pairs(target, step=7)


def test_a_copy_of_a_row_is_not_its_neighbour() -> None:
    assert pairs([-1, -1, -1], index=[4, 4, 9])[:2] == [2, 2]
    assert pairs([1, 1, -1], index=[4, 4, 9])[:2] == [0, 1]  # the only other one of the class is itself
    assert pairs([-1, -1], index=[4, 4]) == [0, 1]


def test_a_batch_without_labels_has_no_supervised_term(tiny: Problem) -> None:
    method = build("orca", tiny)
    batch = replace(feed_of(tiny, epochs=1, batch_size=12).batch(0), target=torch.full((12,), -1))
    result = method.loss(batch)
    assert result.losses["classification"].item() == 0
    sum(result.losses.values()).backward()
    assert all(torch.isfinite(p.grad).all() for p in method.parameters())


def test_the_gap_to_a_prior_is_the_divergence() -> None:
    rng = np.random.default_rng(3)
    p, prior = rng.dirichlet(np.ones(5), size=7), rng.dirichlet(np.ones(5))
    mean = [sum(row[k] for row in p) / len(p) for k in range(5)]
    expected = sum(m * math.log(m / q) for m, q in zip(mean, prior, strict=True))
    assert entropy_gap(torch.from_numpy(p), torch.from_numpy(prior)).item() == pytest.approx(expected, abs=1e-12)
    uniform = entropy_gap(torch.from_numpy(p), torch.full((5,), 0.2, dtype=torch.float64))
    assert uniform.item() == pytest.approx(naive.entropy_gap(p), abs=1e-12)


def test_the_true_prior_goes_to_the_heads_that_answer() -> None:
    truth = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2, 2, 3])
    heads = torch.tensor([0, 0, 1, 0, 1, 1, 3, 3, 3, 2])  # the novel classes 2 and 3 have each other's number
    np.testing.assert_allclose(true_prior_of_heads(heads, truth, 2, 4), [0.4, 0.2, 0.1, 0.3], atol=1e-6)
    more = true_prior_of_heads(heads, truth, 2, 6)  # heads 4 and 5 have no class
    np.testing.assert_allclose(more, np.array([4, 2, 1, 3, 0.5, 0.5]) / 11, atol=1e-6)
    fewer = true_prior_of_heads(heads.clamp_max(2), truth, 2, 3)  # and here a class has no head
    np.testing.assert_allclose(fewer, np.array([4, 2, 3]) / 9, atol=1e-6)


def test_the_oracle_prior_is_that_of_a_batch(tiny: Problem) -> None:
    feed = feed_of(tiny, epochs=1, batch_size=12)
    method = build("orca", tiny, prior="true_prior", oracle_truth=torch.from_numpy(tiny.truth))
    assert isinstance(method, ORCA)
    with torch.no_grad():
        method.begin_epoch(feed, 0)
    free, seen = tiny.truth[tiny.targets < 0], tiny.targets[tiny.targets >= 0]
    expected = 0.5 * np.bincount(free, minlength=6) / len(free) + 0.5 * np.bincount(seen, minlength=6) / len(seen)
    np.testing.assert_allclose(method.prior.value[:3], expected[:3], atol=1e-6)
    np.testing.assert_allclose(np.sort(method.prior.value[3:]), np.sort(expected[3:]), atol=1e-6)


def test_wrong_options_are_refused(tiny: Problem) -> None:
    with pytest.raises(InputError, match="true_prior"):
        build("orca", tiny, prior="true_prior")
    with pytest.raises(InputError, match="margin"):
        build("orca", tiny, margin="half")
