"""A collapsed answer is said, with its cause and what to do, and is no success; a sound one is left alone."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rowssl.runs.collapse import collapse, without_pictures
from rowssl.runs.fit import worse_than_before

Call = Callable[..., tuple[int, str, str]]
NAMES = ("a", "b", "c", "novel-01", "novel-02")


def case(counts: list[int], labels: list[int], *, lost: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """So many unlabelled rows in each class, and so many labels of the known ones, which are found again unless they are lost."""
    known = np.repeat(np.arange(len(labels)), labels)
    head = np.concatenate([np.repeat(np.arange(len(counts)), counts), np.full(len(known), 3) if lost else known])
    return head, np.concatenate([np.full(sum(counts), -1), known])


@pytest.mark.parametrize(
    ("counts", "labels", "word"),
    [
        ([10, 10, 10, 10, 10], [4, 4, 4], ""),
        ([1, 1, 1, 1, 96], [4, 4, 4], "96 % of all unlabelled rows are in novel-02"),
        ([96, 1, 1, 1, 1], [40, 4, 4], ""),  # as most labels say
        ([96, 1, 1, 1, 1], [4, 4, 4], "96 % of all unlabelled rows are in a"),
        ([0, 0, 30, 30, 30], [4, 4, 4], ""),  # all their pictures may be labelled
        ([0, 30, 30, 30, 30], [4, 4, 4], ""),
        ([0, 0, 1, 1, 16], [4, 4, 4], ""),  # too few rows to say
    ],
)
def test_what_is_a_collapse(counts: list[int], labels: list[int], word: str) -> None:
    found = collapse(*case(counts, labels), NAMES, 3)
    assert word in found
    assert bool(word) == bool(found)
    if word:
        assert "--encoder" in found
        assert found.count("\n") == 0


def test_known_classes_that_are_not_found_among_their_labels() -> None:
    found = collapse(*case([0, 0, 30, 30, 30], [4, 4, 4], lost=True), NAMES, 3)
    assert "2 of 3 known classes are not found, not even among their labels (a, b)" in found
    assert collapse(*case([0, 30, 30, 30, 30], [4, 4, 4], lost=True), NAMES, 3) == ""


def test_known_classes_without_pictures_are_named() -> None:
    assert without_pictures(*case([0, 30, 30, 30, 30], [4, 4, 4]), 3) == [0]
    assert without_pictures(*case([0, 0, 0], [4, 4, 4]), 3) == []  # nothing is unlabelled


def blobs(folder: Path, truth: np.ndarray, labels: np.ndarray) -> Path:
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(8, 24))[truth] + 0.3 * rng.normal(size=(len(truth), 24))).astype(np.float32)
    np.savez(folder / "data.npz", embeddings=x, labels=labels)
    return folder / "data.npz"


def test_a_collapse_is_no_success(run: Call, tmp_path: Path) -> None:
    """All unlabelled rows are in one class that has a quarter of the labels."""
    truth = np.r_[np.repeat(np.arange(4), 5), np.full(200, 1)]
    labels = np.r_[np.repeat(np.arange(4), 5), np.full(200, -1)]
    out = tmp_path / "run"
    code, _, err = run("fit", blobs(tmp_path, truth, labels), "--out", out, "--classes", 4)
    assert code == 4
    assert "rowssl: The answer collapsed" in err
    assert "Traceback" not in err
    assert "The answer collapsed" in json.loads((out / "metrics.json").read_text())["problem"]
    assert 'role="alert">The answer collapsed' in (out / "report.html").read_text()


def test_a_sound_answer_says_what_was_tried_and_how_often_it_is_right(run: Call, tmp_path: Path) -> None:
    truth = np.repeat(np.arange(8), 40)
    labels = np.where((truth < 5) & (np.arange(320) % 40 < 8), truth, -1)
    out = tmp_path / "run"
    code, said, err = run("fit", blobs(tmp_path, truth, labels), "--out", out, "--classes", 8, "--quick")
    assert code == 0, err
    assert "tried on hidden known classes" in said
    assert "expected to be right: 100 %" in said
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["problem"] == ""
    assert {row["candidate"] for row in metrics["tried"]} >= {"class means + k-means, as they are", "frozen, rho 0.15"}
    page = (out / "report.html").read_text()
    assert "expected right" in page
    assert "Is confidence calibrated?" in page
    with (out / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert sum(row["class"] == str(label) for row, label in zip(rows, truth, strict=True) if label < 5) >= 198


def test_a_time_limit_goes_with_what_can_keep_it(run: Call, tmp_path: Path) -> None:
    truth = np.repeat(np.arange(8), 20)
    data = blobs(tmp_path, truth, np.where(truth < 5, truth, -1))
    code, _, err = run("fit", data, "--out", tmp_path / "no", "--method", "simgcd", "--time-limit", 10)
    assert (code, "--time-limit goes with --method auto or transfer" in err) == (2, True)
    code, _, err = run("fit", data, "--out", tmp_path / "no", "--time-limit", -1)
    assert code == 2
    code, _, err = run("fit", data, "--out", tmp_path / "yes", "--time-limit", 1, "--classes", 8)
    assert code == 0, err


def test_what_is_worse_than_before_is_said() -> None:
    before, now = {"expected": {"expected": 90.0, "low": 85.0, "high": 95.0}}, {"expected": {"expected": 80.0}}
    assert worse_than_before(before, now) == "expected to be right: 80 % with the corrections, 90 % before"
    assert worse_than_before(before, {"expected": {"expected": 86.0}}) == ""  # within what was said before
    assert worse_than_before({}, now) == worse_than_before(before, {}) == worse_than_before({"expected": 3}, now) == ""
