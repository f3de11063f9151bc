"""Edits that ask for too much memory, and edits beside those of another process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hostile import refused, within
from test_hostile_runs import split

from rowssl.runs import edits
from rowssl.runs.edits import Edits
from rowssl.runs.regroup import Leaf, Regroup, Split
from rowssl.runs.run import Run

Command = Callable[..., tuple[int, str, str]]


def test_memory_of_many_parts_does_not_multiply() -> None:
    heads = 3000
    classes = [[Leaf(head, ((head, part),))] for head in range(heads) for part in (0, 1)]
    with within(megabytes=64, seconds=120):
        regroup = Regroup(classes, [Split(((1.0, 0.0), (0.0, 1.0)), 0.5)] * heads)
        scores, label = regroup(torch.eye(heads)[[7, 2999]], torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    assert label.tolist() == [14, 5999]
    torch.testing.assert_close(scores.sum(1), torch.ones(2))
    torch.testing.assert_close(scores[0, 14:16], (torch.tensor([1.0, 0.0]) / 0.5).softmax(0))


def test_parts_are_counted_over_all_classes() -> None:
    wide = [split(one, [f"{one}.{i}" for i in range(4000)], [[1.0]] * 4000) for one in "abcde"]
    assert len(Edits(tuple("abcde"), 5, "m", tuple(wide[:2])).classes) == 8003
    with refused("edit 3 cannot be followed .there are too many parts", seconds=60):
        Edits(tuple("abcde"), 5, "m", tuple(wide)).check()


def test_an_edit_that_could_not_be_followed_is_not_saved(own_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edits, "MOST_MADE", 5)
    with refused("too many parts", seconds=60):
        Run.load(own_run).split("a")
    assert Edits.load(own_run).history == ()


def test_an_undo_beside_another_process_says_what_it_undid(
    own_run: Path, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    undo = Run.undo

    def undo_after_another(read: Run) -> Run:
        Run.load(own_run).rename("a", "theirs")
        return undo(read)

    monkeypatch.setattr(Run, "undo", undo_after_another)
    code, out, said = run("edit", own_run, "undo", "--no-report")
    assert (code, out.strip()) == (0, "undone: a renamed to theirs"), said
