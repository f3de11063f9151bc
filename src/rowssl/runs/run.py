"""A run read from its directory, in terms of the classes as people edited them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from rowssl.config import LARGEST, DataConfig, RunConfig, build_config
from rowssl.core.errors import InputError
from rowssl.core.files import check_format, read_directory, read_json, require_plain, sha256_of
from rowssl.core.text import printable
from rowssl.data.images import Skipped
from rowssl.data.problem import Problem, load_problem
from rowssl.data.table import Table
from rowssl.evaluation import Evaluation, evaluate
from rowssl.methods.heads import CosineClassifier
from rowssl.runs.answers import Answers, ClassIds, under_law, with_issues
from rowssl.runs.checks import check_answers, check_sizes
from rowssl.runs.edits import Applied, Edits
from rowssl.runs.folder import model_folder, run_folder
from rowssl.training.log import read_lines

ANSWERS_FORMAT = 1  # of answers/, which `run_files.save_answers` writes
CHUNK = 4096


@dataclass(frozen=True)
class StoredRun:
    """A run read from its directory, in terms of the edited classes: what a report, a page or a new fit need.

    `answers`, `names` and `problem.targets` count classes as `edits.classes` does; a row that a person moved counts as labelled,
    and labels are law (see `results.under_law`).
    `problem.truth` and `evaluation` are about the true classes, `problem.class_names`, where these are known.
    """

    folder: Path
    config: RunConfig
    problem: Problem
    answers: Answers
    names: ClassIds
    edits: Edits
    evaluation: Evaluation | None
    metrics: dict[str, Any]
    curves: list[dict[str, Any]]
    seconds: float
    facts: dict[str, str]
    data: DataConfig  # found from any working directory
    images: str  # why there are no pictures though there were, else empty


def open_run(run: str | Path, edits: Edits | None = None, *, images: bool = True) -> StoredRun:
    """Read a run directory.

    Parameters
    ----------
    run
        The directory.
    edits
        Instead of the ones in it.
    images
        Also make pictures available where a benchmark has to be read again for them; files are opened one by one anyway.
    """
    folder = run_folder(run)
    try:
        return _read(folder, edits or Edits.load(folder), images)
    except InputError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError, OSError) as error:
        reason = " ".join(str(error).split())[:160]
        raise InputError(f"{folder} does not hold a whole run: {reason}.") from error


def _read(folder: Path, edits: Edits, images: bool) -> StoredRun:
    """As `open_run`; what a stranger wrote may still be anything where it is not checked here."""
    tensors, facts = read_directory(folder / "answers")
    check_format(facts.get("answers_format"), ANSWERS_FORMAT, folder / "answers")
    if facts.get("identity") != edits.model:
        raise InputError(
            f"{folder / 'answers'} does not belong to the model beside it: run the same `rowssl fit` again."
        )
    check_answers(facts, tensors, len(edits.class_ids), folder / "answers")
    data = _data(facts, folder / "answers" / "manifest.json")
    for file, expected in ((folder / name, sha256) for name, sha256 in facts.get("files", {}).items()):
        if not file.is_file() or sha256_of(file) != expected:
            raise InputError(f"{file} is missing or damaged: run the same `rowssl fit` again.")
    config = build_config(read_json(folder / "config.json", LARGEST), str(folder / "config.json"))
    metrics = read_json(folder / "metrics.json")
    log = folder / "metrics.jsonl"
    require_plain(log)
    curves, damaged = read_lines(log) if log.exists() else ([], [])
    if damaged:  # of a run without hashes
        raise InputError(f"{log} is damaged: run the same `rowssl fit` again.")
    rows = {name: column.numpy() for name, column in tensors["rows"].items()}
    table, missing = _table(facts, data, len(rows["head"]), images)
    problem = Problem(
        table, rows["target"].astype(np.int64), tuple(facts["class_names"]), facts["n_old"],
        truth=rows["truth"].astype(np.int64) if "truth" in rows else None,
    )  # fmt: skip
    trained = _answers(rows, problem, len(edits.class_ids))
    test = {name: column.numpy() for name, column in tensors["test"].items()} if "test" in tensors else None
    if not edits.effective:
        names = ClassIds(edits.class_ids, edits.n_known)
        answers, targets = trained, problem.targets
        test_head = None if test is None else test["head"].astype(np.int64)
    else:
        names = ClassIds(
            tuple(one.id for one in edits.classes), sum(one.known for one in edits.classes), tuple(edits.names.values())
        )
        apply = EditedHeads(edits, folder)
        answers, targets = _edited(edits, apply, trained, problem)
        test_head = None if test is None else apply(test["feature"], test["head"]).label
    test_truth = None if test is None else test["truth"]
    evaluation = _judge(problem, answers, test_head, test_truth, _named(edits, problem.n_old))
    problem = replace(problem, targets=targets)
    return StoredRun(
        folder, config, problem, answers, names, edits, evaluation, metrics, curves, facts["seconds"], facts["facts"],
        data, missing,
    )  # fmt: skip


def _answers(rows: dict[str, np.ndarray], problem: Problem, heads: int) -> Answers:
    """In terms of the classes as trained; runs of earlier versions let the model overrule labels, and listed no issues."""
    feature = rows["feature"].astype(np.float32)
    feature /= np.maximum(np.linalg.norm(feature, axis=1, keepdims=True), 1e-12)
    found = Answers(
        rows["head"].astype(np.int64),
        rows["confidence"],
        rows["second"].astype(np.int64),
        feature,
        rows.get("tailedness"),
        rows.get("place"),
    )
    if "issue" in rows and "doubt" in rows:
        issue = np.where(problem.targets >= 0, rows["issue"], -1).astype(np.int64)
        return replace(under_law(found, problem.targets), issue=issue, doubt=rows["doubt"])
    return with_issues(found, problem.targets, n_old=problem.n_old, n_classes=heads)


def _data(facts: dict[str, Any], manifest: Path) -> DataConfig:
    """Where the training rows are from; InputError where reading them again might not end.

    Rows without a path each came from one file, of pictures or of embeddings: no folder is walked because a manifest names it.
    """
    data = DataConfig.model_validate(facts["data"])
    one_file = facts["paths"] is None or not facts["images"]
    for place in (data.source if one_file else None, data.labels, data.split):
        if place is not None and os.path.exists(place) and not os.path.isfile(place):
            raise InputError(
                f"{manifest} says that its rows are from {printable(place)[:200]}, which is no plain file."
            )
    return data


def _table(facts: dict[str, Any], data: DataConfig, count: int, images: bool) -> tuple[Table, str]:
    """The training rows without their labels, with pictures where these can be had; else why not."""
    paths = None if facts["paths"] is None else tuple(map(Path, facts["paths"]))
    skipped = tuple(Skipped(*one) for one in facts["skipped"])
    table = Table(
        np.full(count, -1), (), tuple(facts["names"]), paths=paths, skipped=skipped, source=facts["source"],
    )  # fmt: skip
    if not facts["images"] or not images:
        return table, ""
    if paths is not None:
        return table, "" if any(path.exists() for path in paths[:20]) else f"{paths[0]} is no longer there"
    try:
        whole = load_problem(data).table
    except InputError as error:
        return table, str(error).rstrip(".")
    if list(whole.names) != list(table.names):
        return table, f"{facts['source'] or data.name} has other rows now"
    return replace(table, images=whole.images, paths=whole.paths), ""


class EditedHeads:
    """Stored features in terms of the edited classes, by the trained heads; in parts, so that no rows x classes are held."""

    def __init__(self, edits: Edits, run: str | Path) -> None:
        tensors, facts = read_directory(model_folder(run))
        check_sizes(facts, tensors, model_folder(run))
        self.edits, self.temperature = edits, facts["temperature"]
        self.classifier = CosineClassifier(facts["encoder"]["out_dim"], len(facts["classes"]))
        self.classifier.load_state_dict(tensors["classifier"])

    @torch.no_grad()
    def __call__(self, feature: np.ndarray, head: np.ndarray, names: Sequence[str] = ()) -> Applied:
        """As `Edits.apply`, of features (N, d) and the heads (N,) they belong to."""
        found = []
        for begin in range(0, max(1, len(feature)), CHUNK):
            part = slice(begin, begin + CHUNK)
            z = F.normalize(torch.from_numpy(np.asarray(feature[part], dtype=np.float32)), dim=1)
            probability = self.classifier.probabilities(z, self.temperature)
            found.append(self.edits.apply(probability, z, head[part], names[part]))
        return Applied(*(np.concatenate([getattr(one, field.name) for one in found]) for field in fields(Applied)))


def _edited(edits: Edits, apply: EditedHeads, trained: Answers, problem: Problem) -> tuple[Answers, np.ndarray]:
    """Answers and targets in terms of the edited classes."""
    names = problem.table.names
    applied = apply(trained.feature, trained.head, names)
    # The rounding of stored features must not show in classes nobody touched.
    whole = np.array([len(one.leaves) == 1 and not one.leaves[0].path for one in edits.classes])
    moved = np.array([name in edits.moves for name in names], dtype=bool)
    confidence = np.where(whole[applied.label] & ~moved, trained.confidence, applied.confidence)
    # A labelled row is in the (part of the) class that its label means now, as is a moved one where it was moved to.
    targets = np.where(moved | (problem.targets >= 0), applied.label, -1)
    issue = np.full(len(names), -1, dtype=np.int64)
    assert trained.issue is not None
    doubted = np.flatnonzero((trained.issue >= 0) & ~moved)  # what a person moved has been looked at
    if len(doubted):
        issue[doubted] = apply(trained.feature[doubted], trained.issue[doubted]).label
    answers = replace(
        trained, head=applied.label, confidence=confidence, second=applied.second,
        issue=np.where(issue == targets, -1, issue),
    )  # fmt: skip
    return under_law(answers, targets), targets


def _named(edits: Edits, n_old: int) -> np.ndarray:
    """The known class that each class of `edits.classes` stands for, -1 for those that hold no known one."""
    trained = {one: head for head, one in enumerate(edits.class_ids[:n_old])}
    own = [trained.get(one.id) for one in edits.classes]
    within = [next((leaf.head for leaf in one.leaves if leaf.head < n_old), -1) for one in edits.classes]
    return np.array([other if head is None else head for head, other in zip(own, within, strict=True)], dtype=np.int64)


def _judge(
    problem: Problem, answers: Answers, test_head: np.ndarray | None, test_truth: np.ndarray | None, named: np.ndarray
) -> Evaluation | None:
    if problem.truth is None:
        return None
    rows = problem.unlabelled()
    return evaluate(
        train_predicted=answers.head[rows], train_truth=problem.truth[rows], test_predicted=test_head, test_truth=test_truth,
        n_old=problem.n_old, n_classes=problem.true_classes, n_clusters=len(named), named=named,
    )  # fmt: skip
