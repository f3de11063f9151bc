"""`rowssl fit --from RUN`: train on with a person's corrections as labels, while every class keeps its id and its name."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rowssl.clustering.assignment import hungarian
from rowssl.core.console import err
from rowssl.core.errors import InputError
from rowssl.core.files import read_directory
from rowssl.data.labels import sort_names
from rowssl.data.problem import Problem
from rowssl.encoders.reduce import Reduction
from rowssl.methods.base import Method
from rowssl.runs.answers import Answers, ClassIds
from rowssl.runs.folder import check_model_facts, model_folder, run_folder
from rowssl.runs.run import Run
from rowssl.training.features import Features

NUMBERED = re.compile(r"novel-(\d+)")


def continued_content(start: Path, *, with_data: bool) -> dict[str, Any]:
    """The options of a run as the start of another's: same encoder, method and training, and the same data if asked for."""
    before = Run.load(start, images=False)
    model = read_directory(model_folder(start))[1]["encoder"]
    content = before.config.model_dump(mode="json")
    content |= {"start": str(start), "classes": None}
    content["encoder"] |= {"name": model["path"] or model["name"]}
    # Trained weights need less: by default a quarter of the epochs at a fifth of the rate, whatever the run before had.
    content["train"] |= {"epochs": None, "lr": None}
    if "cached_views" in before.metrics:  # as many as are there already
        content["encoder"]["views"] = before.metrics["cached_views"]
    if model["asked_size"]:
        content["encoder"]["image_size"] = model["asked_size"]
    content["data"] = before.data.model_dump(mode="json") if with_data else {}
    return content


def open_start(start: str | None, out: Path | None) -> Start | None:
    """The run to start from, if there is one; InputError unless it is whole and another one than `out`."""
    if start is None:
        return None
    folder = run_folder(start)
    if out is not None and out.resolve() == folder.resolve():
        raise InputError(f"--from {start} and --out are the same folder: choose another --out.")
    tensors, facts = read_directory(model_folder(folder))
    check_model_facts(facts, folder)
    return Start(Run.load(folder, images=False), tensors, facts)


