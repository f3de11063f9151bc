"""The loop: exact resume (also after kill -9), schedules, and a stop before a number that is none does harm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from contract.problems import METHODS, Problem, build, digest, feed_of, long_tailed
from contract.problems import main as train_in_folder
from rowssl.core.errors import InputError
from rowssl.data.feed import Batch
from rowssl.methods.base import Method, Step
from rowssl.training.checkpoints import Checkpoints
from rowssl.training.loop import Epoch, NonFiniteError, Optimisation, build_optimiser, train

every_method = pytest.mark.parametrize("name", METHODS)
SAVE_ALWAYS = Optimisation(save_seconds=0)


@pytest.fixture(scope="module")
def problem() -> Problem:
    return long_tailed(120)


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """The training programs use one thread; what they set does not outlive a test."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def checkpoints_in(folder: Path) -> Checkpoints:
    return Checkpoints(folder / "checkpoints")


def some_epochs(
    name: str, problem: Problem, folder: Path | None, stop: int | None = None, epochs: int = 6
) -> tuple[Method, list[Epoch]]:
    """Train a fresh method until after epoch `stop`."""
    method, seen = build(name, problem), []
    where = None if folder is None else checkpoints_in(folder)
    for epoch in train(method, feed_of(problem, epochs=epochs), SAVE_ALWAYS, checkpoints=where, identity="me"):
        seen.append(epoch)
        if epoch.number == stop:
            break
    return method, seen


@every_method
def test_stop_and_resume_is_bit_for_bit_the_uninterrupted_run(name: str, problem: Problem, tmp_path: Path) -> None:
    whole, whole_epochs = some_epochs(name, problem, None)
    for stop in (1, 4):
        folder = tmp_path / str(stop)
        first, before = some_epochs(name, problem, folder, stop)
        assert digest(first) != digest(whole)
        resumed, after = some_epochs(name, problem, folder)
        assert [epoch.number for epoch in before + after] == [1, 2, 3, 4, 5, 6]
        assert digest(resumed) == digest(whole)
        assert [e.losses for e in before + after] == [e.losses for e in whole_epochs]
        again, none = some_epochs(name, problem, folder)  # nothing left to do: the same weights
        assert none == []
        assert digest(again) == digest(whole)


class Killed(Exception):
    pass


@every_method
def test_a_run_that_ends_within_an_epoch_goes_on_within_it(name: str, problem: Problem, tmp_path: Path) -> None:
    """Weights and the mean losses of every epoch are those of the uninterrupted run."""
    options = Optimisation(save_seconds=3600, save_within_seconds=0)
    whole, feed = build(name, problem), feed_of(problem, epochs=4, batch_size=40)
    assert (feed.steps, feed.steps_per_epoch) == (12, 3)
    expected = {epoch.number: epoch.losses for epoch in train(whole, feed, options)}
    done: list[int] = []
    found: dict[int, dict[str, float]] = {}

    def watch(steps: int) -> None:
        done.append(steps)
        if len(done) % 4 == 0:
            raise Killed

    for _ in range(12):
        method = build(name, problem)
        kept = {"checkpoints": checkpoints_in(tmp_path), "identity": "me"}
        try:
            for epoch in train(method, feed, options, **kept, watch=watch):
                found[epoch.number] = epoch.losses
            break
        except Killed:
            pass
    assert done == [0, 1, 2, 3, 2, 3, 4, 5, 5, 6, 7, 8, 8, 9, 10, 11, 11, 12]  # the end of an epoch was not saved here
    assert digest(method) == digest(whole)
    assert found == expected


@every_method
def test_a_damaged_last_checkpoint_costs_one_epoch_and_nothing_else(
    name: str, problem: Problem, tmp_path: Path
) -> None:
    whole, _ = some_epochs(name, problem, None)
    some_epochs(name, problem, tmp_path, stop=4)
    last = sorted((tmp_path / "checkpoints").glob("step-*"))[-1] / "optimiser.safetensors"
    content = bytearray(last.read_bytes())
    content[-5] ^= 8
    last.write_bytes(content)
    resumed, after = some_epochs(name, problem, tmp_path)
    assert [epoch.number for epoch in after] == [4, 5, 6]
    assert digest(resumed) == digest(whole)


def test_training_is_deterministic_and_depends_on_the_seed(problem: Problem) -> None:
    one, two = (some_epochs("dts-paper", problem, None, epochs=2)[0] for _ in range(2))
    assert digest(one) == digest(two)
    other = build("dts-paper", problem)
    list(train(other, feed_of(problem, epochs=2, seed=1), Optimisation()))
    assert digest(other) != digest(one)


