"""Answers for new images: files, folders, tables and embeddings, a batch at a time, so that any number of them fits."""

from __future__ import annotations

import csv
import io
import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rowssl.core.errors import ImageError, InputError
from rowssl.core.files import replacing
from rowssl.core.frame import Frame
from rowssl.core.memory import reused_blocks
from rowssl.core.text import printable
from rowssl.data.images import SUFFIXES, Skipped, open_image
from rowssl.data.table import Table, read_table
from rowssl.runs.classifier import BATCH, Classifier, Prediction

AHEAD = 4  # batches that are decoded before they are needed


@dataclass(frozen=True)
class Input:
    """Some rows to answer for: what to call them, and how to get the picture or the embedding of each."""

    names: Sequence[str]
    picture: Callable[[int], np.ndarray] | None  # row -> clean view
    embeddings: np.ndarray | None = None
    skipped: tuple[Skipped, ...] = ()


def open_inputs(model: Classifier, sources: Sequence[str | Path]) -> list[Input]:
    """What a person named: image files, folders, CSV or parquet files with images, files of embeddings."""
    inputs: list[Input] = []
    files: list[Path] = []
    for source in map(Path, sources):
        if not os.path.isdir(source) and source.suffix.lower() not in (
            ".csv",
            ".tsv",
            ".parquet",
            ".npy",
            ".npz",
            ".safetensors",
        ):
            if source.suffix.lower() not in SUFFIXES and os.path.exists(source) and len(sources) == 1:
                raise InputError(
                    f"{printable(str(source))} is neither an image, a folder, a table nor a file of embeddings."
                )
            files.append(source)
            continue
        table = read_table(source, check_images=False)
        if table.has_images:
            inputs.append(_of_table(model, table, source))
        elif table.embeddings is not None:
            inputs.append(Input(table.names, None, table.embeddings))
    if files:
        names = [printable(str(path)) for path in files]
        inputs.insert(0, Input(names, lambda row: model.clean_view(open_image(files[row], name=names[row]))))
    return inputs


def _of_table(model: Classifier, table: Table, source: Path) -> Input:
    names = [printable(str(source / name)) for name in table.names] if source.is_dir() else table.names
    return Input(names, lambda row: model.clean_view(table.image(row)), None, table.skipped)


def predict_inputs(
    model: Classifier, inputs: Sequence[Input], *, top: int = 0
) -> Iterator[tuple[str, Prediction | str]]:
    """Name and answer of every row in order; for a picture that cannot be read the reason takes the answer's place."""
    for one in inputs:
        for skipped in one.skipped:
            yield skipped.name, skipped.reason
        if one.embeddings is not None:
            for begin in range(0, len(one.embeddings), 1024):
                part = slice(begin, begin + 1024)
                yield from zip(one.names[part], model.predict_embeddings(one.embeddings[part], top=top), strict=True)
        elif one.picture is not None:
            yield from _predict_pictures(model, one.names, one.picture, top)


def _predict_pictures(
    model: Classifier, names: Sequence[str], picture: Callable[[int], np.ndarray], top: int
) -> Iterator[tuple[str, Prediction | str]]:
    """Threads decode a few batches ahead of the network."""

    def load(row: int) -> np.ndarray | str:
        try:
            return picture(row)
        except ImageError as error:
            return re.sub("^cannot read image .*?: ", "", str(error))

    batches = [range(begin, min(begin + BATCH, len(names))) for begin in range(0, len(names), BATCH)]
    pending: deque[tuple[range, list[Future[np.ndarray | str]]]] = deque()
    pool = ThreadPoolExecutor(min(8, os.cpu_count() or 1))
    try:
        with reused_blocks():
            while batches or pending:
                while batches and len(pending) < AHEAD:
                    rows = batches.pop(0)
                    pending.append((rows, [pool.submit(load, row) for row in rows]))
                rows, futures = pending.popleft()
                views = [future.result() for future in futures]
                good = [view for view in views if isinstance(view, np.ndarray)]
                answers = iter(model.predict_trunk(model.trunk_of_views(np.stack(good)), top=top) if good else [])
                for row, view in zip(rows, views, strict=True):
                    yield names[row], next(answers) if isinstance(view, np.ndarray) else view
    finally:
        pool.shutdown(cancel_futures=True)


