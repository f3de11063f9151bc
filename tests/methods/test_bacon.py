"""BaCon steps, its estimate of class sizes and its sampling against plain loops in double precision."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from contract.problems import Problem, build, digest, feed_of, long_tailed
from methods import naive
from rowssl.clustering.kmeans import kmeans
from rowssl.core.errors import InputError
from rowssl.data.feed import Batch
from rowssl.methods import losses
from rowssl.methods.bacon import BaCon, class_sizes, debiased_entropy_gap, keep_most_confident, soft_contrastive
from rowssl.training.loop import Optimisation, train

TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def tiny() -> Problem:
    return long_tailed(48, known=3, novel=3, dim=7, views=3)


def bacon(problem: Problem, **options: Any) -> BaCon:
    method = build("bacon", problem, projector_hidden=9, projector_out=6, **options)
    assert isinstance(method, BaCon)
    return method


def part(weights: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """Tail and classifier of one branch under the names of the common network."""
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}


def soft_con(h: list[list[np.ndarray]], label: list[np.ndarray], tau: float) -> float:
    """Every pair weighs as much as its soft labels agree, two views of a row 1, a view with itself nothing."""
    rows, total = len(label), 0.0
    features = [*h[0], *h[1]]
    for i in range(2 * rows):
        others = [j for j in range(2 * rows) if j != i]
        denominator = sum(math.exp(naive.dot(features[i], features[j]) / tau) for j in others)
        weight = {j: 1.0 if i % rows == j % rows else naive.dot(label[i % rows], label[j % rows]) for j in others}
        terms = [weight[j] * (naive.dot(features[i], features[j]) / tau - math.log(denominator)) for j in others]
        total -= sum(terms) / sum(weight.values())
    return total / (2 * rows)


def kept_rows(label: list[np.ndarray], target: list[int], size: np.ndarray, seed: int, step: int) -> list[int]:
    """All labelled rows; of each predicted class a Bernoulli count of unlabelled rows, the most confident ones."""
    present = {t for t in target if t >= 0}
    unlabelled = [i for i, t in enumerate(target) if t < 0]
    chance = np.random.default_rng([seed, 31, step]).random(len(unlabelled))
    kept = [i for i, t in enumerate(target) if t >= 0]
    for c in range(len(size)):
        mine = [(n, i) for n, i in enumerate(unlabelled) if int(np.argmax(label[i])) == c]
        rate = (min(size) / size[c]) ** (0.0 if c in present else 0.5)
        count = sum(chance[n] < rate for n, _ in mine)
        kept += sorted((i for _, i in mine), key=lambda i: -max(label[i]))[:count]
    return sorted(kept)


def by_loops(weights: dict[str, np.ndarray], batch: Batch) -> tuple[dict[str, float], int]:
    """Every term with the published constants, and how many rows took part in the soft one."""
    target, size = batch.target.tolist(), weights["size"]
    classes, pi = len(size), weights["size"] / sum(weights["size"])
    cl = naive.Network(weights)
    ce = naive.Network(part(weights, "ce_"))
    views = [view.numpy() for view in batch.views]
    h = [[cl.embed(cl.feature(x)) for x in view] for view in views]
    o = [[ce.logits(ce.feature(x)) for x in view] for view in views]
    tau_t = naive.teacher_temperature(batch.epoch)
    teacher = [[naive.softmax(row, tau_t) for row in view] for view in o]
    student = [[row / 0.1 for row in view] for view in o]
    hard = [
        naive.cross_entropy(np.eye(classes)[t], student[v][i]) for v in (0, 1) for i, t in enumerate(target) if t >= 0
    ]

    mean = [np.mean([naive.softmax(row)[c] for view in student for row in view]) for c in range(classes)]
    debiased = [mean[c] / size[c] ** 1.1 for c in range(classes)]
    debiased = [p / sum(debiased) for p in debiased]
    gap = math.log(classes) + sum(p * math.log(p) for p in debiased)

    late = batch.epoch >= 1
    label = [
        (naive.softmax(student[0][i] - 0.5 * np.log(pi)) + naive.softmax(student[1][i] - 0.5 * np.log(pi))) / 2
        for i in range(len(target))
    ]
    kept = kept_rows(label, target, size, int(weights["draw_seed"]), batch.step)
    soft = soft_con([[h[v][i] for i in kept] for v in (0, 1)], [label[i] for i in kept], 0.07)
    return {
        "distillation": 0.65 * naive.crossed((teacher[0], teacher[1]), (student[0], student[1])),
        "debiasing": 0.65 * gap,
        "classification": 0.35 * sum(hard) / len(hard) if hard else 0.0,
        "contrastive": 0.65 * naive.info_nce_batch(h[0], h[1], 1.0),
        "supervised_contrastive": (0.175 if late else 0.35) * naive.sup_con(h[0], h[1], target, 0.07) if hard else 0.0,
        "soft_contrastive": 0.175 * soft if late else 0.0,
    }, len(kept)


def test_steps_are_the_loops(tiny: Problem) -> None:
    feed = feed_of(tiny, epochs=40, batch_size=12)
    method = bacon(tiny)
    method.start(feed)
    method = method.double()
    optimiser = torch.optim.SGD(method.parameters(), lr=0.05)
    sampled = set()
    for step in (0, 1, 4, 5, 6, 60, 61, feed.steps - 1):
        batch = feed.batch(step)
        batch = replace(batch, views=tuple(view.double() for view in batch.views))
        method.begin_epoch(feed, 0 if step == 0 else 3)
        assert len(set(method.size.tolist())) > 1
        result = method.loss(batch)
        expected, kept = by_loops({k: v.detach().numpy().copy() for k, v in method.state_dict().items()}, batch)
        assert set(result.losses) == set(expected)
        for name, value in expected.items():
            assert abs(result.losses[name].item() - value) <= TOLERANCE, (step, name)
        sampled.add(kept < 12)
        optimiser.zero_grad()
        sum(result.losses.values()).backward()
        assert all(torch.isfinite(p.grad).all() for p in method.parameters() if p.grad is not None)
        optimiser.step()
        method.after_step(batch, result)
    assert True in sampled  # some rows were left out on the way


def sizes_by_loops(cluster: list[int], target: list[int], n_old: int, n_classes: int, how: str) -> list[int]:
    """Best of all matchings on the labelled share of clusters; then rank matching, and novel ones by size."""
    size = [cluster.count(c) for c in range(n_classes)]

    def share(c: int, k: int) -> float:
        return sum(one == c and t == k for one, t in zip(cluster, target, strict=True)) / max(1, size[c])

    best = max(itertools.permutations(range(n_classes), n_old), key=lambda p: sum(share(c, k) for k, c in enumerate(p)))
    old = [size[c] for c in best]
    if how == "rank":
        by_labels = sorted(range(n_old), key=lambda k: target.count(k))
        ranked = sorted(old)
        old = [ranked[by_labels.index(k)] for k in range(n_old)]
    return [max(1, s) for s in old + sorted((size[c] for c in range(n_classes) if c not in best), reverse=True)]


@pytest.mark.parametrize("how", ["rank", "matched"])
def test_class_sizes_are_the_loops(how: str) -> None:
    rng = np.random.default_rng(0)
    differ = False
    for n_old, n_classes in [(3, 6), (3, 6), (2, 5), (5, 5), (0, 4), (1, 2)]:
        cluster = rng.permutation(np.repeat(np.arange(n_classes), rng.permutation(n_classes) * 7 + rng.integers(3)))
        noisy = np.where(rng.random(len(cluster)) < 0.6, (cluster * 3 + 1) % n_classes, rng.integers(n_classes))
        target = np.where((noisy < n_old) & (rng.random(len(cluster)) < 0.5), noisy, -1)
        found = class_sizes(torch.from_numpy(cluster), torch.from_numpy(target), n_old, n_classes, how).tolist()
        assert found == sizes_by_loops(cluster.tolist(), target.tolist(), n_old, n_classes, how)
        differ |= found != sizes_by_loops(cluster.tolist(), target.tolist(), n_old, n_classes, "matched")
    assert differ == (how == "rank")  # the assumption has consequences


def test_the_estimate_is_made_at_the_first_epoch_and_every_tenth(tiny: Problem) -> None:
    feed = feed_of(tiny, epochs=20)
    method = bacon(tiny, estimate_every=10)
    method.start(feed)
    assert len(set(method.size.tolist())) == 1
    made = []
    for epoch in range(21):
        method.size.fill_(0.0)
        method.begin_epoch(feed, epoch)
        made += [epoch] if method.size.any() else []
    assert made == [0, 10, 20]
    found = kmeans(method.unit_features(feed), 6, seed=feed.seed, n_init=10, max_iter=300).labels
    assert method.size.tolist() == sizes_by_loops(found.tolist(), tiny.targets.tolist(), 3, 6, "rank")
    assert method.size.sum() == len(feed)


def test_as_many_rows_as_drawn_and_the_most_confident(tiny: Problem) -> None:
    rng = np.random.default_rng(3)
    for rows in (0, 1, 40):
        confidence, predicted = rng.random(rows), rng.integers(5, size=rows)
        drawn = rng.random(rows) < 0.4
        kept = keep_most_confident(*(torch.from_numpy(a) for a in (confidence, predicted, drawn)), 6).numpy()
        for c in range(6):
            mine = np.flatnonzero(predicted == c)
            best = mine[np.argsort(-confidence[mine])][: drawn[mine].sum()]
            assert sorted(best) == np.flatnonzero(kept & (predicted == c)).tolist()


def test_special_cases() -> None:
    generator = torch.Generator().manual_seed(0)
    h = [F.normalize(torch.randn(9, 5, generator=generator, dtype=torch.float64), dim=1) for _ in range(2)]
    target = torch.tensor([0, 1, 2, 0, 1, 2, 0, 0, 3])
    p = F.softmax(torch.randn(9, 4, generator=generator, dtype=torch.float64), dim=1)
    # With hard labels the soft contrastive loss is the supervised one; without rows it is 0.
    soft = soft_contrastive(h[0], h[1], F.one_hot(target).double(), 0.07)
    torch.testing.assert_close(soft, losses.sup_con(h[0], h[1], target, 0.07))
    assert soft_contrastive(h[0][:0], h[1][:0], p[:0], 0.07) == 0
    # With equal sizes the regulariser is SimGCD's; it is 0 where the mean prediction follows the sizes.
    torch.testing.assert_close(debiased_entropy_gap(p, torch.full((4,), 3.0), 1.1), losses.entropy_gap(p))
    size = torch.tensor([50.0, 20.0, 5.0, 1.0], dtype=torch.float64)
    ideal = size**1.1 / (size**1.1).sum()
    assert debiased_entropy_gap(ideal.expand(9, 4), size, 1.1).abs() < 1e-9
    assert debiased_entropy_gap(p, size, 1.1) > 0.1


def test_without_its_own_terms_it_is_simgcd_in_two_branches(tiny: Problem) -> None:
    """The same tail in both branches and a uniform estimate: the CE terms and the contrastive ones are SimGCD's."""
    feed = feed_of(tiny, epochs=1, batch_size=12)
    simgcd = build("simgcd", tiny, epsilon=1.0, projector_hidden=9, projector_out=6)
    method = bacon(tiny)
    for module, other in (
        (method.tail, simgcd.tail),
        (method.ce_tail, simgcd.tail),
        (method.ce_classifier, simgcd.classifier),
        (method.projector, simgcd.projector),
    ):
        module.load_state_dict(other.state_dict())
    ours, theirs = method.loss(feed.batch(0)).losses, simgcd.loss(feed.batch(0)).losses
    names = {name: {"debiasing": "entropy"}.get(name, name) for name in ours if name != "soft_contrastive"}
    for name, other in names.items():
        torch.testing.assert_close(ours[name], theirs[other])
    assert ours["soft_contrastive"] == 0


