"""Hidden labels as judges of a training: which are hidden, what is kept, and the same after a stop as without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from contract.problems import Problem, build, digest, feed_of, long_tailed
from faults.trainings import weights
from rowssl.api import fit
from rowssl.config import build_config
from rowssl.methods.base import Method
from rowssl.methods.held_out import Kept, balanced, held_back, state_of
from rowssl.training.checkpoints import Checkpoints
from rowssl.training.loop import Optimisation, train


@pytest.fixture(scope="module")
def problem() -> Problem:
    return long_tailed(200)


def test_a_share_of_every_class_is_held_back_and_two_labels_are_left() -> None:
    targets = np.repeat([0, 1, 2, 3, -1], [1, 3, 10, 40, 20])
    rows = held_back(targets, 0.2, seed=0)
    assert np.bincount(targets[rows], minlength=4).tolist() == [0, 1, 2, 8]
    assert (np.diff(rows) > 0).all()
    assert held_back(targets, 0.2, seed=1).tolist() != rows.tolist()
    assert np.bincount(targets[held_back(targets, 0.5, seed=0)], minlength=4).tolist() == [0, 1, 5, 20]
    assert len(held_back(targets, 0.0, seed=0)) == len(held_back(np.full(5, -1), 0.5, seed=0)) == 0


def test_the_judgement_is_the_mean_recall_and_its_error() -> None:
    heads, classes = torch.tensor([0, 0, 1, 9, 3, 3, 3, 3]), torch.tensor([0, 0, 0, 0, 3, 3, 3, 2])
    score, error = balanced(heads, classes)
    recalls = {}
    for one in set(classes.tolist()):
        answers = [head for head, true in zip(heads.tolist(), classes.tolist(), strict=True) if true == one]
        recalls[one] = (sum(answer == one for answer in answers) / len(answers), len(answers))
    assert score == pytest.approx(sum(recall for recall, _ in recalls.values()) / 3)
    spread = sum(recall * (1 - recall) / size for recall, size in recalls.values()) ** 0.5 / 3
    assert error == pytest.approx(max(spread, (score * (1 - score) / 8) ** 0.5))


def judged(method: Method, problem: Problem) -> tuple[np.ndarray, Kept]:
    rows = held_back(problem.targets, 0.3, seed=0)
    targets = problem.targets.copy()
    targets[rows] = -1
    method.kept = Kept(method, rows, problem.targets[rows])
    return targets, method.kept


def test_the_last_state_before_the_harm_is_kept(problem: Problem) -> None:
    method = build("simgcd", problem)
    _, kept = judged(method, problem)
    feed = feed_of(problem, epochs=1)
    centres = torch.stack([
        torch.from_numpy(problem.embeddings[problem.truth == c].mean(0)) for c in range(problem.n_classes)
    ])  # fmt: skip
    method.classifier.set_directions(centres)
    good = kept.look(method, feed, 1)
    method.classifier.weight.data.mul_(1.5)  # another state as good as the first: the later one is kept
    assert kept.look(method, feed, 2) == good > 0.5
    assert int(kept.epoch) == 2
    stored = {name: value.clone() for name, value in state_of(method).items()}
    method.classifier.set_directions(centres.roll(1, 0))
    assert kept.look(method, feed, 3) < good / 2
    kept.put_back(method)
    assert all(torch.equal(value, stored[name]) for name, value in state_of(method).items())
    assert (int(kept.epoch), float(kept.best)) == (2, pytest.approx(good))


@pytest.mark.parametrize("name", ["simgcd", "dts-paper"])
def test_a_judged_training_that_is_stopped_ends_bit_for_bit_as_one_that_is_not(
    name: str, problem: Problem, tmp_path: Path
) -> None:
    def some(folder: Path | None, stop: int | None = None) -> Method:
        method = build(name, problem)
        targets, _ = judged(method, problem)
        feed = feed_of(problem, epochs=6)
        feed.targets = torch.from_numpy(targets)
        where = None if folder is None else Checkpoints(folder / "checkpoints")
        for epoch in train(method, feed, Optimisation(save_seconds=0), checkpoints=where, identity="me"):
            if epoch.number == stop:
                break
        return method

    whole = some(None)
    assert whole.kept is not None
    assert float(whole.kept.best) > 0
    for stop in (1, 4):
        some(tmp_path / str(stop), stop)
        assert digest(some(tmp_path / str(stop))) == digest(whole)


def test_a_run_with_hidden_labels(embeddings: Path, tmp_path: Path) -> None:
    def content(held: float) -> dict[str, Any]:
        return {
            "data": {"source": str(embeddings)}, "method": {"name": "simgcd"}, "classes": 8,
            "train": {"epochs": 3, "batch_size": 64, "held": held},
        }  # fmt: skip

    run = fit(build_config(content(0.25)), tmp_path / "judged")
    kept = run.method.kept
    assert kept is not None
    assert len(kept.rows) > 0
    assert (run.problem.targets[kept.rows] >= 0).all()  # the run itself knows them
    assert all(
        torch.equal(value, getattr(kept, name.replace(".", "/"))) for name, value in state_of(run.method).items()
    )
    plain = fit(build_config(content(0.0)), tmp_path / "plain")
    assert plain.method.kept is None
    assert weights(tmp_path / "plain") != weights(tmp_path / "judged")
    assert run.metrics["identity"] != plain.metrics["identity"]
