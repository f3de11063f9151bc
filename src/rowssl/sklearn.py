"""The scikit-learn face: every method as a classifier of rows of numbers, alone, in a Pipeline or in a grid search."""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Sequence
from itertools import count, islice
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.base import BaseEstimator, ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data
from torch import Tensor, nn

from rowssl import __version__
from rowssl.config import RunConfig, build_config
from rowssl.core.console import quiet
from rowssl.core.errors import InputError
from rowssl.core.files import read_directory, write_directory
from rowssl.data.problem import Problem
from rowssl.data.table import Table
from rowssl.encoders.fourier import NARROW, Lift, fit_lift
from rowssl.encoders.tails import AdapterTail
from rowssl.methods import METHODS
from rowssl.methods.heads import CosineClassifier
from rowssl.runs.fit import fit as fit_problem
from rowssl.runs.fit import threads_for

CHUNK = 4096  # rows at once
# A fit sets the process's number of threads and the console for a while, so fits in several threads take turns.
_ONE_FIT = threading.Lock()


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


class RowNetwork(nn.Module):
    """A trained method on rows of X: lift (or none), tail, classifier with its heads in the order of `classes_`.

    It computes in float64, so that what a row gets does not depend, not even in the last shown digit, on the rows beside it.
    """

    def __init__(self, lift: Lift | None, tail: nn.Module, classifier: CosineClassifier, order: np.ndarray) -> None:
        super().__init__()
        self.lift, self.tail, self.classifier = lift, tail.cpu(), classifier.cpu()
        with torch.no_grad():
            for value in classifier.state_dict().values():
                value.copy_(value[torch.from_numpy(order)].clone())
        self.double().eval().requires_grad_(False)

    @torch.no_grad()
    def features(self, X: np.ndarray) -> np.ndarray:
        """Unit features (n, out_dim), float64."""
        parts = np.array_split(X, range(CHUNK, len(X), CHUNK))
        rows = (torch.from_numpy(prepared(part, self.lift).astype(np.float64)) for part in parts)
        return torch.cat([F.normalize(self.tail(row), dim=1) for row in rows]).numpy()

    @torch.no_grad()
    def scores(self, X: np.ndarray) -> np.ndarray:
        """Probability of each head (n, C), float64."""
        probability: np.ndarray = self.classifier.probabilities(torch.from_numpy(self.features(X))).numpy()
        return probability

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """What `save` writes; the weights were trained in float32."""
        parts = {"tail": self.tail, "classifier": self.classifier}
        groups = {name: {k: v.float() for k, v in part.state_dict().items()} for name, part in parts.items()}
        return groups if self.lift is None else {**groups, "lift": dict(self.lift.state_dict())}

    @classmethod
    def from_tensors(
        cls, tensors: dict[str, dict[str, Tensor]], *, method: str, options: dict[str, Any], seed: int
    ) -> RowNetwork:
        """The network `tensors` came from; the method may have wrapped its tail."""
        lift = None
        if "lift" in tensors:
            lift = Lift(len(tensors["lift"]["mean"]))
            lift.load_state_dict(tensors["lift"])
        heads, dim = tensors["classifier"]["weight"].shape
        tail = METHODS[method].wrap_tail(AdapterTail(dim), {**options, "seed": seed})
        tail.load_state_dict(tensors["tail"])
        classifier = CosineClassifier(dim, heads, generator=torch.Generator())
        classifier.load_state_dict(tensors["classifier"])
        return cls(lift, tail, classifier, np.arange(heads))


@torch.no_grad()
def prepared(X: np.ndarray, lift: Lift | None) -> np.ndarray:
    """Rows lifted (float64), or as they are (float32); a value too large for that is an error."""
    with np.errstate(over="ignore"):
        rows = X.astype(np.float32) if lift is None else lift(torch.from_numpy(X.astype(np.float64))).numpy()
    assert_all_finite(rows, input_name="X")
    return rows


