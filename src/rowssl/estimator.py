"""The scikit-learn face: every method as a classifier of rows of numbers, alone, in a Pipeline or in a grid search."""

from __future__ import annotations

import json
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data

from rowssl import __version__
from rowssl.checkpoint import read_directory, write_directory
from rowssl.config import RunConfig, build_config
from rowssl.data.table import Table
from rowssl.errors import InputError
from rowssl.estimator_labels import all_labels, one_column, read_labels, seed_of
from rowssl.estimator_network import RowNetwork, prepared
from rowssl.fit import fit as fit_problem
from rowssl.fit import threads_for
from rowssl.nn.lift import NARROW, fit_lift
from rowssl.problem import Problem
from rowssl.progress import quiet

# A fit sets the process's number of threads and the console for a while, so fits in several threads take turns.
_ONE_FIT = threading.Lock()


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

        A novel class has an id and no name, so there is nothing its rows could be compared with; `rowssl.evaluate`
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
