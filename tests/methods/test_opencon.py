"""OpenCon's steps, novelty, prototypes and read-out against plain loops."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from contract.problems import Problem, build, feed_of, long_tailed
from methods import naive
from rowssl.core.errors import InputError
from rowssl.data.feed import Batch
from rowssl.methods import losses, opencon
from rowssl.methods.base import Step
from rowssl.methods.heads import CosineClassifier
from rowssl.methods.opencon import follow_prototypes, looks_novel, moved_prototypes, readout_rows
from rowssl.training.loop import Optimisation, train

TOLERANCE = 1e-6
TERMS = ("labelled", "unlabelled", "novel", "entropy")


@pytest.fixture(scope="module")
def tiny() -> Problem:
    return long_tailed(48, known=3, novel=3, dim=7, views=3)


def small(problem: Problem, **options: object) -> torch.nn.Module:
    return build("opencon", problem, projector_hidden=9, projector_out=6, **options)


def novel_by_loops(cosine: list[np.ndarray], target: list[int], n_old: int) -> list[bool]:
    """Largest standardised score over known prototypes below the 30th percentile of the labelled rows'."""
    score = [max((c - statistics.mean(row)) / statistics.stdev(row) for c in row[:n_old]) for row in cosine]
    inside = [s for s, t in zip(score, target, strict=True) if t >= 0]
    if not inside:
        return [t < 0 for t in target]
    return [t < 0 and s < np.percentile(inside, 30) for s, t in zip(score, target, strict=True)]


def by_loops(weights: dict[str, np.ndarray], batch: Batch, n_old: int) -> tuple[dict[str, float], list[np.ndarray]]:
    """The four terms, and the prototypes after the step."""
    network, target = naive.Network(weights), batch.target.tolist()
    h = [[network.embed(network.feature(x)) for x in view.numpy()] for view in batch.views]
    m = list(weights["prototypes"])
    cosine = [np.array([naive.dot(row, c) for c in m]) for row in h[0]]
    pseudo = [int(np.argmax(row)) for row in cosine]
    novel = novel_by_loops(cosine, target, n_old)
    free = [i for i, t in enumerate(target) if t < 0]

    mean = np.mean([naive.softmax(10 * cosine[i]) for i in free], axis=0)
    q = [0.5] * n_old + [1.0] * (len(m) - n_old)
    entropy = -sum(p * math.log(p / (k / sum(q))) for p, k in zip(mean, q, strict=True))
    guess = [pseudo[i] if novel[i] else -1 for i in range(len(target))]
    terms = {
        "labelled": 0.2 * naive.sup_con(h[0], h[1], target, 0.1),
        "unlabelled": naive.info_nce_batch([h[0][i] for i in free], [h[1][i] for i in free], 0.4),
        "novel": 0.1 * min(1.0, batch.epoch / (0.5 * batch.epochs)) * naive.sup_con(h[0], h[1], guess, 0.7),
        "entropy": -0.05 * entropy,
    }
    rank = np.random.default_rng([42, batch.step]).permutation(len(target))
    for i in np.argsort(rank):
        c = target[i] if target[i] >= 0 else pseudo[i]
        if target[i] >= 0 or c >= n_old:
            m[c] = 0.9 * m[c] + 0.1 * h[0][i]
    return terms, [naive.unit(row) for row in m]


