"""Proposals to merge and to split: on groups made by hand, and on a real run of the digits with three classes too many."""

from __future__ import annotations

import csv
import json
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from finished import LABELS, digit_pictures
from rowssl.api import fit
from rowssl.config import build_config
from rowssl.core.errors import InputError
from rowssl.runs.run import Run
from rowssl.runs.suggest import (
    MERGE,
    USUAL,
    compare,
    compared,
    groups_of,
    halves,
    learnt,
    nearest_pairs,
    neighbours_of,
    same_class,
    suggest,
)

Call = Callable[..., tuple[int, str, str]]


def clouds(sizes: list[int], seed: int = 0, dim: int = 16) -> tuple[torch.Tensor, np.ndarray]:
    """Gaussian classes on the sphere, well apart."""
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(len(sizes)), sizes)
    x = rng.normal(size=(len(sizes), dim))[truth] + 0.25 * rng.normal(size=(len(truth), dim))
    return F.normalize(torch.from_numpy(x).float(), dim=1), truth


def test_a_class_cut_in_two_is_told_from_two_classes():
    x, truth = clouds([60, 60, 60, 60])
    parts = halves(x, truth)
    cut = np.where(truth == 3, parts - 3, truth)  # class 3 is groups 3 and 4
    groups = groups_of(x, cut, 5, neighbours_of(x))
    same = same_class(compare(groups, np.array([[3, 4], [0, 1], [1, 2], [0, 3]])), MERGE)
    assert same[0] > 0.5
    assert same[1:].max() < 0.2


def test_two_classes_in_one_come_apart_as_parts():
    x, truth = clouds([50, 50, 50, 50], seed=1)
    group = np.minimum(truth, 2)  # classes 2 and 3 are one group
    parts = halves(x, group)
    of_two = parts[truth >= 2]
    assert len(set(of_two[:50])) == len(set(of_two[50:])) == 1
    assert of_two[0] != of_two[-1]
    _, both, _, sides = compared(x, group, 3, 0)
    seen = compare(both, sides)
    assert sides.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert seen[2].sum() < seen[:2].sum(1).min()


def test_pairs_come_without_empty_groups_and_once():
    x, truth = clouds([30, 30, 30])
    group = np.array([0, 2, 3])[truth]  # group 1 has no rows
    pairs = nearest_pairs(groups_of(x, group, 4, neighbours_of(x)), 1)
    assert pairs.tolist() == [[0, 2], [0, 3], [2, 3]]


def test_known_classes_of_the_run_correct_the_usual_weights():
    near, far = np.full((30, 2), 0.9), np.full((30, 2), 0.6)
    assert learnt(far[:0], near) is USUAL
    mixed = learnt(far, near)  # here even different classes mix
    before, after = same_class(far[:1], USUAL)[0], same_class(far[:1], mixed)[0]
    assert after < before - 0.2


@pytest.fixture(scope="module")
def crowded(tmp_path_factory) -> tuple[Path, np.ndarray]:
    """A run of the closed form on digits with 13 classes, and what is on the pictures."""
    folder = tmp_path_factory.mktemp("crowded")
    images, digits = digit_pictures()
    lines = ["row,label"]
    lines += [f"{i},{LABELS[digits[i]]}" for i in range(600) if digits[i] < 5 and i % 3 == 0]
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    pixels = np.stack([np.asarray(image)[:, :, 0].ravel() for image in images[:600]]).astype(np.float32)
    np.save(folder / "x.npy", pixels)
    content = {
        "data": {"source": str(folder / "x.npy"), "labels": str(folder / "labels.csv")},
        "method": {"name": "transfer"},
        "classes": 13,
    }
    fit(build_config(content), folder / "run")
    return folder / "run", digits[:600]


def test_too_many_classes_are_merged_rightly(crowded):
    run, digits = crowded
    stored = Run.load(run)
    place = stored.edits.place
    majority = [np.bincount(digits[stored.answers.rows_of(head)], minlength=10).argmax() for head in range(13)]
    found = suggest(stored)
    assert [one.probability for one in found] == sorted((one.probability for one in found), reverse=True)
    assert all(0 <= one.probability <= 1 for one in found)
    assert not any(place[one.classes[0]] < 5 and place[one.classes[1]] < 5 for one in found if one.kind == "merge")
    merges = [one for one in found if one.kind == "merge"]
    right = [len({majority[place[i]] for i in one.classes}) == 1 for one in merges]
    assert sum(right[:3]) >= 2
    assert sum(right) <= len(right) / 3  # so that this is no luck
    assert all(sum(one.sizes) == sum((stored.answers.head == place[i]).sum() for i in one.classes) for one in found)


