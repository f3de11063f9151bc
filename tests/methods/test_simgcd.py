"""SimGCD steps against plain loops in double precision."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from contract.problems import Problem, build, feed_of, long_tailed
from methods import naive
from methods.steps import compare_steps
from rowssl.data.feed import Batch


@pytest.fixture(scope="module")
def tiny() -> Problem:
    return long_tailed(48, known=3, novel=3, dim=7, views=3)


def by_loops(
    weights: dict[str, np.ndarray], batch: Batch, *, epsilon: float = 4.0, tau_u: float = 1.0
) -> dict[str, float]:
    """0.65 (distillation + eps (log C - H) + InfoNCE at 1) + 0.35 (cross-entropy at 0.1 + SupCon at 0.07)."""
    network, target = naive.Network(weights), batch.target.tolist()
    z = [[network.feature(x) for x in view.numpy()] for view in batch.views]
    o = [[network.logits(row) for row in view] for view in z]
    h = [[network.embed(row) for row in view] for view in z]
    tau_t = naive.teacher_temperature(batch.epoch)
    teacher = [[naive.softmax(row, tau_t) for row in view] for view in o]
    student = [[row / 0.1 for row in view] for view in o]
    classes = len(o[0][0])
    labelled = [
        naive.cross_entropy(np.eye(classes)[t], student[v][i]) for v in (0, 1) for i, t in enumerate(target) if t >= 0
    ]
    probability = [naive.softmax(row) for view in student for row in view]
    return {
        "distillation": 0.65 * naive.crossed((teacher[0], teacher[1]), (student[0], student[1])),
        "entropy": 0.65 * epsilon * naive.entropy_gap(probability),
        "classification": 0.35 * sum(labelled) / len(labelled) if labelled else 0.0,
        "contrastive": 0.65 * naive.info_nce_batch(h[0], h[1], tau_u),
        "supervised_contrastive": 0.35 * naive.sup_con(h[0], h[1], target, 0.07) if labelled else 0.0,
    }


@pytest.mark.parametrize(("epsilon", "temperature"), [(4.0, "constant"), (1.0, "constant"), (1.0, "cosine")])
def test_steps_are_the_loops(tiny: Problem, epsilon: float, temperature: str) -> None:
    feed = feed_of(tiny, epochs=40, batch_size=12)
    options = {"epsilon": epsilon, "temperature": temperature}
    method = build("simgcd", tiny, projector_hidden=9, projector_out=6, **options)

    def expected(weights: dict[str, np.ndarray], batch: Batch) -> dict[str, float]:
        scheduled = 0.1 + 0.45 * (1 + np.cos(np.pi * batch.epoch / 40))  # from 1 to 0.1 over the training
        return by_loops(weights, batch, epsilon=epsilon, tau_u=scheduled if temperature == "cosine" else 1.0)

    # before, within and after the teacher's warm-up
    compare_steps(method, feed, (0, 1, 2, 60, 61, feed.steps - 1), expected)


def test_a_batch_without_labels_has_no_supervised_terms(tiny: Problem) -> None:
    feed = feed_of(tiny, epochs=1, batch_size=12)
    method = build("simgcd", tiny)
    batch = replace(feed.batch(0), target=torch.full((12,), -1))
    result = method.loss(batch)
    assert result.losses["classification"].item() == 0
    assert result.losses["supervised_contrastive"].item() == 0
    sum(result.losses.values()).backward()
    assert all(torch.isfinite(p.grad).all() for p in method.parameters())


def test_it_remembers_nothing_between_steps(tiny: Problem) -> None:
    method = build("simgcd", tiny)
    feed = feed_of(tiny, epochs=1, batch_size=12)
    before = {name: buffer.clone() for name, buffer in method.named_buffers()}
    method.after_step(feed.batch(0), method.loss(feed.batch(0)))
    assert all(torch.equal(buffer, before[name]) for name, buffer in method.named_buffers())