class OpenWorldClassifier(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClassifierMixin, BaseEstimator):
    """Classify known classes and discover novel ones, from rows of which only some have a label.

    Parameters
    ----------
    method : str
        One of `rowssl.methods.METHODS`.
    n_classes : int or "auto"
        Classes in all, known and novel. "auto" estimates the number; where every row has a label there is nothing to
        discover, and it is the number of labels.
    epochs, batch_size, lr : int, int, float or None
        None is chosen by the size of the data: 50 to 200 epochs, fewer for more than 10,000 rows (10 to 50 where every
        row has a label); batches of 64 (128 from 2,048 rows); a learning rate of 0.1.
    method_options : dict or None
        The method's own options by their names, see `docs/methods`.
    unlabelled : object
        The value of `y` that stands for no label. "auto" is -1 for numbers and the empty text for text. One case has
        two readings: a `y` of nothing but -1 and 1 is scikit-learn's usual coding of two classes, and "auto" reads it
        as that, with a warning; `unlabelled=-1` reads it as one known class. None and NaN among objects (text, or
        numbers with holes) are always unlabelled.
    device : str
        Where to train: "auto" takes a GPU if there is one. Prediction is on the CPU.
    random_state : int, RandomState, Generator or None
        An int gives the same model every time; no global random state is read or changed. None is random.
    verbose : bool
        Show what is done and how long it will take, on standard error.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes_,)
        Known labels in order, then the novel classes, largest first. For numbers novel ids are the whole numbers above
        the largest known label (from 0), of the same type; for text `novel-01`, `novel-02`, ...
    novel_classes_ : ndarray
        The novel part of `classes_`; it may be empty.
    n_classes_ : int
        `len(classes_)`.
    transduction_ : ndarray of shape (n_samples,)
        A label for every row of the training set: its own where it had one, else the prediction.
    n_features_in_ : int
        Columns of X.

    Notes
    -----
    Rows are compared by direction, as embeddings are. Rows of fewer than 16 columns are standardised and lifted to 128
    random Fourier features first, so that their distance counts.
    """

    def __init__(
        self,
        method: str = "auto",
        *,
        n_classes: int | str = "auto",
        epochs: int | None = None,
        batch_size: int | None = None,
        lr: float | None = None,
        method_options: dict[str, Any] | None = None,
        unlabelled: Any = "auto",
        device: str = "auto",
        random_state: Any = 0,
        verbose: bool = False,
    ) -> None:
        self.method = method
        self.n_classes = n_classes
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.method_options = method_options
        self.unlabelled = unlabelled
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = False  # without any label all classes are novel
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def fit(self, X: Any, y: Any = None) -> OpenWorldClassifier:
        """Train on X (n_samples, n_features) with labels y (n_samples,), some or all of them missing."""
        X = validate_data(self, X, dtype=[np.float64, np.float32], ensure_min_samples=2)
        known, target = read_labels(y, X, self.unlabelled)
        seed = seed_of(self.random_state)
        config = self._config(known, target, seed)
        lift = fit_lift(X, seed) if X.shape[1] < NARROW else None
        rows = prepared(X, lift).astype(np.float32, copy=False)
        names = tuple(map(str, known.tolist()))
        table = Table(labels=target, class_names=names, names=[f"row {i}" for i in range(len(X))], embeddings=rows)
        # One thread: sums in another order would give other last digits, and a grid search other results with n_jobs.
        # fork_rng: torch's layers draw initial weights from the global state even where they are overwritten at once.
        with _ONE_FIT, quiet(not self.verbose), threads_for(0), torch.random.fork_rng(devices=[]):
            run = fit_problem(config, problem=Problem(table, target, names, len(known)))

        assert run.method is not None
        sizes = np.bincount(run.answers.head, minlength=len(run.names.ids))[len(known) :]
        novel = len(known) + np.argsort(-sizes, kind="stable")
        order = np.concatenate([np.arange(len(known)), novel])
        self.classes_ = all_labels(known, [run.names.ids[head] for head in novel], self.unlabelled)
        self._network = RowNetwork(lift, run.method.tail, run.method.classifier, order)
        self._made_by: dict[str, Any] = {
            "method": config.method.name,
            "options": dict(config.method.options),
            "seed": seed,
        }
        self._set_sizes(len(known))
        self.transduction_ = self.classes_[np.where(target >= 0, target, self._network.scores(X).argmax(1))]
        return self

    def _set_sizes(self, known: int) -> None:
        self._n_known = known
        self.n_classes_ = len(self.classes_)
        self.novel_classes_ = self.classes_[known:]
        self._n_features_out = self._network.tail.out_dim

    def _config(self, known: np.ndarray, target: np.ndarray, seed: int) -> RunConfig:
        """The parameters as a run's configuration, with what depends on the size of the data filled in."""
        rows, least, complete = len(target), max(2, len(known)), bool((target >= 0).all())
        classes = _plain(self.n_classes)
        if isinstance(classes, str) and classes == "auto":
            if complete and len(known) < 2:
                raise InputError("y has only one class, and every row belongs to it: there is nothing to tell apart.")
            if rows < 4 and not complete:
                raise InputError(f"n_classes='auto' cannot be estimated from n_samples={rows}: give a number.")
            classes = len(known) if complete else "auto"
        elif not isinstance(classes, int) or not least <= classes <= rows:
            raise InputError(
                f"n_classes={classes!r} is neither 'auto' nor a whole number from {least} (the classes there are at least) "
                f"to {rows} (the rows)."
            )
        epochs = _plain(self.epochs)
        if epochs is None and complete:
            epochs = int(np.clip(rows // 50, 10, 50))  # labels for all: there is nothing to discover
        train = {
            "epochs": epochs,
            "batch_size": _plain(self.batch_size),
            "lr": _plain(self.lr),
            "device": self.device,
        }
        return build_config(
            {
                "encoder": {"name": "identity"},
                "method": {"name": self.method, "options": dict(self.method_options or {})},
                "train": train,
                "classes": classes,
                "seed": seed,
            },
            where=type(self).__name__,
        )

    def _checked(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        checked: np.ndarray = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        return checked

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probability of each class, columns as in `classes_`: (n_samples, n_classes_); each row on its own."""
        X = self._checked(X)
        return self._network.scores(X)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each row: a known label or a novel id."""
        best = self.predict_proba(X).argmax(1)
        labels: np.ndarray = self.classes_[best]
        return labels

    def transform(self, X: Any) -> np.ndarray:
        """The trained feature of each row, of length 1: (n_samples, n_features_out)."""
        X = self._checked(X)
        return self._network.features(X).astype(X.dtype)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy on the rows whose label is a known class; the others (unlabelled, or of a novel class) do not count.

        A novel class has an id and no name, so there is nothing its rows could be compared with; `rowssl.evaluation`
        matches ids with true classes. Without a row to count the score is NaN, with a warning.
        """
        predicted = self.predict_proba(X).argmax(1)
        place = {label: i for i, label in enumerate(self.classes_[: self._n_known].tolist())}
        truth = np.array([place.get(label, -1) for label in one_column(y).tolist()])
        check_consistent_length(predicted, truth, sample_weight)
        counted = truth >= 0
        if not counted.any():
            warnings.warn("no row of y has a known class: the score is NaN", UndefinedMetricWarning, stacklevel=2)
            return float("nan")
        weight = None if sample_weight is None else np.asarray(sample_weight)[counted]
        return float(np.average(predicted[counted] == truth[counted], weights=weight))

    def save(self, path: str | Path) -> None:
        """Write a folder of safetensors and JSON; nothing in it is a pickle. An existing folder is replaced."""
        check_is_fitted(self)
        parameters = self.get_params(deep=False)
        if isinstance(self.random_state, np.random.RandomState | np.random.Generator):
            parameters["random_state"] = self._made_by["seed"]
        place = {label: i for i, label in enumerate(self.classes_.tolist())}
        facts = {
            "estimator": _plain(parameters),
            "made_by": _plain(self._made_by),
            "classes": self.classes_.tolist(),
            "dtype": self.classes_.dtype.str,
            "n_known": self._n_known,
            "n_features": self.n_features_in_,
            "feature_names": list(getattr(self, "feature_names_in_", [])),
            "version": __version__,
        }
        tensors = self._network.tensors()
        tensors["training"] = {"transduction": torch.tensor([place[label] for label in self.transduction_.tolist()])}
        try:
            json.dumps(facts)
        except TypeError as error:
            raise InputError(f"{path} cannot be written: a parameter cannot be kept as JSON ({error}).") from error
        write_directory(Path(path), tensors, facts)

    @classmethod
    def load(cls, path: str | Path) -> OpenWorldClassifier:
        """What `save` wrote, predicting the same; InputError names the file that is missing or damaged."""
        tensors, facts = read_directory(Path(path))
        if "estimator" not in facts:
            raise InputError(f"{path} was not written by {cls.__name__}.save.")
        try:
            loaded = cls(**facts["estimator"])
            loaded.classes_ = np.array(facts["classes"], dtype=np.dtype(facts["dtype"]))
            loaded.n_features_in_ = facts["n_features"]
            if facts["feature_names"]:
                loaded.feature_names_in_ = np.array(facts["feature_names"], dtype=object)
            loaded._made_by = facts["made_by"]
            loaded._network = RowNetwork.from_tensors(tensors, **loaded._made_by)
            loaded._set_sizes(facts["n_known"])
            loaded.transduction_ = loaded.classes_[tensors["training"]["transduction"].numpy()]
        except (KeyError, TypeError, ValueError, RuntimeError, IndexError) as error:
            raise InputError(f"{path} does not hold a whole model: {' '.join(str(error).split())[:160]}.") from error
        return loaded


def _plain(value: Any) -> Any:
    """NumPy's numbers as Python's, at any depth: a parameter grid made by NumPy has them."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value
