"""Labels between scikit-learn and a problem: any `y` -> known labels and places, heads -> labels of one type."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import count, islice
from numbers import Real
from typing import Any

import numpy as np
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, column_or_1d

from rowssl.errors import InputError


def one_column(y: Any) -> np.ndarray:
    """`y` as an array (n,); a list of text with holes stays what it is, where NumPy would write 'nan'."""
    if isinstance(y, list | tuple) and any(isinstance(value, str) for value in y):
        y = np.array(y, dtype=object)
    column: np.ndarray = column_or_1d(y, warn=True)
    if column.dtype.kind == "f":
        assert_all_finite(column, input_name="y")
    return column


def read_labels(y: Any, X: np.ndarray, unlabelled: Any) -> tuple[np.ndarray, np.ndarray]:
    """Known labels in order (K,), and the place of each row's label among them (n,), -1 = unlabelled."""
    if y is None:
        return np.zeros(0, dtype=np.int64), np.full(len(X), -1, dtype=np.int64)
    column = one_column(y)
    check_consistent_length(X, column)
    values = column.tolist()
    given = np.array([not _hole(value) for value in values], dtype=bool)
    present = {value for value, there in zip(values, given, strict=True) if there}
    if not all(isinstance(value, str) for value in present) and not all(isinstance(value, Real) for value in present):
        raise InputError(
            "Unknown label type: y must hold text alone or numbers alone, with None where there is no label."
        )
    if isinstance(unlabelled, str) and unlabelled == "auto":
        markers = {"", -1}
        if present == {-1, 1} and given.all():
            markers = {""}
            warnings.warn(
                "y holds nothing but -1 and 1, which is read as two known classes; "
                "unlabelled=-1 reads it as one known class and rows without a label.",
                UserWarning,
                stacklevel=3,
            )
    else:
        markers = {unlabelled}
    given &= np.array([value not in markers for value in values], dtype=bool)
    labels = column[given]
    if labels.dtype == object and len(labels) and not isinstance(labels[0], str):
        labels = np.array(labels.tolist())
    if labels.dtype.kind == "b" and not given.all():
        labels = labels.astype(np.int64)  # a novel class needs a third value
    target = np.full(len(X), -1, dtype=np.int64)
    if len(labels) == 0:
        return np.zeros(0, dtype=np.int64), target
    check_classification_targets(labels)
    known, target[given] = np.unique(labels, return_inverse=True)
    return known, target


def _hole(value: Any) -> bool:
    """None, NaN, pandas' NA."""
    return value is None or type(value).__name__ == "NAType" or (isinstance(value, float) and value != value)


def all_labels(known: np.ndarray, names: Sequence[str], unlabelled: Any) -> np.ndarray:
    """Known labels, then ids of novel classes: `names` beside text, else the next whole numbers, of the known type."""
    if len(names) == 0:
        return known
    if known.dtype.kind in "UO":
        return np.array([*known.tolist(), *names], dtype=object if known.dtype == object else None)
    first = max(int(np.floor(known.max(initial=-1))), -1) + 1
    numbers = (number for number in count(first) if not (isinstance(unlabelled, Real) and number == unlabelled))
    ids = np.array(list(islice(numbers, len(names))))
    same = ids.astype(known.dtype)
    return np.concatenate([known, same if np.array_equal(same, ids) else ids])  # a small type may have no room


def seed_of(random_state: Any) -> int:
    """scikit-learn's `random_state` as a seed; None draws one from the machine, not from NumPy's global state."""
    if random_state is None:
        return int(np.random.default_rng().integers(2**31))
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31 - 1))
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**31))
    if isinstance(random_state, int | np.integer) and random_state >= 0:
        return int(random_state)
    raise InputError(
        f"random_state={random_state!r} must be a whole number from 0, a RandomState, a Generator or None."
    )
