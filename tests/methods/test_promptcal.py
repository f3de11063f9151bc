"""PromptCAL steps, its graph and its state against plain loops in double precision."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from contract.problems import Problem, build, feed_of, long_tailed
from methods import naive
from rowssl.data.feed import Batch, FeatureAugmentation
from rowssl.methods import losses, promptcal
from rowssl.methods.promptcal import PromptCAL
from rowssl.training.loop import Optimisation, train

TOLERANCE = 1e-6
SMALL = {"projector_hidden": 9, "projector_out": 6, "bank_size": 40, "n_neighbours": 3, "n_negatives": 15}


@pytest.fixture(scope="module")
def tiny() -> Problem:
    return long_tailed(48, known=3, novel=3, dim=7, views=3)


class Prompted:
    """The prompted adapter and both heads of one row, on weights whose names begin with `prefix`."""

    def __init__(self, method: PromptCAL, teacher: bool) -> None:
        w = {name: value.detach().numpy().astype(np.float64) for name, value in method.state_dict().items()}
        names = ("teacher.module.0.", "teacher.module.1.", "teacher.module.2.")
        tail, head, prompt_head = names if teacher else ("tail.", "projector.", "prompt_projector.")
        inner = {"tail." + n.removeprefix(tail + "tail."): v for n, v in w.items() if n.startswith(tail + "tail.")}
        self.gain, self.centre, self.prompts = w[tail + "gain"], w[tail + "centre"], w[tail + "prompts"]
        self.heads = [
            naive.Network(inner | {"projector." + n.removeprefix(name): v for n, v in w.items() if n.startswith(name)})
            for name in (head, prompt_head)
        ]

    def tokens(self, x: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """(unit z, h) of CLS and of the two supervised prompts."""
        y = self.gain * (x - self.centre)
        gate = naive.softmax(np.array([naive.dot(y, p) for p in self.prompts]), math.sqrt(len(y)))
        shift = sum(a * p for a, p in zip(gate, self.prompts, strict=True))
        z = self.heads[0].feature(x + shift / self.gain)
        p = sum(self.heads[0].feature(x + prompt / self.gain) for prompt in self.prompts[:2]) / 2
        return [(naive.unit(z), self.heads[0].embed(z)), (naive.unit(p), self.heads[1].embed(p))]


def info_nce(queries: list[np.ndarray], keys: list[np.ndarray]) -> float:
    rows, total = len(queries), 0.0
    for i in range(rows):
        mate = (i + rows // 2) % rows
        others = [naive.dot(queries[i], keys[j]) for j in range(rows) if j not in (i, mate)]
        total += naive.info_nce(naive.dot(queries[i], keys[mate]), others, 1.0)
    return total / rows


def sup_con(queries: list[np.ndarray], keys: list[np.ndarray], target: list[int]) -> float:
    chosen, total = [i for i in range(len(queries)) if target[i] >= 0], 0.0
    for i in chosen:
        others = [j for j in chosen if j != i]
        log_sum = math.log(sum(math.exp(naive.dot(queries[i], keys[j]) / 0.07) for j in others))
        mates = [j for j in others if target[j] == target[i]]
        total -= sum(naive.dot(queries[i], keys[j]) / 0.07 - log_sum for j in mates) / len(mates)
    return total / len(chosen) if chosen else 0.0


def graph(features: list[np.ndarray], k: int) -> np.ndarray:
    """Q = A A A^T + I of the whole graph, A the row-normalised counts of neighbours in common."""
    n = len(features)
    count = np.zeros((n, n))
    for i in range(n):
        near = sorted((j for j in range(n) if j != i), key=lambda j: -naive.dot(features[i], features[j]))[:k]
        for a in near:
            count[i, a] += 1
            count[a, i] += 1
            for b in near:
                count[a, b] += a != b
    a = np.array([row / sum(row) for row in count])
    return a @ a @ a.T + np.eye(n)


def cal(z: list[np.ndarray], key: list[np.ndarray], bank: list[np.ndarray], *, target: list[int],
        bank_target: list[int], order: np.ndarray) -> float:  # fmt: skip
    """K = 3, median of the affinities above the mean, 15 positives and negatives together."""
    rows, total = len(z), 0.0
    q = graph([*key, *bank], 3)[:rows]
    mean = np.mean([v for v in q.flatten() if v != 0])
    threshold = np.quantile([v for v in q.flatten() if v > mean], 0.5)
    for i in range(rows):
        found = [m for m in range(len(bank)) if q[i, rows + m] - threshold > 1e-9]  # no ties
        drawn = [m for m in order if m not in found][: max(0, 15 - len(found))]
        positive, negative = set(found), set(drawn)
        for m in range(len(bank)):
            if target[i] >= 0 and bank_target[m] >= 0:
                same = target[i] == bank_target[m]
                if not same and m in positive:
                    negative.add(m)
                (positive.add if same else positive.discard)(m)
                if same:
                    negative.discard(m)
        own = naive.dot(z[i], key[i]) / 0.07
        score = {m: naive.dot(z[i], bank[m]) / 0.07 for m in positive | negative}
        log_sum = math.log(math.exp(own) + sum(math.exp(s) for s in score.values()))
        total -= (own - log_sum + sum(score[m] - log_sum for m in positive)) / (1 + len(positive))
    return total / rows


def by_loops(method: PromptCAL, batch: Batch, w: float | None) -> tuple[dict[str, float], list[list[np.ndarray]]]:
    """All terms (w None: stage 1), and the teacher's unit features of CLS and prompts."""
    rows = [row for view in batch.views for row in view.numpy()]
    mine = [Prompted(method, False).tokens(x) for x in rows]
    theirs = mine if w is None else [Prompted(method, True).tokens(x) for x in rows]
    target, terms = batch.target.tolist() * 2, []
    for kind, bank in enumerate((method.bank, method.prompt_bank)):
        z, h = ([row[kind][part] for row in mine] for part in (0, 1))
        kz, kh = ([row[kind][part] for row in theirs] for part in (0, 1))
        affine, half = 0.0, len(z) // 2
        if w is not None:
            keys, labels, _ = (part.tolist() for part in bank.valid())
            order = np.random.default_rng([method.seed, 33, batch.step, kind]).permutation(len(keys))
            keys = [np.array(key) for key in keys]
            affine = cal(z, kz[half:] + kz[:half], keys, target=target, bank_target=labels, order=order)
        terms.append((0.65 * (1 - (w or 0)) * info_nce(h, kh), 0.35 * sup_con(h, kh, target), 0.65 * (w or 0) * affine))
    named = dict(zip(("contrastive", "supervised_contrastive", "affinity"), terms[0], strict=True))
    return named | {"prompt": 0.35 * sum(terms[1])}, [[row[kind][0] for row in theirs] for kind in (0, 1)]


