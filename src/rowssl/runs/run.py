"""A finished run: what a method said of every row, in terms of the classes as people edited them.

Its folder holds config.json, metrics.json (what the fit measured), metrics.jsonl, model/ (see `classifier.py`), answers/ (what the
model said of every training row), edits.json (see `edits.py`), and what people read: predictions.csv, classes.csv, report.html.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from hashlib import sha256
from html import escape
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rowssl.config import LARGEST, DataConfig, RunConfig, build_config
from rowssl.core.console import err
from rowssl.core.errors import InputError, in_a_sentence
from rowssl.core.files import LARGEST as LARGEST_FILE
from rowssl.core.files import (
    check_format,
    parse_json,
    read_directory,
    read_json,
    read_plain,
    sha256_of,
    tidy,
    write_directory,
    write_text,
)  # fmt: skip
from rowssl.core.frame import need_pandas
from rowssl.core.text import printable
from rowssl.data.images import Skipped
from rowssl.data.problem import Problem, load_problem
from rowssl.data.profiles import frequency_groups
from rowssl.data.table import Table
from rowssl.evaluation import Evaluation, evaluate
from rowssl.methods.heads import TEMPERATURE, CosineClassifier
from rowssl.runs.answers import (
    Answers,
    Classes,
    ClassIds,
    needs_review,
    under_law,
    with_issues,
    write_classes,
    write_predictions,
)
from rowssl.runs.checks import check_answers, check_sizes
from rowssl.runs.classifier import Classifier, save_model
from rowssl.runs.corrections import Corrections, RowNames, read_corrections
from rowssl.runs.edits import FILE, Applied, Edits, describe
from rowssl.runs.folder import check_model_facts, locked, read_model_facts, run_folder
from rowssl.runs.layout import layout
from rowssl.training.log import log_text, parse_lines

if TYPE_CHECKING:
    from rowssl.methods.base import Method
    from rowssl.training.features import Features

ANSWERS_FORMAT = 1
SEALED = ("config.json", "metrics.json", "metrics.jsonl")  # answers/ holds their hashes
RECLUSTERED = "in_bacc_recluster_rematch"  # of a clustering that is made once, by the fit
CHUNK = 4096

Page = Callable[["Run", Path], None]  # writes the report
Stamp = tuple[tuple[int, int, int] | None, ...]


class Stale(InputError):
    """The folder holds another run than the one that was read."""


@dataclass(frozen=True)
class Terms:
    """Of an edit with a deadline: seconds to wait for other processes, and what is called before it is saved."""

    patience: float | None = None
    claim: Callable[[], None] = lambda: None  # raises an InputError if the edit is no longer wanted


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """A finished run. An edit gives a new one; nothing in a run changes.

    Attributes
    ----------
    config
        What was run.
    problem
        Rows, labels and, where it is known, the truth. `problem.targets` counts classes as `edits.classes` does, and a row that a
        person moved counts as labelled; `problem.truth` and `evaluation` are about the true classes, `problem.class_names`.
    answers
        What is said of every training row, in terms of the classes as edited; labels are law, see `answers.under_law`.
    test_answers
        The same of the test rows, where there are any with a truth.
    edits
        Renames, merges, splits and moves, and the classes they make.
    evaluation
        How good the classes as edited are; false, with None for every number, where the truth is not known.
    metrics, curves
        What the fit measured, as metrics.json and metrics.jsonl have it.
    seconds, facts
        How long the fit took, and what was run, in words.
    data
        Where the rows are from, found from any working directory.
    folder
        Where the run is kept; edits are recorded there. None for one that is in memory alone.
    features, method
        Of a run in the process that trained it.
    page
        What writes report.html; without it an edit leaves the report as it is.
    images
        Why there are no pictures though there were, else empty.
    unwritten, failed
        What the last edit could not write again, one sentence each, and whether that includes a table.
    """

    config: RunConfig
    problem: Problem
    answers: Answers
    edits: Edits
    evaluation: Evaluation
    metrics: dict[str, Any]
    curves: list[dict[str, Any]]
    seconds: float
    facts: dict[str, str]
    data: DataConfig
    test_answers: Answers | None = None
    folder: Path | None = None
    features: Features | None = None
    method: Method | None = None
    page: Page | None = None
    images: str = ""
    unwritten: tuple[str, ...] = ()
    failed: bool = False
    encoder: str | None = None  # where the pretrained encoder is, if it is not where it was
    device: str = "cpu"  # of the classifier
    terms: Terms = Terms()
    _stamp: Stamp = ()  # of the folder's files, when they were read
    _before: Run | None = field(default=None)  # any edit

    # What it holds

    @property
    def trained(self) -> Run:
        """The run before any edit."""
        return self._before or self

    def _with(self, **changes: Any) -> Run:
        """A copy that shares the run before any edit, with the weights that were read for it."""
        return replace(self, _before=self.trained, **changes)

    @cached_property
    def names(self) -> ClassIds:
        """Ids and names of the classes."""
        classes = self.edits.classes
        ids, given = tuple(one.id for one in classes), tuple(one.name for one in classes)
        return ClassIds(ids, sum(one.known for one in classes), None if given == ids else given)

    @cached_property
    def classes(self) -> Classes:
        """Id, name, size and confidence of every class; `classes["cat"]` is one of them."""
        return Classes(self.problem, self.answers, self.names)

    def predictions(self) -> Any:
        """What is said of every training row, as a pandas DataFrame with the columns of predictions.csv."""
        ids, shown = np.array(self.names.ids, dtype=object), np.array(self.names.shown, dtype=object)
        answers, targets = self.answers, self.problem.targets
        issue = np.full(len(targets), -1) if answers.issue is None else answers.issue
        columns: dict[str, Any] = {
            "file": list(self.problem.table.names),
            "class": ids[answers.head],
            "name": shown[answers.head],
            "kind": np.where(answers.head < self.names.n_old, "known", "novel"),
            "confidence": answers.confidence,
            "second": ids[answers.second],
            "labelled": targets >= 0,
            "label": np.where(targets >= 0, ids[targets], None),
            "label_issue": np.where(issue >= 0, ids[issue], None),
            "needs_review": np.isin(np.arange(len(targets)), self.review),
        }
        return need_pandas().DataFrame(columns)

    def __repr__(self) -> str:
        known = sum(one.known for one in self.classes)
        place = f" in {self.folder}" if self.folder else ""
        rows = f"{len(self.problem.table):,} rows of {self.problem.table.source or self.config.data.name}"
        found = f"{len(self.classes)} classes, {known} of them known, by method {self.config.method.name}"
        left = "".join(f"\n{problem}" for problem in self.unwritten)
        return f"Run{place}: {rows}, {found}{left}"

    def _repr_html_(self) -> str:
        return f"<p>{escape(repr(self))}</p>{self.classes._repr_html_()}"

    @property
    def history(self) -> list[str]:
        """The edits so far in words, undone ones and undos included."""
        return [describe(one) for one in self.edits.history]

    @cached_property
    def classifier(self) -> Classifier:
        """The model, in terms of the classes as edited."""
        if self._before is not None:
            return self._before.classifier.with_edits(self.edits, self)
        if self.method is not None:
            return Classifier.of(self)
        assert self.folder is not None
        return Classifier.load(self.folder, encoder=self.encoder, device=self.device).with_edits(self.edits, self)

    @cached_property
    def _heads(self) -> tuple[CosineClassifier, float]:
        """The classifier as trained and its temperature, which an edit of the classes needs."""
        if self.method is not None:
            classifier = CosineClassifier(self.method.out_dim, len(self.edits.class_ids))
            classifier.load_state_dict({key: value.cpu() for key, value in self.method.classifier.state_dict().items()})
            return classifier, TEMPERATURE
        assert self.folder is not None
        return _read_heads(self.folder, self.edits.model)

    def with_edits(self, edits: Edits) -> Run:
        """The run in terms of other edits of its classes; nothing is recorded."""
        base = self.trained
        again = replace(base, edits=edits, folder=self.folder, page=self.page, _stamp=self._stamp, _before=base)
        if not edits.regroups:  # the same rows in the same classes
            return again
        apply = EditedHeads(edits, *base._heads)
        answers, targets = _edited(edits, apply, base.answers, base.problem)
        test = base.test_answers
        if test is not None:
            found = apply(test.feature, test.head)
            test = replace(test, head=found.label, confidence=found.confidence, second=found.second)
        return replace(
            again, problem=replace(base.problem, targets=targets), answers=answers, test_answers=test,
            evaluation=judge(base.problem, answers, test, edits),
        )  # fmt: skip

    # Edits

    def rename(self, which: str, name: str) -> Run:
        """Call a class something."""
        return self._edit(lambda run: run.edits.rename(which, name))

    def merge(self, into: str, *others: str) -> Run:
        """Make the images of other classes images of `into`; one edit for each."""

        def edit(run: Run) -> Edits:
            edits = run.edits
            for other in others:
                edits = edits.merge(into, other)
            return edits

        return self._edit(edit)

    def split(self, which: str, parts: int = 2) -> Run:
        """Divide a class in two (or more) by what its training images look like to the model."""

        def edit(run: Run) -> Edits:
            rows = run.answers.rows_of(run.edits.place[run.edits.find(which)])
            return run.edits.split(which, run.answers.feature[rows], parts)

        return self._edit(edit)

    def move(self, files: str | Sequence[str], which: str) -> Run:
        """Put training images into another class."""
        asked = [files] if isinstance(files, str) else list(files)

        def edit(run: Run) -> Edits:
            names = RowNames(run.problem.table, run.folder)
            return run.edits.move({names.find(file): which for file in asked})

        return self._edit(edit)

    def relabel(self, corrections: Mapping[str, str] | str | Path) -> Run:
        """Record corrected labels, by the name of the row or from a CSV file; `fit(start=run)` trains with them."""
        return self.relabelled(corrections)[0]

    def relabelled(self, corrections: Mapping[str, str] | str | Path) -> tuple[Run, Corrections]:
        """As `relabel`, with what it came to."""
        found: list[Corrections] = []

        def edit(run: Run) -> Edits:
            names, ids = RowNames(run.problem.table, run.folder), run.names.ids
            found.append(read_corrections(corrections, run.edits, names, [ids[head] for head in run.answers.head]))
            return run.edits.move(found[-1].rows, new=list(found[-1].new))

        return self._edit(edit), found[-1]

    def undo(self) -> Run:
        """Take the last edit back; again for the one before it."""
        return self._edit(lambda run: run.edits.undo())

    def within(self, terms: Terms) -> Run:
        """The run, with a deadline for the next edit."""
        return self._with(terms=terms)

    def _edit(self, edit: Callable[[Run], Edits]) -> Run:
        """The run after an edit; in a folder it is recorded while no other process edits, after what others did meanwhile."""
        if self.folder is None:
            edits = edit(self)
            edits.check()  # saved, what cannot be followed would have to be mended by hand
            return self.with_edits(edits)
        with locked(self.folder, self.terms.patience):
            tidy(self.folder)
            edits = edit(self.current())
            edits.check()
            self.terms.claim()
            edits.save(self.folder)
            return self._with(_stamp=_look(self.folder)).with_edits(edits).write_again()

    def current(self) -> Run:
        """The run with the edits that are in its folder now; Stale if another model is there."""
        if self.folder is None or (stamp := _look(self.folder)) == self._stamp:
            return self
        if stamp[1:] != self._stamp[1:] and read_model_facts(self.folder)["identity"] != self.edits.model:
            raise Stale(f"{self.folder} was trained again since it was read: read it again.")
        edits, now = self.edits.reread(self.folder), self._with(_stamp=stamp)
        return now if edits.history == self.edits.history else now.with_edits(edits)

    # Files

    def write_again(self) -> Run:
        """Write predictions.csv, classes.csv and, with `page`, report.html; what could not be done is in `unwritten`.

        It raises nothing: an edit that is saved counts, and whoever saw an error alone would make it again.
        """
        assert self.folder is not None
        try:
            self._write_readable(self.folder)
        except (InputError, OSError) as error:
            reason = str(error) if isinstance(error, InputError) else in_a_sentence(error)
            said = f"The edit is saved, but not everything that shows it could be written: {reason}"
            return self._with(unwritten=(said,), failed=True)
        if self.page is not None and self.images:
            said = f"report.html still shows the classes before this edit, because its pictures cannot be read: {self.images}"
            return self._with(unwritten=(said,))
        return self

    def _write_readable(self, out: Path) -> None:
        """What people read: the tables and, where its pictures can be had, the report."""
        write_predictions(out / "predictions.csv", self.problem, self.answers, self.names, self.review)
        write_classes(out / "classes.csv", self.classes)
        if self.page is not None and not self.images:
            self.page(self, out / "report.html")

    @cached_property
    def review(self) -> np.ndarray:
        """Rows to look at, most doubtful first."""
        return needs_review(self.answers, self.problem.targets)

    def report(self, path: str | Path) -> Path:
        """Write the report as one HTML file."""
        if self.page is None:
            raise InputError("This run was read without the means to write a report: use rowssl.load.")
        self.page(self, Path(path))
        return Path(path)

    def save(self, out: str | Path, *, whole: bool = True) -> Run:
        """Write the folder of the run; edits made there on the same model hold.

        Unless `whole`, only tables and numbers are written: nothing to use the run with.
        """
        out = Path(out)
        out.mkdir(parents=True, exist_ok=True)
        run = self._placed() if whole else self
        with locked(out):
            if whole:
                run._save_model(out)
            # The answers hold the hashes of these: where a finished run is written again, little time lies between.
            write_text(out / "config.json", run.config.model_dump_json(indent=1))
            write_text(out / "metrics.json", json.dumps(run.metrics, indent=1))
            if not whole:
                replace(run, page=None)._write_readable(out)
                return run
            if run.curves and not (out / "metrics.jsonl").exists():
                write_text(out / "metrics.jsonl", log_text(run.curves))
            _save_answers(out / "answers", run.trained)
            _set_aside_foreign_edits(out, run.edits.model)
            if run.edits.history and not (out / FILE).exists():
                run.edits.save(out)
            saved = replace(run, folder=out, _stamp=_look(out))
            edits = run.edits.reread(out)
            saved = saved if edits.history == run.edits.history else saved.with_edits(edits)
            saved._write_readable(out)
            return saved

    def _placed(self) -> Run:
        """With a place on the map for every row: it is kept with the answers, so that an edit moves nothing."""
        base = self.trained
        if base.answers.place is not None:
            return self
        place, placed_by = layout(base.answers.feature, seed=base.config.seed)
        answers = replace(base.answers, place=place, placed_by=placed_by)
        base = replace(base, answers=answers, facts=base.facts | {"map": placed_by})
        return base.with_edits(self.edits) if self._before is not None else base

    def _save_model(self, out: Path) -> None:
        if self.method is not None:
            save_model(out / "model", self.trained)
        elif self.folder is not None and self.folder.resolve() != out.resolve():
            shutil.copytree(self.folder / "model", out / "model", dirs_exist_ok=True)

    @classmethod
    def load(
        cls,
        run: str | Path,
        *,
        images: bool = True,
        page: Page | None = None,
        encoder: str | None = None,
        device: str = "cpu",
    ) -> Run:
        """Read a run directory; every file is checked, once.

        Parameters
        ----------
        run
            The directory.
        images
            Also make pictures available where a benchmark has to be read again for them; files are opened one by one anyway.
        page
            What writes report.html after an edit.
        encoder
            Where the pretrained encoder is, if it is no longer where it was at training.
        device
            `cpu`, `cuda` or `auto`, for the classifier.
        """
        folder = run_folder(run)
        try:
            found = _read(folder, images)
            edits = found.edits.reread(folder)
            found = replace(found, page=page, encoder=encoder, device=device)
            return found.with_edits(edits) if edits.history else found
        except InputError:
            raise
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError, OSError) as error:
            reason = " ".join(str(error).split())[:160]
            raise InputError(f"{folder} does not hold a whole run: {reason}.") from error


def judge(
    problem: Problem, answers: Answers, test: Answers | None, edits: Edits, reclustered: np.ndarray | None = None
) -> Evaluation:
    """Every number of the protocol for the classes of `edits`, when there is a truth to judge by.

    `problem` is as it was trained on; `reclustered` are clusters of the test rows by themselves.
    """
    if problem.truth is None:
        return Evaluation.without_truth()
    rows = problem.unlabelled()
    return evaluate(
        train_predicted=answers.head[rows],
        train_truth=problem.truth[rows],
        test_predicted=None if test is None else test.head,
        test_truth=None if test is None else problem.test_truth,
        recluster_predicted=reclustered,
        n_old=problem.n_old,
        n_classes=problem.true_classes,
        n_clusters=len(edits.classes),
        groups=frequency_bases(problem),
        named=_named(edits, problem.n_old),
    )


def frequency_bases(problem: Problem) -> dict[str, np.ndarray]:
    """Many, Med and Few by each basis of counting, separately for known and novel classes."""
    groups = {}
    for basis, counts in problem.class_counts().items():
        if basis == "labelled":  # novel classes have no labels to count
            continue
        parts = [frequency_groups(part) for part in (counts[: problem.n_old], counts[problem.n_old :]) if len(part)]
        groups[basis] = np.concatenate(parts)
    return groups


def _named(edits: Edits, n_old: int) -> np.ndarray:
    """The known class that each class of `edits.classes` stands for, -1 for those that hold no known one."""
    trained = {one: head for head, one in enumerate(edits.class_ids[:n_old])}
    own = [trained.get(one.id) for one in edits.classes]
    within = [next((leaf.head for leaf in one.leaves if leaf.head < n_old), -1) for one in edits.classes]
    return np.array([other if head is None else head for head, other in zip(own, within, strict=True)], dtype=np.int64)


class EditedHeads:
    """Stored features in terms of the edited classes, by the trained heads; in parts, so that no rows x classes are held."""

    def __init__(self, edits: Edits, classifier: CosineClassifier, temperature: float) -> None:
        self.edits, self.classifier, self.temperature = edits, classifier, temperature

    @torch.no_grad()
    def __call__(self, feature: np.ndarray, head: np.ndarray, names: Sequence[str] = ()) -> Applied:
        """As `Edits.apply`, of features (N, d) and the heads (N,) they belong to."""
        found = []
        for begin in range(0, max(1, len(feature)), CHUNK):
            part = slice(begin, begin + CHUNK)
            z = F.normalize(torch.from_numpy(np.asarray(feature[part], dtype=np.float32)), dim=1)
            probability = self.classifier.probabilities(z, self.temperature)
            found.append(self.edits.apply(probability, z, head[part], names[part]))
        return Applied(*(np.concatenate([getattr(one, part.name) for one in found]) for part in fields(Applied)))


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


# Reading a folder, which may be untrusted input


def _look(folder: Path) -> Stamp:
    """What changes when another program edits the run, or trains it again."""
    found: list[tuple[int, int, int] | None] = []
    for path in (folder / FILE, folder / "model" / "manifest.json"):
        try:
            status = path.stat()
            found.append((status.st_mtime_ns, status.st_ino, status.st_size))
        except OSError:
            found.append(None)
    return tuple(found)


def _read(folder: Path, images: bool) -> Run:
    """A run without its edits; what is in the files may be anything where it is not checked here."""
    stamp = _look(folder)
    edits = Edits.of(read_model_facts(folder))
    tensors, facts = read_directory(folder / "answers")
    check_format(facts.get("answers_format"), ANSWERS_FORMAT, folder / "answers")
    if facts.get("identity") != edits.model:
        raise InputError(
            f"{folder / 'answers'} does not belong to the model beside it: run the same `rowssl fit` again."
        )
    check_answers(facts, tensors, len(edits.class_ids), folder / "answers")
    data = _data(facts, folder / "answers" / "manifest.json")
    sealed = facts.get("files", {})
    config = build_config(
        _json(folder / "config.json", sealed.get("config.json"), LARGEST), str(folder / "config.json")
    )
    metrics = _json(folder / "metrics.json", sealed.get("metrics.json"))
    curves = _curves(folder / "metrics.jsonl", sealed.get("metrics.jsonl"))
    rows = {name: column.numpy() for name, column in tensors["rows"].items()}
    table, missing = _table(facts, data, len(rows["head"]), images)
    tested = {name: column.numpy() for name, column in tensors["test"].items()} if "test" in tensors else None
    problem = Problem(
        table, rows["target"].astype(np.int64), tuple(facts["class_names"]), facts["n_old"],
        truth=rows["truth"].astype(np.int64) if "truth" in rows else None,
        test_truth=None if tested is None else tested["truth"].astype(np.int64),
    )  # fmt: skip
    answers = _labelled(_answers(rows), rows, problem, len(edits.class_ids))
    test = None if tested is None else _answers(tested)
    evaluation = judge(problem, answers, test, edits)
    if evaluation and isinstance(metrics.get(RECLUSTERED), dict):
        evaluation = replace(evaluation, metrics=evaluation.metrics | {RECLUSTERED: metrics[RECLUSTERED]})
    return Run(
        config, problem, answers, edits, evaluation, metrics, curves, facts["seconds"], facts["facts"], data,
        test_answers=test, folder=folder, images=missing, _stamp=stamp,
    )  # fmt: skip


def _sealed(path: Path, expected: str | None, largest: int = LARGEST_FILE) -> bytes:
    """The content of a file, as hashed where its hash is known."""
    if expected is not None and not path.is_file():
        raise InputError(f"{path} is missing or damaged: run the same `rowssl fit` again.")
    content = read_plain(path, largest)
    if expected is not None and sha256(content).hexdigest() != expected:
        raise InputError(f"{path} is missing or damaged: run the same `rowssl fit` again.")
    return content


def _json(path: Path, expected: str | None, largest: int = LARGEST_FILE) -> Any:
    return parse_json(_sealed(path, expected, largest), path)


def _curves(path: Path, expected: str | None) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl; none of a method that does not train."""
    if expected is None and not os.path.lexists(path):
        return []
    rows, damaged = parse_lines(_sealed(path, expected))
    if damaged:  # of a run without hashes
        raise InputError(f"{path} is damaged: run the same `rowssl fit` again.")
    return rows


