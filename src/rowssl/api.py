"""The verbs of the library: each takes what a person has, and hands it to the room that does the work."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rowssl.config import RunConfig, build_config, flatten, lay_over, merge
from rowssl.core.errors import InputError
from rowssl.runs.run import Run

if TYPE_CHECKING:
    from rowssl.counting.table import Counts
    from rowssl.data.problem import Problem
    from rowssl.evaluation import Evaluation
    from rowssl.methods.base import Method


def write_report(run: Run, path: Path) -> None:
    """The report of a run as one HTML file."""
    from rowssl.report.build import build_report
    from rowssl.report.page import write_report as write

    write(build_report(run), path)


def fit(
    data: RunConfig | str | os.PathLike[str] | np.ndarray,
    out: str | os.PathLike[str] | None = None,
    *,
    labels: Any = None,
    method: str | type[Method] | None = None,
    options: Mapping[str, Any] | None = None,
    start: Run | str | os.PathLike[str] | None = None,
    problem: Problem | None = None,
    **settings: Any,
) -> Run:
    """Train: classify the known classes, discover the novel ones.

    Parameters
    ----------
    data
        A folder of images, a CSV or parquet file, a file of embeddings, the name of a benchmark, an array of embeddings (N, D), or
        a `RunConfig`, which says everything.
    out
        Run directory; the same call continues a run that was stopped. Without it the run is in memory alone.
    labels
        A CSV file with some labels; for an array one label per row, with None, NaN, -1 or an empty text where there is none.
    method, options
        One of `METHODS` [auto], or a class of your own; its options by their names.
    start
        A run to go on from, as `rowssl fit --from` does it: its options, its weights, and the corrections made in it as labels.
    problem
        Takes the place of `data`'s rows, for data that are in memory already.
    settings
        Any other option of `rowssl fit` by its name in a YAML file: `classes=`, `encoder=`, `seed=`, `epochs=`.
    """
    from rowssl.runs.fit import fit as train

    config = data if isinstance(data, RunConfig) else None
    if config is None:
        given, rows = settings_of(data, labels, settings)
        problem = problem or rows
        content = {} if start is None else _continued(start)
        for keys, value in flatten(given):
            merge(content, keys, value)
        if method is not None or options is not None or start is None:
            content["method"] = {"name": method_name(method or "auto"), "options": dict(options or {})}
        config = build_config(content)
    return train(config, None if out is None else Path(out), problem=problem, page=write_report)


def _continued(start: Run | str | os.PathLike[str]) -> dict[str, Any]:
    """The options of a run that another one goes on from."""
    from rowssl.runs.warm_start import continued_content

    folder = start.folder if isinstance(start, Run) else Path(start)
    if folder is None:
        raise InputError("start= takes a run that is kept in a folder: save it first.")
    return continued_content(folder, with_data=False)


def load(run: str | Path, *, images: bool = True, encoder: str | None = None, device: str = "cpu") -> Run:
    """A finished run, ready to be looked at, edited and used.

    Parameters
    ----------
    run
        The run directory.
    images
        Whether its pictures are wanted; without them it is read sooner where they are in one large file.
    encoder
        Where the pretrained encoder is, if it is no longer where it was at training.
    device
        `cpu`, `cuda` or `auto`: where the classifier computes.
    """
    return Run.load(run, images=images, page=write_report, encoder=encoder, device=device)


def count(
    data: str | os.PathLike[str],
    *,
    labels: Any = None,
    only: Any = None,
    max_classes: int | None = None,
    **settings: Any,
) -> Counts:
    """How many classes there are, in several ways side by side; the first estimate is the one that `fit` uses.

    Parameters
    ----------
    data, labels, settings
        As for `fit`.
    only
        Names of the estimators that are wanted.
    max_classes
        Search no further than this.
    """
    from rowssl.counting.base import ESTIMATORS
    from rowssl.counting.table import count_source

    content, problem = settings_of(data, labels, settings)
    names = ESTIMATORS if only is None else (only,) if isinstance(only, str) else tuple(only)
    return count_source(build_config(content), max_classes=max_classes, names=names, problem=problem)


def evaluate(
    predicted: Any, truth: Any, *, known: Any, test_predicted: Any = None, test_truth: Any = None
) -> Evaluation:
    """How good predictions are by the protocol: clusters and classes are matched once, on these rows.

    Parameters
    ----------
    predicted, truth
        One value for each unlabelled training row: what was said (the name of a known class, or any name of a cluster), and the
        true class.
    known
        The classes that had labels.
    test_predicted, test_truth
        The same of test rows; they are judged under the matching of the training rows.
    """
    from rowssl.evaluation import evaluate as judge

    names = [str(one) for one in np.asarray(known).ravel().tolist()]
    if len(set(names)) < len(names):
        raise InputError("known= names a class twice.")
    if (test_predicted is None) != (test_truth is None):
        raise InputError("test_predicted and test_truth must be given together.")
    said, true = _texts(predicted, "predicted"), _texts(truth, "truth")
    test_said, test_true = _texts(test_predicted, "test_predicted"), _texts(test_truth, "test_truth")
    clusters = {name: place for place, name in enumerate(dict.fromkeys([*names, *said, *test_said]))}
    classes = {name: place for place, name in enumerate(dict.fromkeys([*names, *sorted({*true, *test_true})]))}
    return judge(
        train_predicted=_places(said, clusters),
        train_truth=_places(true, classes),
        test_predicted=None if test_truth is None else _places(test_said, clusters),
        test_truth=None if test_truth is None else _places(test_true, classes),
        n_old=len(names),
        n_classes=len(classes),
        n_clusters=len(clusters),
    )


def _texts(values: Any, name: str) -> list[str]:
    column = np.asarray([] if values is None else values)
    if column.ndim != 1:
        raise InputError(f"{name} must be one column, not an array of shape {column.shape}.")
    return [str(value) for value in column.tolist()]


def _places(values: list[str], place: Mapping[str, int]) -> np.ndarray:
    return np.array([place[value] for value in values], dtype=np.int64)


def method_name(method: str | type[Method]) -> str:
    """The name of a method; a class of one's own is known by its name from then on, in this process."""
    if isinstance(method, str):
        return method
    from rowssl.methods import METHODS

    name = getattr(method, "name", None)
    name = name if isinstance(name, str) and name else method.__name__.lower()
    if METHODS.get(name, method) is not method and METHODS[name].__module__.startswith("rowssl."):
        raise InputError(f"There is a method {name!r} already: give yours another name.")
    METHODS[name] = method
    return name