def test_kill_at_any_moment_and_the_same_command_again_end_in_the_same_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two real kill -9 within the training of each method, then the same command until it is done."""
    epochs, names = "12", list(METHODS)
    train_in_folder(str(tmp_path / "whole"), epochs, *names)
    expected = [line for line in capsys.readouterr().out.splitlines() if line.startswith("digest")]
    assert len(expected) == len(names)
    done = subprocess.run(
        [sys.executable, "-m", "contract.killer", str(tmp_path / "killed"), epochs, "2", *names],
        capture_output=True,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path]),
        },
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == f"kills {2 * len(names)}"
    assert [line for line in lines if line.startswith("digest")] == expected
    assert sum(line.startswith("epoch") for line in lines) < int(epochs)  # what was saved was not done again
    assert not list(tmp_path.glob("killed/*/checkpoints/.*"))


def test_another_identity_is_refused_before_anything_is_touched(problem: Problem, tmp_path: Path) -> None:
    some_epochs("simgcd", problem, tmp_path, stop=1)
    method = build("simgcd", problem)
    before = digest(method)
    with pytest.raises(InputError, match="other options"):
        next(train(method, feed_of(problem, epochs=6), SAVE_ALWAYS, checkpoints=checkpoints_in(tmp_path), identity="x"))
    assert digest(method) == before


def test_learning_rate_epochs_and_saves(problem: Problem, tmp_path: Path) -> None:
    options = Optimisation(lr=0.2, final=1e-3, save_seconds=3600)
    method = build("simgcd", problem)
    seen = []
    for epoch in train(method, feed_of(problem, epochs=5), options, checkpoints=checkpoints_in(tmp_path)):
        seen.append(epoch)
        saved = list((tmp_path / "checkpoints").glob("step-*"))
        assert len(saved) == (epoch.number == 5)  # the last epoch is always saved, the others when it is time
    expected = [2e-4 + 0.5 * (0.2 - 2e-4) * (1 + np.cos(np.pi * e / 5)) for e in range(5)]
    assert [e.lr for e in seen] == pytest.approx(expected)
    assert {e.of for e in seen} == {5}
    assert all(np.isfinite(list(e.losses.values())).all() for e in seen)


def test_matrices_decay_and_vectors_do_not(problem: Problem) -> None:
    method = build("dts-paper", problem)
    groups = build_optimiser(method, Optimisation(weight_decay=0.1)).groups
    assert [group.weight_decay for group in groups] == [0.1, 0.0]
    assert all(p.dim() > 1 for p in groups[0].parameters)
    assert all(p.dim() == 1 for p in groups[1].parameters)
    trained = {id(p) for group in groups for p in group.parameters}
    assert trained == {id(p) for name, p in method.named_parameters() if not name.startswith("key.")}


@every_method
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_row_that_is_not_a_number_stops_training_at_once(
    name: str, bad: float, problem: Problem, tmp_path: Path
) -> None:
    broken = replace(problem, views=problem.views.copy())
    method, feed = build(name, broken), feed_of(broken, epochs=50, batch_size=16)
    loop = train(method, feed, SAVE_ALWAYS, checkpoints=checkpoints_in(tmp_path), identity="me")
    for _ in range(2):
        next(loop)
    good = [digest(method)]
    row = int(np.flatnonzero(problem.targets < 0)[0])
    broken.views[:, row, 3] = bad
    first = next(s for s in range(2 * feed.steps_per_epoch, feed.steps) if row in feed.draw(s))
    with pytest.raises(NonFiniteError, match=f"at step {first}") as stop:
        good.extend(digest(method) for _ in loop)
    dump = json.loads((tmp_path / "non-finite.json").read_text())
    assert dump["step"] == first
    assert row in dump["rows"]
    assert len(dump["rows"]) == 16
    terms = [key for key, value in dump["terms"].items() if isinstance(value, str)]  # NaN is no number in JSON
    assert terms
    assert all(term in str(stop.value) for term in terms)
    assert "non-finite.json" in str(stop.value)
    assert "\n" not in str(stop.value)
    assert all(torch.isfinite(tensor).all() for tensor in method.state_dict().values() if tensor.is_floating_point())
    restored = build(name, problem)
    left = checkpoints_in(tmp_path)
    found = left.latest("me")
    assert found is not None
    assert left.problems == []
    restored.load_state_dict(found[0]["method"])
    assert digest(restored) == good[-1]


def test_it_stops_also_when_there_is_no_folder_yet(problem: Problem, tmp_path: Path) -> None:
    broken = replace(problem, views=problem.views.copy())
    broken.views[:, :, 0] = np.nan
    where = Checkpoints(tmp_path / "run" / "checkpoints")
    with pytest.raises(NonFiniteError, match="at step 0"):
        next(train(build("simgcd", broken), feed_of(broken, epochs=2), SAVE_ALWAYS, checkpoints=where))


class BadGradient(Method):
    """A finite loss whose gradient is not a number from step 4 on."""

    def loss(self, batch: Batch) -> Step:
        z = self.tail(batch.views[0])
        zero: Tensor = (z * (batch.step < 4)).square().sum()
        return Step({"root": zero.sqrt(), "plain": self.classifier(z).mean()})


def test_a_gradient_that_is_not_a_number_does_no_harm_either(problem: Problem, tmp_path: Path) -> None:
    sizes = {"n_old": problem.n_old, "n_classes": problem.n_classes, "n_rows": len(problem.truth)}
    method = BadGradient(build("simgcd", problem).tail, **sizes)
    feed = feed_of(problem, epochs=8, batch_size=60)
    with pytest.raises(NonFiniteError, match="at step 4"):
        for _ in train(method, feed, Optimisation(lr=1e-3, save_seconds=0), checkpoints=checkpoints_in(tmp_path)):
            pass
    for path in (tmp_path / "checkpoints").glob("step-*"):
        assert int(path.name.removeprefix("step-")) <= 4


def test_what_a_method_remembers_is_not_saved_when_it_is_no_number(problem: Problem, tmp_path: Path) -> None:
    method, feed = build("dts-paper", problem), feed_of(problem, epochs=3)
    update = method.after_step

    def poisoned(batch: Batch, step: Step) -> None:
        update(batch, step)
        if batch.epoch == 1 and batch.last_of_epoch:
            method.u[0] = float("nan")

    method.after_step = poisoned  # type: ignore[method-assign]
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    with pytest.raises(NonFiniteError, match="what the method remembers"):
        list(train(method, feed, Optimisation(save_seconds=0), checkpoints=checkpoints))
    found = Checkpoints(tmp_path / "checkpoints").latest("")
    assert found is not None
    assert found[1]["step"] == feed.steps_per_epoch