def _answers(rows: Mapping[str, np.ndarray]) -> Answers:
    """In terms of the classes as trained."""
    feature = rows["feature"].astype(np.float32)
    feature /= np.maximum(np.linalg.norm(feature, axis=1, keepdims=True), 1e-12)
    nothing = np.zeros(len(feature), dtype=np.float32)  # runs of earlier versions hold no more of test rows
    return Answers(
        rows["head"].astype(np.int64),
        rows.get("confidence", nothing),
        rows.get("second", nothing).astype(np.int64),
        feature,
        rows.get("tailedness"),
        rows.get("place"),
    )


def _labelled(found: Answers, rows: Mapping[str, np.ndarray], problem: Problem, heads: int) -> Answers:
    """Labels are law; runs of earlier versions let the model overrule them, and listed no issues."""
    if "issue" in rows and "doubt" in rows:
        issue = np.where(problem.targets >= 0, rows["issue"], -1).astype(np.int64)
        return replace(under_law(found, problem.targets), issue=issue, doubt=rows["doubt"])
    return with_issues(found, problem.targets, n_old=problem.n_old, n_classes=heads)


def _read_heads(folder: Path, identity: str) -> tuple[CosineClassifier, float]:
    tensors, facts = read_directory(folder / "model")
    if facts.get("identity") != identity:
        raise Stale(f"{folder} was trained again since it was read: read it again.")
    check_model_facts(facts, folder / "model")
    check_sizes(facts, tensors, folder / "model")
    classifier = CosineClassifier(facts["encoder"]["out_dim"], len(facts["classes"]))
    classifier.load_state_dict(tensors["classifier"])
    return classifier, float(facts["temperature"])


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