def settings_of(data: Any, labels: Any, settings: Mapping[str, Any]) -> tuple[dict[str, Any], Problem | None]:
    """The content of a configuration, and the rows themselves where they are in memory already."""
    from rowssl.data.benchmarks import BENCHMARKS

    content: dict[str, Any] = {}
    problem = None
    if isinstance(data, str | os.PathLike):
        place = os.fspath(data)
        named = place in BENCHMARKS and not os.path.exists(place)
        lay_over(content, {"data.name" if named else "data.source": place})
        if labels is not None:
            if not isinstance(labels, str | os.PathLike):
                raise InputError("labels= is a CSV file for data that are read from files.")
            lay_over(content, {"data.labels": os.fspath(labels)})
    else:
        problem = problem_of(data, labels)
        lay_over(content, {"encoder.name": "identity"})
    for name, value in settings.items():
        if value is not None:
            value = os.fspath(value) if isinstance(value, os.PathLike) else value
            merge(content, _key(name), value.item() if isinstance(value, np.generic) else value)
    return content, problem


def _key(name: str) -> list[str]:
    """Where a setting is in a configuration."""
    if name in ("classes", "seed"):
        return [name]
    if name == "encoder":
        return ["encoder", "name"]
    for group in ("data", "encoder", "train"):
        if name in RunConfig.model_fields[group].annotation.model_fields and name not in ("name", "source"):  # type: ignore[union-attr]
            return [group, name]
    raise InputError(f"There is no setting {name!r}: see `rowssl fit --help`.")


def problem_of(embeddings: Any, labels: Any) -> Problem:
    """Rows of numbers (N, D) with a label for some of them, as an open-world problem."""
    from rowssl.data.labels import sort_names
    from rowssl.data.problem import Problem
    from rowssl.data.table import Table

    rows = np.asarray(embeddings, dtype=np.float32)
    if rows.ndim != 2 or not np.isfinite(rows).all():
        raise InputError(f"Embeddings are a finite array (rows, columns), not one of shape {rows.shape}.")
    given = [None] * len(rows) if labels is None else np.asarray(labels, dtype=object).ravel().tolist()
    if len(given) != len(rows):
        raise InputError(f"There are {len(given)} labels for {len(rows)} rows.")
    texts = [None if value is None or value != value or value in (-1, "") else str(value) for value in given]
    names = sort_names({text for text in texts if text is not None})
    place = {name: number for number, name in enumerate(names)}
    target = np.array([-1 if text is None else place[text] for text in texts], dtype=np.int64)
    table = Table(target, names, [f"row {i}" for i in range(len(rows))], embeddings=rows, source="an array")
    return Problem(table, target, names, len(names))
