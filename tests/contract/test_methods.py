"""What every method promises: all state in the state dict, one row at a time, no hidden labels, and it learns."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from contract.problems import METHODS, Problem, build, digest, feed_of, long_tailed
from rowssl.clustering.assignment import hungarian
from rowssl.clustering.kmeans import assign, kmeans
from rowssl.data.feed import Feed
from rowssl.methods.base import Method
from rowssl.training.loop import SGD, Optimisation, build_optimiser, train

every_method = pytest.mark.parametrize("name", METHODS)


@pytest.fixture(scope="module")
def problem() -> Problem:
    return long_tailed(400, noise=1.0, seed=1)


@pytest.fixture(scope="module")
def trained(problem: Problem) -> dict[str, Method]:
    """Methods trained once for all tests that only look."""
    return {}


def trained_method(name: str, problem: Problem, trained: dict[str, Method]) -> Method:
    if name not in trained:
        method = build(name, problem)
        feed = feed_of(problem, epochs=25)
        list(train(method, feed, Optimisation()))
        with torch.no_grad():
            method.finish(feed)
        trained[name] = method.eval()
    return trained[name]


def three_steps(method: Method, optimiser: SGD, feed: Feed, first: int) -> list[dict[str, Tensor]]:
    """Three steps of training; their losses."""
    seen = []
    for step in range(first, first + 3):
        batch = feed.batch(step)
        if step % feed.steps_per_epoch == 0:
            with torch.no_grad():
                method.begin_epoch(feed, batch.epoch)
        result = method.loss(batch)
        optimiser.zero_grad()
        torch.stack(list(result.losses.values())).sum().backward()
        optimiser.step()
        method.after_step(batch, result)
        seen.append({key: value.detach() for key, value in result.losses.items()})
    return seen


@every_method
@pytest.mark.parametrize("crossing", [False, True])  # with the end of an epoch between, or not
def test_the_state_dict_is_all_a_method_remembers(name: str, problem: Problem, crossing: bool) -> None:
    feed = feed_of(problem, epochs=4, batch_size=64)
    first = feed.steps_per_epoch - 2 if crossing else 0
    options = Optimisation(momentum=0.0)  # momentum lives in the optimiser
    method = build(name, problem)
    method.start(feed)
    three_steps(method, build_optimiser(method, options), feed, first)
    copy = build(name, problem, seed=9)
    copy.load_state_dict(method.state_dict())
    for step in (first + 3, first + 6):
        one = three_steps(method, build_optimiser(method, options), feed, step)
        two = three_steps(copy, build_optimiser(copy, options), feed, step)
        assert one == two
    assert digest(method) == digest(copy)


@every_method
def test_state_is_persistent(name: str, problem: Problem) -> None:
    method = build(name, problem)
    assert set(dict(method.named_buffers())) <= set(method.state_dict())


@every_method
def test_prediction_looks_at_one_row_at_a_time(name: str, problem: Problem, trained: dict[str, Method]) -> None:
    method = trained_method(name, problem, trained)
    x = torch.from_numpy(np.concatenate([problem.test, problem.embeddings, problem.views[0]]))[:1000]
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(x)))
    before = digest(method)
    with torch.no_grad():
        together = method.predict_logits(x)
        alone = torch.cat([method.predict_logits(row[None]) for row in x])
        permuted = torch.empty_like(together)
        permuted[order] = method.predict_logits(x[order])
        among_others = method.predict_logits(torch.cat([x[:3], 100 * torch.randn(50, x.shape[1])]))[:3]
    assert together.shape == (len(x), problem.n_classes)
    for other in (alone, permuted):
        assert (together - other).abs().max() <= 1e-5
        assert torch.equal(together.argmax(1), other.argmax(1))
    assert (together[:3] - among_others).abs().max() <= 1e-5
    assert digest(method) == before


@every_method
def test_no_method_is_given_the_truth(name: str, problem: Problem) -> None:
    kind, _ = METHODS[name]
    named = [p for base in kind.__mro__ if base is not torch.nn.Module for p in _parameters(base)]
    assert [p for p in named if ("truth" in p or "true" in p) and not p.startswith("oracle")] == []
    feed = feed_of(problem, epochs=2)
    hidden = problem.targets < 0
    assert hidden[problem.truth >= problem.n_old].all()
    assert set(vars(feed)).isdisjoint({"truth", "labels"})
    for step in range(feed.steps):
        batch = feed.batch(step)
        assert torch.equal(batch.target, torch.from_numpy(problem.targets)[batch.index])
        assert (batch.target[torch.from_numpy(hidden)[batch.index]] == -1).all()


def _parameters(kind: Any) -> list[str]:
    options = list(kind.Options.model_fields) if "Options" in vars(kind) else []
    return options + (list(inspect.signature(kind.__init__).parameters) if "__init__" in vars(kind) else [])


def balanced_accuracy(predicted: np.ndarray, truth: np.ndarray, classes: range) -> float:
    return float(np.mean([np.mean(predicted[truth == c] == c) for c in classes]))


def matched(predicted: np.ndarray, problem: Problem) -> np.ndarray:
    """Cluster numbers of the test rows renamed to classes by the best assignment on the test rows themselves."""
    counts = np.zeros((problem.n_classes, problem.n_classes))
    np.add.at(counts, (predicted, problem.test_truth), 1)
    rows, columns = hungarian(counts)
    name = np.zeros(problem.n_classes, dtype=int)
    name[rows] = columns
    return name[predicted]


@every_method
def test_it_learns_known_classes_better_than_k_means(name: str, problem: Problem, trained: dict[str, Method]) -> None:
    known = range(problem.n_old)
    centres = kmeans(problem.embeddings, problem.n_classes, seed=0).centers
    clusters = matched(assign(problem.test, centres)[0].numpy(), problem)  # matching on the test rows favours k-means
    method = trained_method(name, problem, trained)  # may train: outside of no_grad
    with torch.no_grad():
        logits = method.predict_logits(torch.from_numpy(problem.test))
    predicted = logits.argmax(1).numpy()  # known classes have their own numbers: no matching
    ours, theirs = (balanced_accuracy(p, problem.test_truth, known) for p in (predicted, clusters))
    assert ours > theirs + 0.05, (ours, theirs)
    # Novel classes: clusters beyond the known ones are used, and better than by chance.
    novel = balanced_accuracy(matched(predicted, problem), problem.test_truth, range(problem.n_old, problem.n_classes))
    assert novel > 2 / problem.n_classes


@every_method
def test_its_embeddings_do_not_collapse(name: str, problem: Problem, trained: dict[str, Method]) -> None:
    method = trained_method(name, problem, trained)
    if not hasattr(method, "projector"):
        pytest.skip("this method has no contrastive embedding")
    with torch.no_grad():
        h = method.projector(method.tail(torch.from_numpy(problem.test)))  # type: ignore[operator]
    assert h.mean(0).norm() < 0.9  # 1 when every row has the same embedding


@every_method
@pytest.mark.parametrize("kind", ["no labels", "all labelled", "one novel row"])
def test_it_trains_on_lopsided_data(name: str, kind: str) -> None:
    problem = long_tailed(60, known=3, novel=3)
    if kind == "no labels":
        problem = replace(problem, targets=np.full_like(problem.targets, -1), n_old=0)
    elif kind == "all labelled":
        problem = replace(problem, targets=problem.truth, n_old=6)
    else:
        targets = problem.truth % 3
        targets[7] = -1
        problem = replace(problem, targets=targets, n_old=3, n_classes=4)
    method = build(name, problem)
    for epoch in train(method, feed_of(problem, epochs=2, batch_size=16), Optimisation()):
        assert all(np.isfinite(value) for value in epoch.losses.values())