def test_the_branches_start_alike_and_train_apart(tiny: Problem) -> None:
    feed = feed_of(tiny, epochs=2, batch_size=12)
    method = bacon(tiny)
    method.start(feed)
    assert digest(method.tail) == digest(method.ce_tail)
    result = method.loss(feed.batch(feed.steps_per_epoch))  # the second epoch
    ce = sum(result.losses[name] for name in ("distillation", "debiasing", "classification"))
    ce.backward(retain_graph=True)
    assert all(p.grad is None for p in [*method.tail.parameters(), *method.projector.parameters()])
    assert all(p.grad is not None for p in [*method.ce_tail.parameters(), method.ce_classifier.weight])
    method.zero_grad()
    sum(result.losses[name] for name in result.losses if "contrastive" in name).backward()
    assert all(p.grad is None for p in [*method.ce_tail.parameters(), method.ce_classifier.weight])
    assert all(p.grad is not None for p in method.tail.parameters())


def test_options_do_what_they_say(tiny: Problem) -> None:
    largest = np.flatnonzero(tiny.targets == np.bincount(tiny.truth)[:3].argmax())
    targets = tiny.targets.copy()
    targets[largest[1:]] = -1  # the largest known class has one label: the rank assumption is wrong
    feed = feed_of(replace(tiny, targets=targets), epochs=4, batch_size=12)
    results = set()
    for options in (
        {}, {"alpha": 1.0}, {"beta": 4.0}, {"soft_from": 3}, {"adjust_power": 3.0}, {"debias_power": 0.0}, {"epsilon": 4.0},
        {"class_prior": "matched"}, {"class_prior": "oracle", "oracle_truth": torch.from_numpy(tiny.truth)},
        {"head_outputs": 20}, {"estimate_every": 1},
    ):  # fmt: skip
        method = bacon(tiny, **options)
        list(train(method, feed, Optimisation()))
        results.add(digest(method))
    assert len(results) == 11


