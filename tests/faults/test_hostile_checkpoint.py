"""Checkpoints of a stranger: whole, of this very run by their hash, and wrong inside. The one before is used, and said why."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from contract.problems import Problem, build, digest, feed_of, long_tailed
from rowssl.core.files import read_directory, write_directory
from rowssl.methods.base import Method
from rowssl.training.checkpoints import Checkpoints
from rowssl.training.log import EpochLog
from rowssl.training.loop import NonFiniteError, Optimisation, train

Change = Callable[[dict[str, dict[str, Tensor]], dict[str, Any]], Any]

CHANGES: dict[str, tuple[Change, str]] = {
    "no optimiser and no method": (lambda t, f: t.clear(), "not those of the method"),
    "a tensor less": (lambda t, f: t["method"].popitem(), "not those of the method"),
    "a tensor more": (lambda t, f: t["method"].update(more=torch.ones(1)), r"of the method \(more\)"),
    "another shape": (lambda t, f: t["method"].update(u=torch.zeros(3)), r"of the method \(u\)"),
    "another type": (lambda t, f: t["method"].update(u=t["method"]["u"].long()), r"of the method \(u\)"),
    "a momentum of nothing": (lambda t, f: t["optimiser"].update(more=torch.ones(1)), "momenta"),
    "a momentum of another shape": (
        lambda t, f: t["optimiser"].update({next(iter(t["optimiser"])): torch.ones(1)}),
        "momenta",
    ),
    "no step": (lambda t, f: f.pop("step"), "step"),
    "a step in words": (lambda t, f: f.update(step="four"), "step"),
    "a step before the first": (lambda t, f: f.update(step=-5), "step"),
    "a step after the last": (lambda t, f: f.update(step=10**9), "step"),
    "true for a step": (lambda t, f: f.update(step=True), "step"),
    "within an epoch and no sums": (lambda t, f: f.update(step=f["step"] - 1), "sums of losses"),
    "sums at the end of an epoch": (lambda t, f: t.update(totals={"x": torch.ones(())}), "sums of losses"),
    "sums of many": (
        lambda t, f: (f.update(step=f["step"] - 1), t.update(totals={"x": torch.ones(2)})),
        "sums of losses",
    ),
    "sums of eight bits": (
        lambda t, f: (f.update(step=f["step"] - 1), t.update(totals={"x": torch.ones(()).to(torch.float8_e4m3fn)})),
        "sums of losses",
    ),
    "a sum that is none": (
        lambda t, f: (f.update(step=f["step"] - 1), t.update(totals={"x": torch.tensor(torch.nan)})),
        "sums of losses",
    ),
    "the line of another epoch": (lambda t, f: f["epoch"].update(epoch=2), "line of an epoch"),
    "seconds in words": (lambda t, f: f.update(seconds="four"), "seconds"),
    "seconds without end": (lambda t, f: f.update(seconds=float("inf")), "seconds"),
    "a word for an epoch": (lambda t, f: f.update(epoch="x"), "line of an epoch"),
    "an epoch without a number": (lambda t, f: f.update(epoch={"epoch": []}), "line of an epoch"),
}


@pytest.fixture(scope="module")
def problem() -> Problem:
    return long_tailed(120)


def trained(problem: Problem, checkpoints: Checkpoints | None, stop: int | None = None) -> Method:
    method = build("dts-paper", problem)
    options = Optimisation(save_seconds=0)
    for epoch in train(
        method, feed_of(problem, epochs=4, batch_size=40), options, checkpoints=checkpoints, identity="me"
    ):
        if epoch.number == stop:
            break
    return method


@pytest.mark.parametrize("name", CHANGES)
def test_the_checkpoint_before_is_used(name: str, problem: Problem, tmp_path: Path) -> None:
    change, reason = CHANGES[name]
    folder = tmp_path / "checkpoints"
    trained(problem, Checkpoints(folder), stop=3)
    last = sorted(folder.glob("step-*"))[-1]
    tensors, facts = read_directory(last)
    change(tensors, facts)
    write_directory(
        last, tensors, {key: value for key, value in facts.items() if key not in ("format", "sha256", "self")}
    )

    checkpoints = Checkpoints(folder)
    method = trained(problem, checkpoints)
    assert digest(method) == digest(trained(problem, None))
    assert len(checkpoints.problems) == 1
    assert str(last) in checkpoints.problems[0]
    assert re.search(reason, checkpoints.problems[0])
    EpochLog(tmp_path / "metrics.jsonl").recover(checkpoints)


def test_an_update_that_is_no_number_is_not_saved(problem: Problem, tmp_path: Path) -> None:
    """The loss and its gradient are finite, the step is too long for float32: no later step tells, the epoch is over."""
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    method = build("dts-paper", problem)
    feed = feed_of(problem, epochs=1)
    feed.steps_per_epoch = 1
    with pytest.raises(
        NonFiniteError, match="A weight, or what the method remembers, after the update is not finite at step 0"
    ):
        list(train(method, feed, Optimisation(lr=3e38, save_seconds=0), checkpoints=checkpoints, identity="me"))
    assert (tmp_path / "non-finite.json").exists()
    assert list(checkpoints.folder.glob("step-*")) == []
