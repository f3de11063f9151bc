"""What the ablations put in place of tailedness: class priors and remembered losses, by hand."""

from __future__ import annotations

import numpy as np
import torch

from rowssl.methods.dts import ClassPrior, LossMemory


def test_the_estimated_prior_follows_the_counts_of_each_epoch() -> None:
    prior = ClassPrior(4, None)
    np.testing.assert_allclose(prior.prior, [0.25] * 4)
    prior.refresh(torch.tensor([6.0, 3.0, 1.0, 0.0], dtype=torch.float64))
    np.testing.assert_allclose(prior.prior, 0.9 * 0.25 + 0.1 * np.array([0.6, 0.3, 0.1, 0.0]), atol=1e-6)
    values, low, high = prior.of_rows("estimated_prior", torch.tensor([1, 1, 3]), torch.tensor([0, 1, 2]))
    np.testing.assert_allclose(values, [0.255, 0.255, 0.225], atol=1e-6)
    np.testing.assert_allclose([float(low), float(high)], [0.225, 0.285], atol=1e-6)
    np.testing.assert_allclose(prior.of_heads("estimated_prior"), prior.prior)


def test_without_an_oracle_there_is_no_truth_to_look_at() -> None:
    prior = ClassPrior(3, None)
    assert prior.truth.numel() == prior.confusion.numel() == 0
    prior.add(torch.tensor([0, 2]), torch.tensor([5, 6]))
    assert prior.confusion.numel() == 0


def test_the_true_prior_of_rows_is_that_of_their_true_class() -> None:
    prior = ClassPrior(3, torch.tensor([0, 0, 0, 1, 2, 2]))
    values, low, high = prior.of_rows("true_prior", torch.tensor([2, 2, 2]), torch.tensor([0, 3, 4]))
    np.testing.assert_allclose(values, [1 / 2, 1 / 6, 1 / 3], atol=1e-6)
    np.testing.assert_allclose([float(low), float(high)], [1 / 6, 1 / 2], atol=1e-6)


def test_the_true_prior_of_heads_goes_through_their_matching_of_this_epoch() -> None:
    truth = torch.tensor([0, 0, 0, 1, 2, 2])
    prior = ClassPrior(3, truth)
    head_of = torch.tensor([2, 0, 1])  # class 0 is found by head 2, class 1 by head 0, class 2 by head 1
    for _ in range(2):
        prior.add(head_of[truth], torch.arange(6))
        np.testing.assert_allclose(prior.of_heads("true_prior"), [1 / 6, 1 / 3, 1 / 2], atol=1e-6)
        assert not prior.confusion.any()  # the next epoch starts from nothing
        head_of = head_of.clone()


def test_remembered_losses_are_smoothed_and_easy_counts_as_head() -> None:
    memory = LossMemory(5)
    score, low, high = memory.score(torch.tensor([0, 1]))
    assert score.tolist() == [0, 0]
    assert float(low) == float(high) == 0
    memory.add(torch.tensor([1, 3]), torch.tensor([2.0, 4.0]))
    score, low, high = memory.score(torch.tensor([1, 3, 0]))
    np.testing.assert_allclose(score, [-2, -4, -3])  # a row never seen stands in the middle
    assert (float(low), float(high)) == (-4, -2)
    memory.add(torch.tensor([3]), torch.tensor([1.0]))
    np.testing.assert_allclose(memory.score(torch.tensor([3]))[0], [-(0.9 * 4 + 0.1)], atol=1e-6)