# Writing a folder


def absolute(data: DataConfig) -> DataConfig:
    """The same data, found from any working directory."""
    places = {name: getattr(data, name) for name in ("source", "labels", "data_root", "split")}
    return data.model_copy(update={name: os.path.abspath(place) for name, place in places.items() if place})


def _save_answers(path: Path, run: Run) -> None:
    """answers/: class, confidence, second choice and feature of every training row, its name, and where its picture is."""
    problem, answers = run.problem, run.answers
    table = problem.table
    rows = _columns(answers) | {"target": torch.from_numpy(problem.targets.astype(np.int32))}
    if problem.truth is not None:
        rows["truth"] = torch.from_numpy(problem.truth.astype(np.int32))
    tensors = {"rows": rows}
    if run.test_answers is not None and problem.test_truth is not None:
        tensors["test"] = _columns(run.test_answers) | {"truth": torch.from_numpy(problem.test_truth.astype(np.int32))}
    facts = {
        "answers_format": ANSWERS_FORMAT,
        "identity": run.edits.model,
        "names": list(table.names),
        "paths": None if table.paths is None else [str(path) for path in table.paths],
        "images": table.has_images,
        "source": table.source,
        "skipped": [[one.name, one.reason] for one in table.skipped],
        "class_names": list(problem.class_names),
        "n_old": problem.n_old,
        "facts": run.facts,
        "seconds": run.seconds,
        "data": run.data.model_dump(mode="json"),
        "files": {name: sha256_of(path.with_name(name)) for name in SEALED if path.with_name(name).exists()},
    }
    write_directory(path, tensors, facts)