def test_the_command_of_a_proposal_does_it(crowded, run):
    folder, _ = crowded
    first = suggest(Run.load(folder), 1)[0]
    words = shlex.split(first.command)
    assert words[:3] == ["rowssl", "edit", str(folder)]
    code, _, err = run(*words[1:], "--no-report")
    assert code == 0, err
    assert len(Run.load(folder).edits.classes) == (12 if first.kind == "merge" else 14)
    after = {one.classes for one in suggest(Run.load(folder))}
    assert first.classes not in after
    Run.load(folder).undo()
    assert suggest(Run.load(folder), 1) == [first]


def test_the_parts_of_a_proposed_split_are_those_that_the_edit_makes(crowded):
    folder, _ = crowded
    split = next(one for one in suggest(Run.load(folder)) if one.kind == "split")
    Run.load(folder).split(split.classes[0])
    stored = Run.load(folder)
    sizes = np.bincount(stored.answers.head, minlength=len(stored.edits.classes))
    made = [sizes[stored.edits.place[one]] for one in stored.edits.state.divided[split.classes[0]][1]]
    Run.load(folder).undo()
    labelled = int((Run.load(folder).problem.targets >= 0).sum())
    assert abs(made[0] - split.sizes[0]) <= 0.1 * sum(split.sizes) + (labelled if split.classes[0] in LABELS else 0)


@pytest.mark.parametrize("parts", [2, 3])
def test_what_a_person_split_is_never_proposed_as_one(crowded, monkeypatch, parts):
    folder, _ = crowded
    whole, other = next(one.classes for one in suggest(Run.load(folder)) if one.kind == "merge")

    def proposed() -> list[set[frozenset[str]]]:
        """Merges, and those that there would be if nobody knew of a person's split."""
        stored = Run.load(folder)
        with monkeypatch.context() as without:
            without.setattr(
                "rowssl.runs.suggest.split_by_a_person", lambda classes, pairs: np.zeros(len(pairs), dtype=bool)
            )
            every = suggest(stored)
        return [{frozenset(one.classes) for one in some if one.kind == "merge"} for some in (suggest(stored), every)]

    made = Run.load(folder).split(whole, parts=parts).edits.state.divided[whole][1]
    between = {frozenset((a, b)) for a in made for b in made if a != b}
    found, every = proposed()
    assert between & every  # they are near each other
    assert every - found == between & every  # and nothing else is withheld
    assert any(one & set(made) for one in found)

    Run.load(folder).merge(other, made[0])  # what a part became stays apart from the other parts
    found, every = proposed()
    apart = {frozenset((a, b)) for a in (other, *made[1:]) for b in made[1:] if a != b}
    assert apart & every
    assert every - found == apart & every
    for _ in range(2):
        Run.load(folder).undo()
    assert frozenset((whole, other)) in proposed()[0]


def test_the_command_line_prints_a_table_json_and_a_file(crowded, call: Call, tmp_path):
    folder, _ = crowded
    code, text, err = call("suggest", folder, "-n", 5, "--out", tmp_path / "next.csv")
    assert code == 0, err
    lines = text.splitlines()
    assert lines[0].split() == ["kind", "probability", "classes", "images", "command"]
    assert len([line for line in lines if f"rowssl edit {folder}" in line]) == 5
    rows = list(csv.DictReader((tmp_path / "next.csv").open(newline="")))
    code, text, err = call("suggest", folder, "-n", 5, "--json")
    assert code == 0, err
    found = json.loads(text)
    assert [one["command"] for one in found] == [row["command"] for row in rows]
    assert [one["classes"][0] for one in found] == [row["class"] for row in rows]
    assert all(row["command"].split()[3] == row["kind"] for row in rows)


def test_what_cannot_be_compared_is_refused(call: Call, capsys, tmp_path):
    np.save(tmp_path / "few.npy", np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32))
    (tmp_path / "labels.csv").write_text("row,label\n0,a\n1,a\n2,b\n3,b\n")
    content = {
        "data": {"source": str(tmp_path / "few.npy"), "labels": str(tmp_path / "labels.csv")},
        "method": {"name": "transfer"},
        "classes": 3,
    }
    fit(build_config(content), tmp_path / "run")
    capsys.readouterr()  # what fit said
    with pytest.raises(InputError, match="12 images, which are too few"):
        suggest(Run.load(tmp_path / "run"))
    for folder, words in ((tmp_path / "run", "too few to compare"), (tmp_path / "gone", "gone")):
        code, _, err = call("suggest", folder)
        assert code == 2
        assert words in err
        assert len(err.strip().splitlines()) == 1


@pytest.fixture
def call(run: Call) -> Call:
    """The command line in this process."""
    return run