@dataclass(frozen=True)
class Start:
    """A finished run that another one starts from."""

    run: Run
    tensors: dict[str, dict[str, Tensor]]
    facts: dict[str, Any]

    @property
    def digest(self) -> str:
        """Hash of the model and of everything people said about it."""
        text = json.dumps([self.facts["sha256"], self.facts["classes"], self.run.edits.effective], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @cached_property
    def rows(self) -> dict[str, int]:
        """Name of a training row -> its place in the stored answers."""
        return {name: row for row, name in enumerate(self.run.problem.table.names)}

    @property
    def reduction(self) -> Reduction | None:
        """The projection that the stored weights go with."""
        found = self.tensors.get("reduction")
        return None if found is None else Reduction(found["mean"], found["components"])

    def problem(self, problem: Problem) -> Problem:
        """The same rows with corrections as labels; known classes go by their ids, those that had labels before first."""
        edits, before = self.run.edits, self.run
        ids: list[str | None] = []
        undecided = 0
        meant = {label: self._class_of(label) for label in problem.class_names[: problem.n_old]}
        for name, target in zip(problem.table.names, problem.targets, strict=True):
            row = self.rows.get(name)
            if row is not None and name in edits.moves:
                ids.append(edits.classes[before.problem.targets[row]].id)
            elif target < 0:
                ids.append(None)
            else:
                label = problem.class_names[target]
                found = meant[label]
                if found is None and row is not None:
                    found = edits.resolve(label, before.answers.feature[row])
                ids.append(found)
                undecided += found is None
        if undecided:
            err.print(f"{undecided} labels name a class that was split and count as unlabelled", markup=False)
        used = set(ids) - {None}
        order = [one.id for one in edits.classes if one.id in used]
        order += sort_names(str(one) for one in used if one not in order)
        place: dict[str | None, int] = {one: number for number, one in enumerate(order)}
        names = [*order, *(name for name in problem.class_names if name not in place)]
        true = np.array([names.index(name) for name in problem.class_names] + [-1])  # the last entry answers for -1
        return replace(
            problem,
            targets=np.array([place.get(one, -1) for one in ids], dtype=np.int64),
            class_names=tuple(names),
            n_old=len(order),
            truth=None if problem.truth is None else true[problem.truth],
            test_truth=None if problem.test_truth is None else true[problem.test_truth],
        )

    def _class_of(self, label: str) -> str | None:
        """The class a label means today, itself if it is new; None where it was split, so that it depends on the row."""
        try:
            return self.run.edits.find(label)
        except InputError:
            return None if label in self.run.edits.state.divided else label

    def others(self, problem: Problem) -> list[str]:
        """Classes without labels that have images or a name: they go on as novel classes."""
        sizes = np.bincount(self.run.answers.head, minlength=len(self.run.edits.classes))
        known = set(problem.class_names[: problem.n_old])
        return [
            one.id
            for one, size in zip(self.run.edits.classes, sizes, strict=True)
            if one.id not in known and (size > 0 or one.name != one.id)
        ]

    def warm(self, method: Method, problem: Problem, features: Features) -> None:
        """Begin with the weights of the run: its tail, and a direction for each class that it had.

        They go in before `method.start`, which looks at the features, and again after it, since it may begin anew.
        """
        if not method.trains:  # its answer is computed anew from the labels there are now
            return
        about = self.facts["encoder"]
        if features.encoder.fingerprint != about["fingerprint"] or method.out_dim != about["out_dim"]:
            err.print(
                "another encoder than before: training begins with fresh weights, classes keep their ids", markup=False
            )
            return
        known = list(problem.class_names[: problem.n_old])
        directions = list(self._directions(known + self.others(problem)))[: method.n_classes]

        @torch.no_grad()
        def put() -> None:
            for tail in tails_of(method):
                tail.load_state_dict(self.tensors["tail"])
            for head, direction in enumerate(directions):
                if direction is not None:
                    method.classifier.weight[head] = direction.to(method.classifier.weight)

        try:
            put()
        except RuntimeError:
            err.print(
                "another tail than before: training begins with fresh weights, classes keep their ids", markup=False
            )
            return
        cold = method.start

        def start(feed: Any) -> None:
            cold(feed)
            put()

        method.start = start  # type: ignore[method-assign]

    def _directions(self, ids: Sequence[str]) -> Iterator[Tensor | None]:
        """Where the classifier looks for each class: as trained, else the mean of its training rows, else nowhere yet."""
        edits, answers = self.run.edits, self.run.answers
        for one in ids:
            place = edits.place.get(one)
            if place is None:
                yield None
                continue
            leaves = edits.classes[place].leaves
            rows = answers.rows_of(place)
            if len(leaves) == 1 and not leaves[0].path:
                yield F.normalize(self.tensors["classifier"]["weight"][leaves[0].head], dim=0)
            elif len(rows):
                yield F.normalize(torch.from_numpy(answers.feature[rows].mean(0)), dim=0)
            else:
                yield None

    def name_heads(self, problem: Problem, answers: Answers, n_classes: int) -> ClassIds:
        """Known classes are their heads; the other heads take the ids of the classes whose images they answer for now.

        The matching is one-to-one on the rows that both runs saw. Heads without a partner get numbers never used before.
        """
        edits, n_old = self.run.edits, problem.n_old
        ids: list[str] = [*problem.class_names[:n_old], *[""] * (n_classes - n_old)]
        candidates = self.others(problem)
        column = {edits.place[one]: number for number, one in enumerate(candidates)}
        counts = np.zeros((n_classes - n_old, len(candidates)), dtype=np.int64)
        for head, name in zip(answers.head, problem.table.names, strict=True):
            row = self.rows.get(name)
            before = None if row is None else column.get(int(self.run.answers.head[row]))
            if head >= n_old and before is not None:
                counts[head - n_old, before] += 1
        for head, before in zip(*hungarian(counts), strict=True) if counts.size else ():
            if counts[head, before] > 0:
                ids[n_old + head] = candidates[before]
        state = edits.state
        ever = {*edits.class_ids, *state.classes, *state.joined, *state.divided, *ids}
        number = max((int(found[1]) for one in ever if (found := NUMBERED.match(one))), default=0)
        width = max(2, len(str(n_classes)), *(len(found[1]) for one in ever if (found := NUMBERED.match(one))))
        sizes = np.bincount(answers.head, minlength=n_classes)
        for head in sorted((h for h in range(n_old, n_classes) if not ids[h]), key=lambda h: -sizes[h]):
            number += 1
            ids[head] = f"novel-{number:0{width}d}"
        given = tuple(edits.names.get(one, one) for one in ids)
        return ClassIds(tuple(ids), n_old, None if given == tuple(ids) else given)


def tails_of(method: Method) -> list[nn.Module]:
    """The method's tail and its copies in momentum networks."""
    keys = set(method.tail.state_dict())
    return [
        module
        for module in method.modules()
        if type(module) is type(method.tail) and set(module.state_dict()) == keys
    ]  # fmt: skip