def test_steps_are_the_loops(tiny: Problem) -> None:
    feed = feed_of(tiny, epochs=8, batch_size=16)
    method = small(tiny).double()
    optimiser = torch.optim.SGD(method.parameters(), lr=0.05)
    seen_novel = 0.0
    for step in (0, 1, 2, feed.steps // 2 - 1, feed.steps - 2, feed.steps - 1):
        batch = feed.batch(step)
        batch = replace(batch, views=tuple(view.double() for view in batch.views))
        result = method.loss(batch)
        weights = {k: v.detach().numpy().copy() for k, v in method.state_dict().items()}
        expected, prototypes = by_loops(weights, batch, tiny.n_old)
        assert tuple(result.losses) == TERMS
        for name, value in expected.items():
            assert abs(result.losses[name].item() - value) <= TOLERANCE, (step, name)
        seen_novel += expected["novel"]
        optimiser.zero_grad()
        sum(result.losses.values()).backward()
        optimiser.step()
        method.after_step(batch, result)
        np.testing.assert_allclose(method.prototypes, prototypes, atol=TOLERANCE)
    assert seen_novel > 0
    assert method.classifier.weight.grad is None  # written at the end, not learnt on the way
    assert not method.prototypes.requires_grad


def test_novelty_is_the_loops() -> None:
    rng = np.random.default_rng(1)
    target = rng.integers(-1, 3, size=40)
    cosine = rng.uniform(-1, 1, size=(40, 7))
    found = looks_novel(torch.from_numpy(cosine), torch.from_numpy(target), 3, 0.7)
    assert found.tolist() == novel_by_loops(list(cosine), target.tolist(), 3)
    assert 0 < found.sum() < (target < 0).sum()
    # The bar rises with the share of labelled rows that may fall below it.
    counts = [int(looks_novel(torch.from_numpy(cosine), torch.from_numpy(target), 3, s).sum()) for s in (1.0, 0.7, 0.3)]
    assert counts == sorted(counts)


def test_without_labels_everything_unlabelled_is_novel() -> None:
    cosine = torch.rand(4, 5)
    assert looks_novel(cosine, torch.full((4,), -1), 2, 0.7).all()
    assert looks_novel(cosine, torch.full((4,), -1), 0, 0.7).all()
    assert not looks_novel(cosine, torch.tensor([0, 1, 1, 0]), 2, 0.7).any()


def sequential(m: Tensor, h: Tensor, assigned: Tensor, rank: Tensor, *, always: bool) -> Tensor:
    """One row after the other; normalised after each (`always`) or once at the end."""
    moved = m.clone()
    for i in rank.argsort().tolist():
        c = int(assigned[i])
        if c >= 0:
            moved[c] = 0.9 * moved[c] + 0.1 * h[i]
            moved[c] = moved[c] / moved[c].norm() if always else moved[c]
    return moved / moved.norm(dim=1, keepdim=True)


@pytest.mark.parametrize("rows", [0, 1, 5, 128])
def test_prototypes_move_as_one_row_after_the_other(rows: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    m = F.normalize(torch.randn(9, 16, generator=generator, dtype=torch.float64), dim=1)
    assigned = torch.randint(-1, 7, (rows,), generator=generator)  # prototypes 7 and 8 have no row
    # Embeddings as they are in training: around their prototype, at a cosine of about 0.7.
    noise = torch.randn(rows, 16, generator=generator, dtype=torch.float64) / 4
    h = F.normalize(m[assigned.clamp_min(0)] + noise, dim=1)
    rank = torch.randperm(rows, generator=generator)
    moved = moved_prototypes(m, h, assigned, rank, 0.9)
    np.testing.assert_allclose(moved, sequential(m, h, assigned, rank, always=False), atol=1e-12)
    exact = sequential(m, h, assigned, rank, always=True)
    assert ((moved * exact).sum(1) > 0.995).all()
    untouched = [c for c in range(9) if not (assigned == c).any()]
    assert torch.equal(moved[untouched], m[untouched])


def test_the_last_row_of_a_class_weighs_most() -> None:
    m, h = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0], [0.0, -1.0]])
    up = moved_prototypes(m, h, torch.tensor([0, 0]), torch.tensor([1, 0]), 0.9)
    down = moved_prototypes(m, h, torch.tensor([0, 0]), torch.tensor([0, 1]), 0.9)
    assert up[0, 1] > 0 > down[0, 1]
    assert torch.equal(moved_prototypes(m, h, torch.tensor([0, 0]), torch.tensor([0, 1]), 1.0), m)


def test_only_labelled_rows_and_novel_guesses_move_prototypes(tiny: Problem) -> None:
    method = small(tiny)
    batch = feed_of(tiny, epochs=1, batch_size=16).batch(0)
    result = method.loss(batch)
    assigned = result.extras["assigned"]
    labelled = batch.target >= 0
    assert torch.equal(assigned[labelled], batch.target[labelled])
    assert ((assigned[~labelled] == -1) | (assigned[~labelled] >= tiny.n_old)).all()
    before = method.prototypes.clone()
    method.after_step(batch, Step({}, {**result.extras, "assigned": torch.full_like(assigned, -1)}))
    assert torch.equal(method.prototypes, before)


def test_the_novel_term_rises_over_half_of_the_training(tiny: Problem) -> None:
    method, feed = small(tiny), feed_of(tiny, epochs=8, batch_size=16)
    batch = feed.batch(0)
    found = [method.loss(replace(batch, epoch=e)).losses["novel"].item() for e in (0, 2, 4, 7)]
    assert found[0] == 0
    assert found[1] == pytest.approx(found[2] / 2)
    assert found[2] == found[3] > 0


def test_rows_of_one_kind_have_the_terms_of_their_kind(tiny: Problem) -> None:
    method, batch = small(tiny), feed_of(tiny, epochs=1, batch_size=16).batch(0)
    batch = replace(batch, epoch=1, epochs=2)
    for target, zero in (
        (torch.full((16,), -1), {"labelled"}),
        (torch.arange(16) % 3, {"unlabelled", "novel", "entropy"}),
    ):
        result = method.loss(replace(batch, target=target))
        assert {name for name, term in result.losses.items() if term.item() == 0} == zero
        sum(result.losses.values()).backward()
        assert all(torch.isfinite(p.grad).all() for p in method.parameters() if p.grad is not None)


