"""The run directory: written when training ends, and again when its classes are edited.

config.json, metrics.json, metrics.jsonl, model/ (see `classifier.py`), answers/ (what the model said of every training row),
edits.json (see `edits.py`), and what people read: predictions.csv, classes.csv, report.html.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from rowssl.config import DataConfig
from rowssl.core.errors import InputError
from rowssl.core.files import read_json, sha256_of, write_directory, write_text
from rowssl.runs.answers import Answers, needs_review, write_classes, write_predictions
from rowssl.runs.classifier import save_model
from rowssl.runs.edits import FILE, Edits
from rowssl.runs.folder import locked
from rowssl.runs.run import ANSWERS_FORMAT, open_run

if TYPE_CHECKING:
    from rowssl.runs.fit import Run

SEALED = ("config.json", "metrics.json", "metrics.jsonl")  # answers/ holds their hashes


def write_run(run: Run, out: Path, *, report: bool = True) -> None:
    """Everything a finished run leaves behind; edits made in this directory on the same model hold.

    Without `report` only the tables and numbers are written: nothing to use the run with.
    """
    from rowssl.report.build import build_report
    from rowssl.report.layout import layout
    from rowssl.report.page import write_report

    out.mkdir(parents=True, exist_ok=True)
    with locked(out):
        review = needs_review(run.answers, run.problem.targets)
        write_predictions(out / "predictions.csv", run.problem, run.answers, run.names, review)
        write_classes(out / "classes.csv", run.problem, run.answers, run.names)
        if report:
            # Kept with the answers: an edit moves nothing on the map.
            place, placed_by = layout(run.answers.feature, seed=run.config.seed)
            run = replace(run, answers=replace(run.answers, place=place, placed_by=placed_by))
            save_model(out / "model", run)
        # The answers hold the hashes of these: where a finished run is written again, little time lies between.
        write_text(out / "config.json", run.config.model_dump_json(indent=1))
        write_text(out / "metrics.json", json.dumps(run.metrics, indent=1))
        if not report:
            return
        save_answers(out / "answers", run)
        _set_aside_foreign_edits(out, run.metrics["identity"])
        if run.names.given is not None and not (out / FILE).exists():  # names that a run before this one had
            edits = Edits.load(out)
            for one, name in zip(run.names.ids, run.names.given, strict=True):
                edits = edits if one == name else edits.rename(one, name)
            edits.save(out)
        if Edits.load(out).effective:
            rewrite(out)
        else:
            write_report(build_report(run, review), out / "report.html")


def _set_aside_foreign_edits(out: Path, identity: str) -> None:
    """Edits of a model that is no longer there say nothing of this one."""
    from rowssl.core.console import err

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


def save_answers(path: Path, run: Run) -> None:
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
        "identity": run.metrics["identity"],
        "names": list(table.names),
        "paths": None if table.paths is None else [str(path) for path in table.paths],
        "images": table.has_images,
        "source": table.source,
        "skipped": [[one.name, one.reason] for one in table.skipped],
        "class_names": list(problem.class_names),
        "n_old": problem.n_old,
        "facts": run.facts,
        "seconds": run.seconds,
        "data": absolute(run.config.data).model_dump(mode="json"),
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


def absolute(data: DataConfig) -> DataConfig:
    """The same data, found from any working directory."""
    places = {name: getattr(data, name) for name in ("source", "labels", "data_root", "split")}
    return data.model_copy(update={name: os.path.abspath(place) for name, place in places.items() if place})


def rewrite(run: str | Path, edits: Edits | None = None, *, report: bool = True) -> list[str]:
    """Write predictions.csv, classes.csv and report.html again as the edits have it; returns what could not be done."""
    from rowssl.report.build import build_report
    from rowssl.report.page import write_report

    stored = open_run(run, edits, images=report)
    review = needs_review(stored.answers, stored.problem.targets)
    write_predictions(stored.folder / "predictions.csv", stored.problem, stored.answers, stored.names, review)
    write_classes(stored.folder / "classes.csv", stored.problem, stored.answers, stored.names)
    if report and stored.images:
        return [
            f"report.html still shows the classes before this edit, because its pictures cannot be read: {stored.images}"
        ]
    if report:
        write_report(build_report(stored, review), stored.folder / "report.html")
    return []