@pytest.mark.parametrize("readout", ["kmeans", "semi_kmeans", "classifier"])
def test_the_model_is_one_of_the_branches(tiny: Problem, readout: str) -> None:
    feed = feed_of(tiny, epochs=3, batch_size=12)
    method = bacon(tiny, readout=readout)
    list(train(method, feed, Optimisation()))
    x = torch.from_numpy(tiny.test)
    z = {name: tail(x) for name, tail in (("cl", method.tail), ("ce", method.ce_tail))}
    o = method.ce_classifier(z["ce"])
    method.finish(feed)
    assert torch.equal(method.tail(x), z["ce" if readout == "classifier" else "cl"])
    assert torch.equal(method.predict_logits(x), o) == (readout == "classifier")


def test_the_oracle_knows_the_sizes(tiny: Problem) -> None:
    true = np.bincount(tiny.truth, minlength=6)
    method = bacon(tiny, class_prior="oracle", oracle_truth=torch.from_numpy(tiny.truth))
    method.begin_epoch(feed_of(tiny, epochs=1), 0)
    assert method.size.tolist() == [*true[:3], *sorted(true[3:], reverse=True)]
    with pytest.raises(InputError, match="oracle_truth"):
        bacon(tiny, class_prior="oracle")
    with pytest.raises(InputError, match="class_prior must be one of rank, matched, oracle"):
        bacon(tiny, class_prior="uniform")