class Predictions(Sequence[Prediction]):
    """What a model said of some rows, in order, and what they are called; a table in a notebook and on a terminal."""

    def __init__(
        self, names: Sequence[str], predictions: Sequence[Prediction], skipped: Sequence[Skipped] = ()
    ) -> None:
        self.names, self.predictions, self.skipped = tuple(names), tuple(predictions), tuple(skipped)

    def __len__(self) -> int:
        return len(self.predictions)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return Predictions(self.names[place], self.predictions[place], self.skipped)
        return self.predictions[place]

    @property
    def frame(self) -> Frame:
        """One line for each, as `rowssl predict` prints it."""
        columns = ("file", "class", "name", "kind", "confidence", "second", "far")
        rows = [
            (name, one.class_id, one.name, one.kind, one.confidence, one.second, one.far)
            for name, one in zip(self.names, self.predictions, strict=True)
        ]
        return Frame(columns, rows)

    def to_pandas(self) -> Any:
        """A pandas DataFrame."""
        return self.frame.to_pandas()

    def __repr__(self) -> str:
        return repr(self.frame)

    def _repr_html_(self) -> str:
        return self.frame._repr_html_()


def predict(model: Classifier, new: Any, *, top: int = 0) -> Predictions:
    """What a model says of pictures, embeddings, files or folders; pictures that cannot be read are `skipped`."""
    from PIL.Image import Image

    if isinstance(new, Image):
        new = [new]
    if isinstance(new, np.ndarray | torch.Tensor):
        array = np.asarray(new)
        return Predictions([f"row {i}" for i in range(len(array))], model.predict_embeddings(array, top=top))
    sources: list[Any] = [new] if isinstance(new, str | os.PathLike) else list(new)
    if all(isinstance(one, Image) for one in sources):
        return Predictions([f"picture {i}" for i in range(len(sources))], model.predict_images(sources, top=top))
    found: list[tuple[str, Prediction]] = []
    skipped: list[Skipped] = []
    for name, answer in predict_inputs(model, open_inputs(model, sources), top=top):
        if isinstance(answer, str):
            skipped.append(Skipped(name, answer))
        else:
            found.append((name, answer))
    if skipped and not found:
        raise InputError(f"None of the images could be read; {skipped[0].name}: {skipped[0].reason}.")
    return Predictions([name for name, _ in found], [one for _, one in found], skipped)


@dataclass(frozen=True)
class Layout:
    """The columns of the answers' table.

    Attributes
    ----------
    top : how many of the most likely classes are listed, in two columns each, name and probability.
    abstain : below this confidence the answer is left empty, and what it would have been is a guess; None never abstains.
    narrow : for a terminal, where all that is listed goes into one column.
    """

    top: int = 0
    abstain: float | None = None
    narrow: bool = False

    def __post_init__(self) -> None:
        if self.top < 0:
            raise InputError(f"--top is a number of classes from 0 up, not {self.top}.")
        if self.abstain is not None and not 0 <= self.abstain <= 1:
            raise InputError(f"--abstain is a confidence from 0 to 1, not {self.abstain:g}.")

    @property
    def columns(self) -> list[str]:
        """What the columns are called."""
        asked = ["abstained", "guess"] if self.abstain is not None else []
        tops = [column for k in range(1, self.top + 1) for column in (f"top_{k}", f"probability_{k}")]
        if self.narrow:
            tops = [f"top {self.top}"] if self.top else []
        return ["file", "class", "name", "kind", "confidence", "second", "far", *asked, *tops]

    def abstains(self, answer: Prediction) -> bool:
        """Whether an answer is not sure enough to be given."""
        return self.abstain is not None and answer.confidence < self.abstain

    def cells(self, name: str, answer: Prediction) -> list[str]:
        """One row."""
        unsure = self.abstains(answer)
        given = ["", "", ""] if unsure else [answer.class_id, answer.name, answer.kind]
        row = [name, *given, f"{answer.confidence:.4f}", answer.second, "yes" if answer.far else "no"]
        if self.abstain is not None:
            row += ["yes", answer.name] if unsure else ["no", ""]
        if self.narrow and self.top:
            return [*row, ", ".join(f"{shown} {score:.2f}" for _, shown, score in answer.top)]
        for _, shown, score in answer.top:
            row += [shown, f"{score:.4f}"]
        return row + [""] * (len(self.columns) - len(row))  # where there are fewer classes than were asked for


@contextmanager
def csv_file(path: Path, columns: Sequence[str]) -> Iterator[Callable[[Sequence[str]], object]]:
    """A CSV file that grows row by row, with what writes a row, and that appears whole or not at all."""
    with replacing(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        yield writer.writerow


def csv_line(row: Sequence[str]) -> str:
    """One row as CSV text without the line's end."""
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(row)
    return text.getvalue()
