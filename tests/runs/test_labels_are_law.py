"""A labelled row stays in its class in every file and count; what the model thinks of the label stands beside it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from rowssl.api import fit, load
from rowssl.config import build_config
from rowssl.core.files import read_directory, write_directory
from rowssl.runs.answers import PREDICTION_COLUMNS, Answers, mean_confidence, needs_review, under_law
from rowssl.runs.classifier import Classifier
from rowssl.runs.run import Run

WRONG = (0, 1, 20, 30)  # rows whose label is another class


def make(folder: Path) -> Run:
    """Five blobs, three of them with labels, four of these wrong."""
    rng = np.random.default_rng(0)
    truth = np.arange(300) % 5
    x = (np.eye(5, 16)[truth] * 4 + 0.5 * rng.normal(size=(300, 16))).astype(np.float32)
    labels = np.where((truth < 3) & (np.arange(300) // 5 % 2 == 0), truth, -1)
    labels[list(WRONG)] = (truth[list(WRONG)] + 1) % 3
    np.savez(folder / "x.npz", embeddings=x, labels=labels, truth=truth)
    content = {"data": {"source": str(folder / "x.npz")}, "method": {"name": "kmeans"}, "classes": 5}
    return fit(build_config(content), folder / "run")


@pytest.fixture
def ran(tmp_path: Path) -> Run:
    return make(tmp_path)


def table(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / name).open(newline="") as file:
        return list(csv.DictReader(file))


def check(folder: Path, issues: int = len(WRONG)) -> None:
    """What must hold in the tables of any run directory."""
    rows, classes = table(folder, "predictions.csv"), table(folder, "classes.csv")
    assert list(rows[0]) == list(PREDICTION_COLUMNS)
    for row in rows:
        assert (row["labelled"] == "yes") == (row["label"] != "")
        if row["label"]:
            assert (row["class"], row["confidence"], row["kind"]) == (row["label"], "1.0000", "known")
            assert row["second"] != row["class"]
        assert row["label_issue"] != row["class"]
        assert not row["label_issue"] or row["needs_review"] == "yes"
    assert sum(row["label_issue"] != "" for row in rows) == issues
    for one in classes:
        inside = [row for row in rows if row["class"] == one["class"]]
        free = [float(row["confidence"]) for row in inside if not row["label"]]
        assert int(one["size"]) == len(inside)
        assert int(one["labelled"]) == len(inside) - len(free) <= int(one["size"])
        assert float(one["confidence"] or 0) == pytest.approx(np.mean(free) if free else 0, abs=1e-3)


def test_the_law_in_memory_and_twice() -> None:
    targets = np.array([2, -1, 1])
    said = Answers(
        np.array([0, 1, 1]), np.float32([0.4, 0.7, 0.6]), np.array([2, 0, 0]), np.eye(3, dtype=np.float32), None
    )
    lawful = under_law(said, targets)
    assert lawful.head.tolist() == [2, 1, 1]
    assert lawful.confidence.tolist() == pytest.approx([1, 0.7, 1])
    assert lawful.second.tolist() == [0, 0, 0]  # what the model says, or would say next
    again = under_law(lawful, targets)
    for name in ("head", "confidence", "second"):
        np.testing.assert_array_equal(getattr(again, name), getattr(lawful, name))
    assert mean_confidence(lawful, targets, 4)[1] == pytest.approx(0.7)
    assert np.isnan(mean_confidence(lawful, targets, 4)[[0, 2, 3]]).all()


def test_review_begins_with_the_labels_that_are_spoken_against() -> None:
    answers = Answers(
        np.zeros(4, dtype=np.int64), np.float32([1, 0.1, 0.9, 1]), np.ones(4, dtype=np.int64),
        np.eye(4, dtype=np.float32), None, issue=np.array([1, -1, -1, -1]), doubt=np.float32([5, 0, 0, 0]),
    )  # fmt: skip
    assert needs_review(answers, np.array([0, -1, -1, 0])).tolist() == [0, 1]


def test_tables_report_and_stored_answers(ran: Run, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    model = Classifier.load(folder)
    with np.load(tmp_path / "x.npz") as file:
        said = [one.class_id for one in model.predict_embeddings(file["embeddings"])]
        labels = file["labels"]
    assert all(said[row] != str(labels[row]) for row in WRONG)  # the model overrules these labels
    check(folder)
    rows = table(folder, "predictions.csv")
    for row in WRONG:
        assert rows[row]["class"] == rows[row]["label"] == str(labels[row])
        assert rows[row]["label_issue"] == rows[row]["second"] == said[row]
    assert "but looks like" in (folder / "report.html").read_text()
    assert f"{len(WRONG)} labels in doubt" in (folder / "report.html").read_text()
    stored = Run.load(folder)
    for name in ("head", "confidence", "second", "issue"):
        np.testing.assert_array_equal(getattr(stored.answers, name), getattr(ran.answers, name))
    load(folder).rename("0", "zero")  # everything is written again
    check(folder)
    assert "but looks like zero" in (folder / "report.html").read_text()


def test_numbers_of_the_protocol_are_about_unlabelled_rows(ran: Run) -> None:
    assert ran.evaluation
    assert ran.evaluation.confusion["train"].sum() == (ran.problem.targets < 0).sum()
    assert ran.metrics["user_tr_bacc"]["all"] == pytest.approx(100)
    assert json.loads(json.dumps(ran.metrics["weights"]))["user_tr_bacc"] == {"old": 3, "new": 2}


def test_runs_whose_answers_let_the_model_overrule_labels(ran: Run, tmp_path: Path) -> None:
    """As versions before wrote them: without issues, and with the model's word for labelled rows."""
    folder = tmp_path / "run"
    new = (folder / "predictions.csv").read_text()
    tensors, facts = read_directory(folder / "answers")
    rows = tensors["rows"]
    model = Classifier.load(folder)
    with np.load(tmp_path / "x.npz") as file:
        said = model.predict_embeddings(file["embeddings"])
    place = {one: number for number, one in enumerate(ran.names.ids)}
    rows["head"] = torch.tensor([place[one.class_id] for one in said], dtype=torch.int32)
    rows["second"] = torch.tensor([place[one.second] for one in said], dtype=torch.int32)
    rows["confidence"] = torch.tensor([one.confidence for one in said])
    del rows["issue"], rows["doubt"]
    write_directory(folder / "answers", tensors, facts)
    stored = Run.load(folder)
    assert (stored.answers.head == ran.answers.head).all()
    assert (stored.answers.issue == ran.answers.issue).all()
    Run.load(folder).rename("0", "zero")
    Run.load(folder).undo()
    assert (folder / "predictions.csv").read_text() == new


