"""Where a learnt classifier begins: the closed form's answer as directions in the tail's own features, by plain loops."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from contract.problems import Problem, build, feed_of, long_tailed
from methods.naive import unit
from rowssl.core.errors import InputError
from rowssl.encoders.convnet import ConvNet
from rowssl.methods.simgcd import SimGCD
from rowssl.methods.transfer import Transfer


@pytest.fixture(scope="module")
def problem() -> Problem:
    return long_tailed(200, noise=0.4)


@pytest.mark.parametrize("name", ["simgcd", "dts-paper"])
def test_transfer_starts_at_the_mean_of_what_the_closed_form_puts_in_a_class(name: str, problem: Problem) -> None:
    method = build(name, problem, classifier_init="transfer")
    feed = feed_of(problem, epochs=1)
    method.start(feed)
    sizes = {"n_old": problem.n_old, "n_classes": problem.n_classes, "n_rows": len(problem.truth), "seed": 0}
    closed = Transfer(copy.deepcopy(method.tail), tune=False, **sizes)
    closed.finish(feed)
    rows = torch.from_numpy(problem.embeddings)
    with torch.no_grad():
        answers, z = closed.predict_logits(rows).argmax(1).tolist(), method.tail(rows).double().numpy()
    sums = np.zeros((problem.n_classes, z.shape[1]))
    for i, target in enumerate(problem.targets):
        sums[target if target >= 0 else answers[i]] += unit(z[i])
    weight = method.classifier.weight.detach().numpy()
    for c in range(problem.n_classes):
        if sums[c].any():
            np.testing.assert_allclose(weight[c], unit(sums[c]), atol=1e-5)
    with torch.no_grad():
        heads = method.predict_logits(rows).argmax(1).numpy()
    known = problem.truth < problem.n_old
    assert (heads == problem.truth)[known].mean() > 0.8


@pytest.mark.parametrize("how", ["random", "kmeans", "semi_kmeans", "transfer"])
def test_every_start_of_simgcd(problem: Problem, how: str) -> None:
    feed = feed_of(problem, epochs=1)
    fresh, started = build("simgcd", problem), build("simgcd", problem, classifier_init=how)
    started.start(feed)
    same = torch.equal(fresh.classifier.weight, started.classifier.weight)
    assert same == (how == "random")
    if how != "random":
        torch.testing.assert_close(started.classifier.weight.norm(dim=1), torch.ones(problem.n_classes))


def test_an_unknown_start_is_refused(problem: Problem) -> None:
    with pytest.raises(InputError, match="classifier_init must be one of random, kmeans, semi_kmeans, transfer"):
        build("simgcd", problem, classifier_init="pca")


class Scratch(nn.Module):
    """A tail that holds a whole network."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.network, self.out_dim = ConvNet(), dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def test_a_network_that_has_learnt_nothing_begins_at_random(problem: Problem) -> None:
    sizes: dict[str, Any] = {"n_old": problem.n_old, "n_classes": problem.n_classes, "n_rows": len(problem.truth)}
    method = SimGCD(Scratch(32), **sizes, seed=0, classifier_init="transfer")
    before = method.classifier.weight.detach().clone()
    method.start(feed_of(problem, epochs=1))
    assert torch.equal(method.classifier.weight, before)