def test_the_balanced_prior_is_an_option(tiny: Problem) -> None:
    q = small(tiny).prior.value
    np.testing.assert_allclose(q, np.array([1, 1, 1, 2, 2, 2]) / 9, atol=1e-6)
    np.testing.assert_allclose(small(tiny, labelled_ratio=0.8).prior.value[3] / q.new_tensor(1), 1 / 3.6, atol=1e-6)
    np.testing.assert_allclose(small(tiny, entropy_prior="uniform").prior.value, [1 / 6] * 6, atol=1e-6)
    truth = torch.from_numpy(tiny.truth)
    oracle = small(tiny, entropy_prior="true_prior", oracle_truth=truth)
    with torch.no_grad():
        oracle.begin_epoch(feed_of(tiny, epochs=1), 0)
    free = tiny.truth[tiny.targets < 0]
    expected = np.bincount(free, minlength=6) / len(free)
    np.testing.assert_allclose(oracle.prior.value[:3], expected[:3], atol=1e-6)
    np.testing.assert_allclose(np.sort(oracle.prior.value[3:]), np.sort(expected[3:]), atol=1e-6)
    assert len(small(tiny, oracle_truth=truth).prior.truth) == 0  # given, but this run is no oracle
    for wrong in ({"entropy_prior": "true_prior"}, {"entropy_prior": "even"}, {"labelled_ratio": 1.0}):
        with pytest.raises(InputError, match=str(next(iter(wrong.values())))):
            small(tiny, **wrong)


def test_the_classifier_learns_to_answer_as_the_prototypes() -> None:
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(600, 12, generator=generator)
    h = F.normalize(z @ torch.randn(12, 8, generator=generator), dim=1)
    prototypes = F.normalize(torch.randn(5, 8, generator=generator), dim=1)
    classifier = CosineClassifier(12, 5, generator=generator)
    kept = (z.clone(), h.clone(), prototypes.clone())
    with torch.no_grad():  # as it is called
        follow_prototypes(classifier, z, h, prototypes, readout_rows(600, seed=0))
    agreed = classifier(z).argmax(1) == (h @ prototypes.T).argmax(1)
    assert agreed.float().mean() > 0.95
    assert all(torch.equal(a, b) for a, b in zip(kept, (z, h, prototypes), strict=True))


def follow_by_torch(weight: Tensor, z: Tensor, h: Tensor, prototypes: Tensor) -> Tensor:
    """The read-out with torch's own optimiser and schedule, on all rows, drawn step by step."""
    weight = weight.detach().clone().requires_grad_()
    steps = min(1000, max(200, len(z) // 4))
    optimiser = torch.optim.SGD([weight], lr=0.3, momentum=0.9)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    rng = np.random.default_rng([0, 43])
    for _ in range(steps):
        rows = torch.from_numpy(rng.integers(len(z), size=opencon.READOUT_ROWS))
        teacher = F.softmax(20 * (h[rows] @ prototypes.T), dim=1)
        student = 20 * (F.normalize(z[rows], dim=1) @ F.normalize(weight, dim=1).T)
        (weight.grad,) = torch.autograd.grad(losses.soft_cross_entropy(teacher, student), weight)
        optimiser.step()
        decay.step()
    return weight.detach()


@pytest.mark.parametrize(("rows", "each"), [(48, 256), (3000, 2)])  # of the 3,000 about 1,200 are drawn
def test_the_read_out_has_the_bits_of_torchs_on_all_rows(rows: int, each: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opencon, "READOUT_ROWS", each)
    problem = long_tailed(rows, known=3, novel=3, dim=7)
    method, feed = small(problem), feed_of(problem, epochs=1)
    with torch.no_grad():
        z = torch.cat([method.tail(x) for _, x in feed.chunks()])
        h = torch.cat([method.projector(part) for part in z.split(1024)])
    expected = follow_by_torch(method.classifier.weight, z, h, method.prototypes)
    method.finish(feed)
    assert torch.equal(method.classifier.weight, F.normalize(expected, dim=1))


def test_a_trained_model_answers_new_rows_as_its_prototypes_do() -> None:
    problem = long_tailed(300, seed=1)
    method, feed = build("opencon", problem), feed_of(problem, epochs=15)
    list(train(method, feed, Optimisation()))
    with torch.no_grad():
        method.finish(feed)
        x = torch.from_numpy(problem.test)
        nearest = (method.projector(method.tail(x)) @ method.prototypes.T).argmax(1)
        assert (method.predict_logits(x).argmax(1) == nearest).float().mean() > 0.9
