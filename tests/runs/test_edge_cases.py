"""Data at the edges: each gives a sensible result, or one clear sentence and nothing else."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(run: Call) -> Call:
    return run


def clusters(sizes: Sequence[int], width: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Well separated Gaussian classes of these sizes, and which is which."""
    truth = np.repeat(np.arange(len(sizes)), sizes)
    noise = np.random.default_rng(0).normal(size=(len(truth), width))
    return (0.6 * noise + 4 * np.eye(width)[truth]).astype(np.float32), truth


def told(truth: np.ndarray, rows: Sequence[int] | np.ndarray) -> np.ndarray:
    """The labels of these rows, -1 elsewhere."""
    labels = np.full(len(truth), -1)
    labels[list(rows)] = truth[list(rows)]
    return labels


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def fitted(call: Call, folder: Path, x: np.ndarray, labels: np.ndarray, *options: object) -> dict[str, dict[str, str]]:
    """Classes by id after a short training on embeddings; the numbers in the files must fit together."""
    np.savez(folder / "data.npz", embeddings=x, labels=labels)
    code, _, err = call("fit", folder / "data.npz", "--out", folder / "run", "--epochs", 4, *options)
    assert code == 0, err
    predictions = rows_of(folder / "run" / "predictions.csv")
    assert len(predictions) == len(x)
    assert all(0 <= float(row["confidence"]) <= 1 for row in predictions)
    classes = {row["class"]: row for row in rows_of(folder / "run" / "classes.csv")}
    assert sum(int(row["size"]) for row in classes.values()) == len(x)
    assert {row["class"] for row in predictions} <= set(classes)
    known = {str(label) for label in np.unique(labels[labels >= 0])}
    assert {one for one, row in classes.items() if row["kind"] == "known"} == known
    assert "<script" in (folder / "run" / "report.html").read_text(encoding="utf-8")
    # The model answers, and alone as in company.
    np.save(folder / "one.npy", x[:1])
    code, out, err = call("predict", folder / "run", folder / "one.npy")
    assert code == 0, err
    answer = next(csv.DictReader(out.splitlines()))
    assert {key: answer[key] for key in ("class", "kind")} == {key: predictions[0][key] for key in ("class", "kind")}
    return classes


def refused(result: tuple[int, str, str], *words: str) -> None:
    code, out, err = result
    assert (code, out) == (2, "")
    last = err.strip().splitlines()[-1]
    assert last.startswith("rowssl: ")
    assert last.endswith(".")
    for word in words:
        assert word in last


def test_few_labels(call: Call, tmp_path: Path) -> None:
    x, truth = clusters([30, 20, 10, 6])
    classes = fitted(call, tmp_path, x, told(truth, [0, 30]))
    assert {"0", "1", "novel-01"} <= set(classes)


def test_no_novel_class(call: Call, tmp_path: Path) -> None:
    x, truth = clusters([30, 20, 10, 6])
    classes = fitted(call, tmp_path, x, told(truth, np.arange(0, 66, 3)))
    assert [int(classes[str(c)]["size"]) for c in range(4)] == [30, 20, 10, 6]


def test_every_row_labelled(call: Call, tmp_path: Path) -> None:
    x, truth = clusters([30, 20, 10, 6])
    classes = fitted(call, tmp_path, x, truth)
    assert set(classes) == {"0", "1", "2", "3"}  # nothing was invented


def test_only_novel_classes(call: Call, tmp_path: Path) -> None:
    x, _ = clusters([30, 20, 10, 6])
    classes = fitted(call, tmp_path, x, np.full(66, -1))
    assert {row["kind"] for row in classes.values()} == {"novel"}
    assert 2 <= len(classes) <= 8


def test_one_label_per_class(call: Call, tmp_path: Path) -> None:
    x, truth = clusters([30, 20, 10, 6])
    classes = fitted(call, tmp_path, x, told(truth, [0, 30, 50, 60]))
    assert [abs(int(classes[str(c)]["size"]) - size) <= 2 for c, size in enumerate([30, 20, 10, 6])] == [True] * 4


def test_three_rows_in_a_class(call: Call, tmp_path: Path) -> None:
    x, truth = clusters([20, 12, 3])
    classes = fitted(call, tmp_path, x, told(truth, [0, 1, 2, 3, 4, 32]), "--classes", 3)
    assert abs(int(classes["0"]["size"]) - 20) <= 1
    assert {"2", "novel-01"} <= set(classes)