def test_edits_keep_the_law(ran: Run, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    before = (folder / "predictions.csv").read_text()
    Run.load(folder).merge("0", "1")
    rows = table(folder, "predictions.csv")
    inside = [row for row in WRONG if {rows[row]["label"], rows[row]["label_issue"]} == {"0", ""}]
    assert inside  # a label 1 on a picture of a 0 is no issue where both are one class
    check(folder, len(WRONG) - len(inside))
    Run.load(folder).split("2")
    rows = table(folder, "predictions.csv")
    assert {row["label"] for row in rows} == {"", "0", "2.1", "2.2"}
    check(folder, len(WRONG) - len(inside))
    for _ in range(2):
        Run.load(folder).undo()
    assert (folder / "predictions.csv").read_text() == before


def test_a_moved_picture_is_a_persons_word_and_was_looked_at(ran: Run, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    free = int(np.flatnonzero(ran.problem.targets < 0)[0])
    rows = table(folder, "predictions.csv")
    issue = rows[WRONG[0]]["label_issue"]
    confirmed = rows[WRONG[1]]["label"]
    Run.load(folder).move([rows[WRONG[0]]["file"]], issue)
    Run.load(folder).move([rows[WRONG[1]]["file"]], confirmed)
    Run.load(folder).move([rows[free]["file"]], "0")
    after = table(folder, "predictions.csv")
    assert (after[WRONG[0]]["class"], after[WRONG[0]]["label_issue"]) == (issue, "")
    assert (after[WRONG[1]]["class"], after[WRONG[1]]["label_issue"]) == (confirmed, "")
    assert (after[free]["class"], after[free]["label"], after[free]["labelled"]) == ("0", "0", "yes")
    check(folder, len(WRONG) - 2)


def test_a_copy_of_the_table_is_corrected_by_its_class_column(ran: Run, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    rows = table(folder, "predictions.csv")
    for row in WRONG:
        rows[row]["class"] = rows[row]["label_issue"]
    with (tmp_path / "copy.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, PREDICTION_COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    _, done = Run.load(folder).relabelled(tmp_path / "copy.csv")
    assert (done.corrected, done.confirmed, len(done.rows)) == (len(WRONG), 0, len(WRONG))
    check(folder, 0)
