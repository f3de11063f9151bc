"""A run that is being served: its model, its training images, and its classes as they are edited, here or elsewhere."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rowssl.api import write_report
from rowssl.core.errors import ImageError, InputError
from rowssl.core.files import read_plain, tidy
from rowssl.data.images import open_image, thumbnail
from rowssl.runs.answers import mean_confidence, typical_rows
from rowssl.runs.classifier import Classifier, Prediction
from rowssl.runs.edits import FILE, describe
from rowssl.runs.folder import locked, run_folder
from rowssl.runs.predict import Layout
from rowssl.runs.run import Run, Stale
from rowssl.serve.neighbours import Neighbours
from rowssl.serve.schemas import Answer, Choice, ClassPage, ClassRef, ClassSummary, Member, Neighbour, Overview

NEAREST = 8
TYPICAL = 6
THUMBNAIL = 160  # pixels of the longer side
THUMBNAILS = 4096  # kept in memory, a few kB each
ONE = Layout()  # one answer, however sure


class NotThere(InputError):
    """What was asked for does not exist."""


class View:
    """The classes of a run between two edits."""

    def __init__(self, run: Run, neighbours: Neighbours) -> None:
        self.run, self.edits, self.answers, self.neighbours = run, run.edits, run.answers, neighbours
        self.model = run.classifier
        count = len(self.edits.classes)
        self.sizes = np.bincount(self.answers.head, minlength=count)
        self.labelled = run.problem.labelled_counts(count)
        self.confidence = mean_confidence(self.answers, run.problem.targets, count)

    def place(self, text: str) -> int:
        """The place of the class that goes by an id, an id of old, or a name."""
        try:
            return self.edits.place[self.edits.find(text)]
        except InputError as error:
            raise NotThere(str(error)) from None

    def ref(self, place: int) -> ClassRef:
        one = self.edits.classes[place]
        return ClassRef(id=one.id, name=one.name, kind="known" if one.known else "novel")

    def second(self, place: int, first: int) -> ClassRef | None:
        return None if place == first else self.ref(place)  # one class is left

    def summary(self, place: int) -> ClassSummary:
        return ClassSummary(
            **self.ref(place).model_dump(),
            size=int(self.sizes[place]),
            labelled=int(self.labelled[place]),
            confidence=None if np.isnan(self.confidence[place]) else float(self.confidence[place]),
            typical=typical_rows(self.answers, place, TYPICAL).tolist(),
        )

    @cached_property
    def summaries(self) -> list[ClassSummary]:
        """As classes.csv has them: largest first, without novel classes that nothing is in."""
        order = np.argsort(-self.sizes, kind="stable")
        return [self.summary(int(p)) for p in order if self.sizes[p] or self.edits.classes[p].known]

    def page(self, place: int, order: str, offset: int, limit: int) -> ClassPage:
        """A class with some of its images: the most typical or the most doubtful first."""
        if order == "typical":
            rows = typical_rows(self.answers, place, int(self.sizes[place]))
        else:
            rows = self.answers.rows_of(place)
            rows = rows[np.argsort(self.answers.confidence[rows], kind="stable")]
        members = [self.member(int(row)) for row in rows[offset : offset + limit]]
        return ClassPage(**self.summary(place).model_dump(), members=members)

    def member(self, row: int) -> Member:
        head = int(self.answers.head[row])
        issue = -1 if self.answers.issue is None else int(self.answers.issue[row])
        return Member(
            row=row,
            file=self.run.problem.table.names[row],
            confidence=float(self.answers.confidence[row]),
            second=self.second(int(self.answers.second[row]), head),
            labelled=bool(self.run.problem.targets[row] >= 0),
            label_issue=self.ref(issue) if issue >= 0 else None,
        )

    def nearest(self, feature: np.ndarray) -> list[Neighbour]:
        """The training images whose unit features have the largest cosine with this one (d,)."""
        return [
            Neighbour(
                row=int(row), file=self.run.problem.table.names[row], cosine=float(cosine),
                label=self.ref(int(self.answers.head[row])),
            )
            for row, cosine in zip(*self.neighbours(self.answers.feature, feature, NEAREST), strict=True)
        ]  # fmt: skip


class Served:
    """A run, ready to answer from several threads; edits made by other programs are noticed."""

    def __init__(self, run: str | Path, *, encoder: str | None = None, device: str = "auto") -> None:
        self.folder = run_folder(run)
        with suppress(InputError), locked(self.folder):  # a folder that cannot be written is served as it is
            tidy(self.folder)
        loaded = Run.load(self.folder, encoder=encoder, device=device)
        edited = self._catch_up(loaded)
        # One thread for the network: where two run parallel loops, those of both wait for each other asleep, and an answer takes
        # half as long again.
        self._network = ThreadPoolExecutor(1, thread_name_prefix="rowssl-network")
        self._network.submit(lambda: loaded.classifier).result()
        self.table, self.missing = loaded.problem.table, loaded.images
        neighbours = self._network.submit(Neighbours, loaded.answers.feature).result()
        self._view, self._lock, self.edited = View(loaded, neighbours), threading.RLock(), edited
        self.thumb = lru_cache(THUMBNAILS)(self._thumb)

    @property
    def model(self) -> Classifier:
        """The model, in terms of the classes as they were last looked at."""
        return self._view.model

    def _catch_up(self, run: Run) -> bool:
        """Write the tables that a killed server left behind; whether the report is behind the edits."""

        def behind(name: str) -> bool:
            try:
                return (self.folder / name).stat().st_mtime_ns < (self.folder / FILE).stat().st_mtime_ns
            except FileNotFoundError:
                return False

        with suppress(InputError):
            with locked(self.folder):
                if behind("classes.csv") or behind("predictions.csv"):
                    run.current().write_again()
            return behind("report.html")
        return False

    def view(self) -> View:
        """The classes as they are now; the model answers in terms of the same ones."""
        with self._lock:
            try:
                return self._show(self._view.run.current())
            except Stale:
                raise Stale(f"{self.folder} was trained again since: start `rowssl serve` again.") from None

    def _show(self, run: Run) -> View:
        if run is not self._view.run:
            self._view = View(run, self._view.neighbours)
        return self._view

    def overview(self) -> Overview:
        view = self.view()
        effective = view.edits.effective
        return Overview(
            run=self.folder.resolve().name,
            model=view.edits.model[:16],
            takes_images=self.model.takes_images,
            embedding_size=None if self.model.takes_images else self.model.encoder.trunk_shape[0],
            pictures=self.table.has_images and not self.missing,
            problem=self.missing,
            rows=len(self.table),
            last_edit=describe(effective[-1]) if effective else "",
            classes=view.summaries,
        )

    def answer_image(self, data: bytes, asked: Layout = ONE) -> Answer:
        """What the model says of an encoded picture; ImageError if it is none."""
        image = open_image(data, name="upload")

        def answer() -> Answer:
            x = self.model.trunk([image])
            return self._answer(x, lambda model: model.predict_trunk(x, top=asked.top), asked)

        return self._network.submit(answer).result()

    def answer_embedding(self, values: list[float], asked: Layout = ONE) -> Answer:
        """What the model says of one embedding."""
        with np.errstate(over="ignore"):
            array = np.array([values], dtype=np.float32)

        def answer() -> Answer:
            x = torch.from_numpy(array)
            return self._answer(x, lambda model: model.predict_embeddings(array, top=asked.top), asked)

        return self._network.submit(answer).result()

    def _answer(self, x: Tensor, predict: Callable[[Classifier], list[Prediction]], asked: Layout) -> Answer:
        view = self.view()  # no edit comes between the answer and the names of its classes
        (said,) = predict(view.model)
        feature = view.model.features(x)[0].float().cpu().numpy()
        if not (np.isfinite(said.confidence) and np.isfinite(said.distance) and np.isfinite(feature).all()):
            raise InputError("The model has no finite score for this: the numbers are too large.")
        return Answer(
            id=said.class_id, name=said.name, kind="known" if said.kind == "known" else "novel",
            confidence=said.confidence, far=said.far, distance=said.distance,
            second=view.ref(view.edits.place[said.second]) if said.second else None,
            nearest=view.nearest(feature), abstained=asked.abstains(said),
            top=[Choice(**view.ref(view.edits.place[one]).model_dump(), probability=p) for one, _, p in said.top],
        )  # fmt: skip

    def _thumb(self, row: int) -> bytes:
        """A small JPEG of a training image."""
        if not 0 <= row < len(self.table):
            raise NotThere(f"There is no training image {row}: they go from 0 to {len(self.table) - 1}.")
        if not self.table.has_images or self.missing:
            raise NotThere(self.missing or "This run is on embeddings: there are no pictures.")
        try:
            image = thumbnail(self.table.image(row), THUMBNAIL)
        except ImageError as error:
            raise NotThere(str(error)) from None
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=85)
        return buffer.getvalue()

    def classes_csv(self) -> bytes:
        """The table of classes, all of it from one moment: an edit replaces the file."""
        path = self.folder / "classes.csv"
        try:
            return read_plain(path)  # a link could lead to any file of this machine
        except InputError:
            raise NotThere("classes.csv is no longer there.") from None

    def edit(self, work: Callable[[Run], Run]) -> tuple[Overview, tuple[str, ...]]:
        """Do an edit of the run as it is now; from then on the model answers accordingly."""
        edited = work(self.view().run)
        self.edited = True
        with self._lock:
            self._show(edited)
        return self.overview(), edited.unwritten

    def close(self) -> None:
        """Write report.html once for all edits made here."""
        from rowssl.core.console import err

        if not self.edited:
            return
        self.edited = False
        err.print(f"writing {self.folder / 'report.html'} with the edits", markup=False, soft_wrap=True)
        try:
            with locked(self.folder):
                problems = replace(self._view.run.current(), page=write_report).write_again().unwritten
        except InputError as error:
            problems = (str(error),)
        for problem in problems:
            err.print(problem, markup=False, soft_wrap=True)