def run(tiny: Problem, epochs: int, **options: Any) -> None:
    """Every step of a training against the loops; half of the epochs are stage 2."""
    feed = feed_of(tiny, epochs=epochs, batch_size=8, augmentation=FeatureAugmentation(noise=0.1))
    method = build("promptcal", tiny, **{**SMALL, "stage1_share": 0.5, **options})
    method.start(feed)
    method.double()
    optimiser = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=0.05)
    for step in range(feed.steps):
        batch = feed.batch(step)
        batch = replace(batch, views=tuple(view.double() for view in batch.views))
        if step % feed.steps_per_epoch == 0:
            method.begin_epoch(feed, batch.epoch)
        w = None if batch.epoch < epochs // 2 else min(0.6, 0.3 * (batch.epoch - epochs // 2 + 0.5))
        checked = step % 3 == 0 or step in (feed.steps // 2, feed.steps // 2 + 1)
        expected, keys = by_loops(method, batch, w) if checked else ({}, [])
        result = method.loss(batch)
        for name, value in expected.items():
            assert abs(result.losses[name].item() - value) <= TOLERANCE, (step, name)
        optimiser.zero_grad()
        sum(result.losses.values()).backward()
        optimiser.step()
        pointer = method.bank.cursor[0].item()
        before = {n: v.clone() for n, v in method.teacher.state_dict().items()}
        method.after_step(batch, result)
        if w is None:
            assert method.bank.filled == 0
            assert all(torch.equal(v, before[n]) for n, v in method.teacher.state_dict().items())
            continue
        assert method.bank.filled == method.prompt_bank.filled == min(40, 16 * (step - feed.steps // 2 + 1))
        for bank, features in zip((method.bank, method.prompt_bank), keys, strict=bool(keys)):
            for i, feature in enumerate(features):
                place = (pointer + i) % 40
                np.testing.assert_allclose(bank.keys[place], feature, atol=1e-9)
                assert bank.labels[place] == batch.target[i % 8]
                assert bank.rows[place] == batch.index[i % 8]
        weight, student = "module.0.tail.fc1.weight", method.tail.tail.fc1.weight.detach()
        torch.testing.assert_close(method.teacher.state_dict()[weight], 0.999 * before[weight] + 0.001 * student)


def test_all_steps_are_the_loops(tiny: Problem) -> None:
    run(tiny, 6)


def test_the_teacher_starts_stage_two_as_the_student(tiny: Problem) -> None:
    feed = feed_of(tiny, epochs=4, batch_size=8)
    method = build("promptcal", tiny, **SMALL, stage1_share=0.5)
    epochs = train(method, feed, Optimisation())
    next(epochs), next(epochs)
    x = torch.from_numpy(tiny.test)
    with torch.no_grad():
        assert (method.teacher.module[0](x) - method.tail(x)).abs().max() > 1e-3  # the teacher is still untrained
        method.begin_epoch(feed, 2)
        assert torch.equal(method.teacher.module[0](x), method.tail(x))
        h = method.prompt_projector(method.tail.with_prompts(x)[1])
        assert torch.equal(method.teacher.module[2](method.teacher.module[0].with_prompts(x)[1]), h)


@pytest.mark.parametrize("seed", range(4))
def test_the_sparse_graph_is_the_dense_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    features = F.normalize(torch.from_numpy(rng.normal(size=(30, 4))), dim=1)
    expected = graph(list(features.numpy()), 5)
    np.testing.assert_allclose(promptcal.diffused_affinity(features, 30, 5), expected, atol=1e-12)
    np.testing.assert_allclose(promptcal.diffused_affinity(features, 9, 5), expected[:9], atol=1e-12)


def test_the_graph_finds_the_cluster_of_a_row() -> None:
    rng = np.random.default_rng(0)
    label = rng.integers(4, size=80)
    features = F.normalize(torch.from_numpy(4 * np.eye(8)[label] + rng.normal(size=(80, 8))), dim=1)
    found = promptcal.bank_affinity(features[:16], features[16:], 6, 0.5)
    same = torch.from_numpy(label[:16, None] == label[None, 16:])
    assert found.sum() > 30
    assert same[found].double().mean() > 0.95
    assert promptcal.bank_affinity(features[:16], features[16:], 6, 0.9).sum() < found.sum()
    assert promptcal.bank_affinity(features[:16], features[:0], 6, 0.5).shape == (16, 0)


def test_negatives_are_drawn_in_order_and_labels_overrule() -> None:
    positive = torch.tensor([[True, False, False, True, False], [False] * 5])
    negative = promptcal.sampled_negatives(positive, 3, torch.tensor([4, 0, 2, 1, 3]))
    assert negative.tolist() == [[False, False, False, False, True], [True, False, True, False, True]]
    assert not promptcal.sampled_negatives(positive, 1, torch.arange(5))[0].any()
    pos, neg = promptcal.linked(positive, negative, torch.tensor([1, 1]), torch.tensor([0, 1, -1, 1, 1]))
    assert pos.tolist() == [[False, True, False, True, True], [False, True, False, True, True]]
    assert neg.tolist() == [[True, False, False, False, False], [True, False, True, False, False]]


def test_keys_that_are_the_anchors_change_nothing() -> None:
    rng = np.random.default_rng(1)
    first, second = (F.normalize(torch.from_numpy(rng.normal(size=(6, 5))), dim=1) for _ in range(2))
    target, keys = torch.tensor([0, 1, -1, 0, 2, -1]), torch.cat([first, second])
    assert torch.equal(losses.info_nce_batch(first, second, 1.0, keys), losses.info_nce_batch(first, second, 1.0))
    assert torch.equal(losses.sup_con(first, second, target, 0.07, keys), losses.sup_con(first, second, target))


def test_without_prompt_loss_and_stage_two_it_is_gcd(tiny: Problem) -> None:
    feed = feed_of(tiny, epochs=2, batch_size=8)
    method = build("promptcal", tiny, **SMALL, stage1_share=1.0, prompt_weight=0.0)
    gcd = build("gcd", tiny, projector_hidden=9, projector_out=6)
    gcd.tail, gcd.projector = method.tail, method.projector
    for step in range(3):
        ours, theirs = method.loss(feed.batch(step)).losses, gcd.loss(feed.batch(step)).losses
        assert ours["affinity"] == ours["prompt"] == 0
        assert all(torch.equal(ours[name], value) for name, value in theirs.items())


def test_distillation_holds_the_feature_to_the_untrained_encoder(tiny: Problem) -> None:
    feed = feed_of(tiny, epochs=10, batch_size=8)
    method = build("promptcal", tiny, **SMALL, distill=0.5)
    method.start(feed)
    untrained = build("simgcd", tiny)
    untrained.start(feed)
    for step, weight in ((0, 0.5), (12, 0.5 - 2 * 0.098), (30, 0.01), (54, 0.01)):  # 6 steps an epoch
        x = torch.cat(feed.batch(step).views)
        difference = F.normalize(method.tail(x), dim=1) - F.normalize(untrained.tail(x), dim=1)
        got = method.loss(feed.batch(step)).losses["distillation"]
        assert abs(got.item() - weight * difference.square().mean().item()) <= TOLERANCE
        with torch.no_grad():
            method.tail.tail.fc2.weight.add_(0.05)
    assert "distillation" not in build("promptcal", tiny).loss(feed.batch(0)).losses
