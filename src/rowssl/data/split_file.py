"""A split: which rows are labelled, unlabelled and test, and which classes are known and novel. JSON in and out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rowssl.core.errors import InputError
from rowssl.core.files import write_text

FORMAT = 1
_LISTS = ("labelled", "unlabelled", "test", "known_classes", "novel_classes")


@dataclass(frozen=True, eq=False)
class Split:
    """Rows and classes of one open-world problem.

    Parameters
    ----------
    labelled, unlabelled : np.ndarray
        int64, sorted rows of the train table, disjoint.
    test : np.ndarray
        int64, sorted rows of the test table.
    known_classes, novel_classes : tuple of int
        Class ids of the table in target order: targets 0 .. n_known - 1 are known.
    recipe : dict
        Every option that made the split, enough to make it again.
    seed : int
        The seed that was used.
    class_names : tuple of str, optional
        Names of all classes of the table, by class id.
    class_counts : dict, optional
        What `counts` gave when the split was made; written to the file.
    """

    labelled: np.ndarray
    unlabelled: np.ndarray
    test: np.ndarray
    known_classes: tuple[int, ...]
    novel_classes: tuple[int, ...]
    recipe: dict[str, Any]
    seed: int
    class_names: tuple[str, ...] | None = None
    class_counts: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        for name in ("labelled", "unlabelled", "test"):
            rows = np.sort(np.asarray(getattr(self, name), dtype=np.int64).reshape(-1))
            if len(rows) and (rows[0] < 0 or (np.diff(rows) == 0).any()):
                raise InputError(f"the {name} rows of a split must be distinct and not negative")
            object.__setattr__(self, name, rows)
        for name in ("known_classes", "novel_classes"):
            object.__setattr__(self, name, tuple(int(c) for c in getattr(self, name)))
        both = np.intersect1d(self.labelled, self.unlabelled, assume_unique=True)
        if len(both):
            raise InputError(f"row {both[0]} of a split is both labelled and unlabelled")
        if len(set(self.classes)) != len(self.classes) or min(self.classes, default=0) < 0:
            raise InputError("the known and novel classes of a split must be distinct and not negative")

    @property
    def classes(self) -> tuple[int, ...]:
        """Class ids in target order, known then novel."""
        return self.known_classes + self.novel_classes

    def targets(self, labels: Sequence[int] | np.ndarray) -> np.ndarray:
        """Target ids of table labels, int64 (N,) -> (N,): the place in known + novel, -1 for every other class."""
        labels = np.asarray(labels, dtype=np.int64)
        ids = np.array(self.classes, dtype=np.int64)
        if not len(ids):
            return np.full(labels.shape, -1, dtype=np.int64)
        order = np.argsort(ids)
        nearest = order[np.searchsorted(ids, labels, sorter=order).clip(max=len(ids) - 1)]
        return np.where(ids[nearest] == labels, nearest, -1)

    def counts(
        self, train_labels: Sequence[int] | np.ndarray, test_labels: Sequence[int] | np.ndarray | None = None
    ) -> dict[str, Any]:
        """Images per class and in all.

        Returns
        -------
        dict
            `classes`: one dict per class in target order (`id`, `name` where known, `known`, `labelled`, `unlabelled`,
            and `test` where test labels are given); and the totals `labelled`, `unlabelled`, `unlabelled_known`,
            `unlabelled_novel`, `test`.
        """
        train_targets = self.targets(train_labels)
        columns = {"labelled": train_targets[self.labelled], "unlabelled": train_targets[self.unlabelled]}
        if test_labels is not None:
            columns["test"] = self.targets(test_labels)[self.test]
        numbers = {name: np.bincount(t[t >= 0], minlength=len(self.classes)) for name, t in columns.items()}
        rows = []
        for target, class_id in enumerate(self.classes):
            row: dict[str, Any] = {"id": class_id}
            if self.class_names is not None:
                row["name"] = self.class_names[class_id]
            row["known"] = target < len(self.known_classes)
            rows.append(row | {name: int(values[target]) for name, values in numbers.items()})
        n_known = len(self.known_classes)
        return {
            "labelled": len(self.labelled),
            "unlabelled": len(self.unlabelled),
            "unlabelled_known": int(numbers["unlabelled"][:n_known].sum()),
            "unlabelled_novel": int(numbers["unlabelled"][n_known:].sum()),
            "test": len(self.test),
            "classes": rows,
        }

    def sha256(self) -> str:
        """Hash of the rows and classes, hex: two splits with the same hash are the same problem."""
        lists = {name: [int(v) for v in getattr(self, name)] for name in _LISTS}
        return hashlib.sha256(json.dumps(lists, separators=(",", ":"), sort_keys=True).encode()).hexdigest()

    def save(self, path: str | Path) -> None:
        """Write the split as JSON, atomically: the file is complete or it is the old one."""
        path = Path(path)
        content: dict[str, Any] = {"format": FORMAT, "recipe": self.recipe, "seed": self.seed}
        if self.class_names is not None:
            content["class_names"] = list(self.class_names)
        if self.class_counts is not None:
            content["counts"] = self.class_counts
        content |= {name: [int(v) for v in getattr(self, name)] for name in _LISTS} | {"sha256": self.sha256()}
        text = ",\n".join(
            f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in content.items()
        )
        write_text(path, "{\n" + text + "\n}\n")

    @classmethod
    def load(cls, path: str | Path, *, n_train: int | None = None, n_test: int | None = None) -> Split:
        """Read a split, refusing a damaged one; with `n_train` and `n_test` also one made for a larger table."""
        path = Path(path)
        content = _read_json(path)
        values = {name: _integers(content, name, path) for name in _LISTS}
        recipe, seed, names = content.get("recipe"), content.get("seed"), content.get("class_names")
        if not isinstance(recipe, dict) or type(seed) is not int:
            raise InputError(f"{path}: `recipe` must be an object and `seed` an integer")
        if names is not None and not (isinstance(names, list) and all(isinstance(n, str) for n in names)):
            raise InputError(f"{path}: `class_names` must be a list of strings")
        for name, limit in (("labelled", n_train), ("unlabelled", n_train), ("test", n_test)):
            if limit is not None and max(values[name], default=-1) >= limit:
                raise InputError(f"{path}: {name} row {max(values[name])} is not in a table of {limit} rows")
        if names is not None and max(values["known_classes"] + values["novel_classes"], default=-1) >= len(names):
            raise InputError(f"{path}: a class id is beyond the {len(names)} class names")
        rows = {name: np.array(values[name], dtype=np.int64) for name in ("labelled", "unlabelled", "test")}
        known, novel = tuple(values["known_classes"]), tuple(values["novel_classes"])
        try:
            split = cls(
                **rows,
                known_classes=known,
                novel_classes=novel,
                recipe=recipe,
                seed=seed,
                class_names=None if names is None else tuple(names),
                class_counts=content.get("counts"),
            )
        except InputError as error:
            raise InputError(f"{path}: {error}") from error
        if content.get("sha256") != split.sha256():
            raise InputError(f"{path}: the rows do not match their sha256, the file was changed after it was made")
        return split


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read the split {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not a split: it is not valid JSON ({error})") from error
    if not isinstance(content, dict) or "format" not in content:
        raise InputError(f"{path} is not a split: it has no `format` number")
    if content["format"] != FORMAT:
        raise InputError(f"{path} has split format {content['format']!r}, this version reads format {FORMAT}")
    return content


def _integers(content: dict[str, Any], name: str, path: Path) -> list[int]:
    values = content.get(name)
    if not isinstance(values, list) or not all(type(v) is int and 0 <= v < 2**62 for v in values):
        raise InputError(f"{path}: `{name}` must be a list of integers that are not negative")
    return values