def _columns(answers: Answers) -> dict[str, Tensor]:
    columns = {
        "head": torch.from_numpy(answers.head.astype(np.int32)),
        "second": torch.from_numpy(answers.second.astype(np.int32)),
        "confidence": torch.from_numpy(answers.confidence.astype(np.float32)),
        "feature": torch.from_numpy(answers.feature.astype(np.float16)),
    }
    if answers.issue is not None and answers.doubt is not None:
        columns["issue"] = torch.from_numpy(answers.issue.astype(np.int32))
        columns["doubt"] = torch.from_numpy(answers.doubt.astype(np.float32))
    if answers.place is not None:
        columns["place"] = torch.from_numpy(answers.place.astype(np.float32))
    if answers.tailedness is not None:
        columns["tailedness"] = torch.from_numpy(answers.tailedness.astype(np.float32))
    return columns


def _set_aside_foreign_edits(out: Path, identity: str) -> None:
    """Edits of a model that is no longer there say nothing of this one."""
    path = out / FILE
    try:
        same = not path.exists() or read_json(path)["model"] == identity
    except (InputError, KeyError, TypeError):
        same = False
    if not same:
        names = (path.with_suffix(f".old{f'-{number}' if number > 1 else ''}.json") for number in count(1))
        aside = next(name for name in names if not os.path.lexists(name))  # edits set aside earlier stay
        os.replace(path, aside)
        err.print(f"{path} was made for another model: it is now {aside.name}", markup=False)