def test_two_classes_in_all(call: Call, tmp_path: Path) -> None:
    x, truth = clusters([12, 9])
    classes = fitted(call, tmp_path, x, told(truth, range(4)))
    assert {one: int(row["size"]) for one, row in classes.items()} == {"0": 12, "novel-01": 9}


def test_four_rows(call: Call, tmp_path: Path) -> None:
    x, truth = clusters([2, 2])
    classes = fitted(call, tmp_path, x, told(truth, [0]))
    assert {one: int(row["size"]) for one, row in classes.items()} == {"0": 2, "novel-01": 2}


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_all_rows_equal(call: Call, tmp_path: Path, value: float) -> None:
    classes = fitted(
        call, tmp_path, np.full((20, 12), value, dtype=np.float32), told(np.zeros(20, dtype=int), range(3))
    )
    assert max(int(row["size"]) for row in classes.values()) == 20  # equal rows are in one class


def test_one_class_and_two_rows_are_refused(call: Call, tmp_path: Path) -> None:
    x, truth = clusters([20])
    np.savez(tmp_path / "one.npz", embeddings=x, labels=truth)
    refused(call("fit", tmp_path / "one.npz", "--out", tmp_path / "a"), "Every row has the label '0'")
    np.savez(tmp_path / "two.npz", embeddings=x[:2], labels=truth[:2])
    refused(call("fit", tmp_path / "two.npz", "--out", tmp_path / "b"), "2 readable rows", "at least 4")
    np.savez(tmp_path / "none.npz", embeddings=x[:0], labels=truth[:0])
    code, _, err = call("fit", tmp_path / "none.npz", "--out", tmp_path / "c")
    assert code == 2, err
    assert not any((tmp_path / name).exists() for name in "abc")


@pytest.mark.parametrize(
    ("asked", "word"),
    [
        (0, "at least 2"),
        (1, "4 classes have labels"),
        (3, "4 classes have labels"),
        (67, "66 rows"),
        ("many", "'many'"),
    ],
)
def test_impossible_numbers_of_classes_are_refused(call: Call, tmp_path: Path, asked: object, word: str) -> None:
    x, truth = clusters([30, 20, 10, 6])
    labels = told(truth, np.arange(0, 66, 3)) if asked != 0 else np.full(66, -1)
    np.savez(tmp_path / "data.npz", embeddings=x, labels=labels)
    refused(call("fit", tmp_path / "data.npz", "--out", tmp_path / "run", "--classes", asked), "--classes", word)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Twelve small pictures, all equal."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number in range(12):
        Image.fromarray(np.full((8, 8), 77, dtype=np.uint8)).save(folder / f"{number:02d}.png")
    return folder


def test_equal_pictures(call: Call, tmp_path: Path, pictures: Path) -> None:
    (tmp_path / "labels.csv").write_text("path,label\n00.png,grey\n01.png,grey\n")
    code, out, err = call(
        "fit", pictures, "--labels", tmp_path / "labels.csv", "--out", tmp_path / "run", "--epochs", 2
    )
    assert code == 0, err
    assert "1 class found" in out
    assert [row["size"] for row in rows_of(tmp_path / "run" / "classes.csv")] == ["12"]
    code, out, err = call("check", pictures)
    assert code == 0, err
    assert "duplicates" in out


def test_labels_of_files_that_are_not_there(call: Call, tmp_path: Path, pictures: Path) -> None:
    (tmp_path / "labels.csv").write_text("path,label\n00.png,grey\ngone.png,grey\n")
    for command in ("check", "fit", "count"):
        result = call(command, pictures, "--labels", tmp_path / "labels.csv")
        assert result[0] == 2
        assert "labels.csv row 3 names 'gone.png'" in result[2]
    result = call("fit", pictures, "--labels", tmp_path / "nowhere.csv")
    assert result[0] == 2
    assert "nowhere.csv" in result[2]


def test_a_folder_without_pictures(call: Call, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "notes.txt").write_text("hello")
    code, _, err = call("fit", tmp_path / "empty", "--out", tmp_path / "run")
    assert code == 2
    assert "empty" in err
    assert not (tmp_path / "run").exists()
