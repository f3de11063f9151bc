"""The scikit-learn face: scikit-learn's own suite for every method, discovery, files, and what a program may rely on."""

from __future__ import annotations

import random
import re
import runpy
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits, make_blobs
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import rowssl
from rowssl.core.errors import InputError
from rowssl.encoders.fourier import fit_lift
from rowssl.evaluation import fit_matching
from rowssl.methods import METHODS
from rowssl.sklearn import OpenWorldClassifier

ROOT = Path(__file__).resolve().parents[1]


def five_blobs(features: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of five classes, their truth, and y: classes 0..2 known, half of their rows labelled."""
    X, truth = make_blobs(150, centers=5, n_features=features, cluster_std=0.6, random_state=3)
    labelled = (truth < 3) & (np.random.default_rng(0).random(150) < 0.5)
    return X, truth, np.where(labelled, truth, -1)


def quick(method: str = "simgcd", **more: Any) -> OpenWorldClassifier:
    """A classifier that is fitted in a moment."""
    return OpenWorldClassifier(method, **{"n_classes": 5, "epochs": 3, **more})


@pytest.mark.parametrize("method", METHODS)
def test_scikit_learns_own_suite_passes(method: str) -> None:
    results = check_estimator(OpenWorldClassifier(method), on_skip=None, on_fail="raise")
    assert len(results) > 50
    assert {result["status"] for result in results} <= {"passed", "skipped"}
    assert not any(result["expected_to_fail"] for result in results)
    missing = (
        "pandas is not installed",
        "SCIPY_ARRAY_API is not set",
    )  # what a machine may lack, not what we cannot do
    skipped = [str(result["exception"]) for result in results if result["status"] == "skipped"]
    assert all(text.startswith(missing) for text in skipped)


@pytest.mark.parametrize("features", [3, 24])
@pytest.mark.parametrize("method", ["kmeans", "gcd", "simgcd", "dts"])
def test_known_classes_keep_their_labels_and_novel_ones_are_found(method: str, features: int) -> None:
    X, truth, y = five_blobs(features)
    model = OpenWorldClassifier(method, n_classes=5, epochs=50).fit(X, y)
    np.testing.assert_array_equal(model.classes_, [0, 1, 2, 3, 4])
    np.testing.assert_array_equal(model.novel_classes_, [3, 4])
    assert model.score(X, truth) > 0.95
    novel = truth >= 3
    predicted = model.predict(X)[novel] - 3
    assert (predicted >= 0).mean() > 0.95
    matching = fit_matching(np.maximum(predicted, 0), truth[novel] - 3, n_clusters=2, n_classes=2)
    assert (matching.apply(np.maximum(predicted, 0)) == truth[novel] - 3).mean() > 0.9


def test_the_number_of_classes_is_estimated() -> None:
    X, _, y = five_blobs(24)
    model = OpenWorldClassifier("kmeans").fit(X, y)
    assert model.n_classes_ == len(model.classes_) == 5


def test_predictions_agree_with_each_other_and_with_the_training_rows() -> None:
    X, _, y = five_blobs()
    model = quick(epochs=20).fit(X, y)
    probability = model.predict_proba(X)
    np.testing.assert_allclose(probability.sum(1), 1)
    np.testing.assert_array_equal(model.classes_[probability.argmax(1)], model.predict(X))
    np.testing.assert_array_equal(model.transduction_[y >= 0], y[y >= 0])
    np.testing.assert_array_equal(model.transduction_[y < 0], model.predict(X)[y < 0])
    np.testing.assert_allclose(np.linalg.norm(model.transform(X), axis=1), 1)
    alone = np.concatenate([model.predict_proba(row[None]) for row in X])
    np.testing.assert_allclose(alone, probability, rtol=0, atol=1e-12)


def test_novel_classes_come_largest_first() -> None:
    X, truth = make_blobs([60, 10, 50], n_features=20, random_state=0)
    model = quick("kmeans", n_classes=3).fit(X, np.where(truth == 0, 0, -1))
    np.testing.assert_array_equal(np.bincount(model.transduction_), [60, 50, 10])


@pytest.mark.parametrize("y", [None, np.full(150, -1), [None] * 150, np.full(150, "", dtype=object)])
def test_without_any_label_every_class_is_novel(y: Any) -> None:
    X, truth, _ = five_blobs(24)
    model = quick("kmeans").fit(X, y)
    np.testing.assert_array_equal(model.novel_classes_, [0, 1, 2, 3, 4])
    matching = fit_matching(model.transduction_, truth, n_clusters=5, n_classes=5)
    assert (matching.apply(model.transduction_) == truth).mean() > 0.95
    with pytest.warns(UndefinedMetricWarning):
        assert np.isnan(model.score(X, truth))


def test_with_all_labels_no_class_is_novel() -> None:
    X, truth, _ = five_blobs()
    model = OpenWorldClassifier().fit(X, truth)
    assert model.n_classes_ == 5
    assert len(model.novel_classes_) == 0
    assert model.score(X, truth) > 0.95


def test_score_counts_known_classes_alone() -> None:
    X, truth, y = five_blobs(24)
    model = quick("kmeans").fit(X, y)
    known = truth < 3
    right = model.predict(X) == truth
    assert model.score(X, truth) == right[known].mean()
    assert model.score(X, np.where(known, truth, -1)) == model.score(X, truth)
    weight = np.arange(150.0)
    assert model.score(X, truth, weight) == np.average(right[known], weights=weight[known])


def test_pipeline_clone_and_search() -> None:
    X, _, y = five_blobs()
    pipeline = make_pipeline(StandardScaler(), quick())
    assert set(np.unique(pipeline.fit(X, y).predict(X))) <= set(range(5))
    copy = clone(pipeline[-1])
    assert copy.get_params() == pipeline[-1].get_params()
    assert not hasattr(copy, "classes_")
    grid = {"method": ["kmeans", "simgcd"], "epochs": np.array([1, 2]), "n_classes": np.array([4, 5])}
    search = GridSearchCV(quick(), grid, cv=2, error_score="raise").fit(X, y)
    assert search.best_score_ > 0.5
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    scores = cross_val_score(make_pipeline(StandardScaler(), quick("kmeans")), X, y, cv=3, error_score="raise")
    assert scores.shape == (3,)
    assert (scores > 0.8).all()


def test_features_can_feed_another_model() -> None:
    from sklearn.neighbors import KNeighborsClassifier

    X, truth, y = five_blobs()
    known = truth < 3
    features = quick(epochs=20).fit(X, y)
    assert features.get_feature_names_out()[0] == "openworldclassifier0"
    both = make_pipeline(features, KNeighborsClassifier()).fit(X[known], truth[known])
    assert both.score(X[known], truth[known]) > 0.95


def everything_random() -> tuple[Any, ...]:
    """The global state a fit must leave alone."""
    numpy_state = np.random.get_state()[1].tobytes()  # type: ignore[union-attr, index]  # noqa: NPY002
    return random.getstate(), numpy_state, torch.get_rng_state().numpy().tobytes(), torch.get_num_threads()


@pytest.mark.parametrize("method", METHODS)
def test_one_seed_one_model_and_nothing_global_is_touched(method: str) -> None:
    X, _, y = five_blobs(300)  # wide enough that steps would use all threads
    before = everything_random()
    first = quick(method, epochs=1, batch_size=128).fit(X, y).predict_proba(X)
    assert everything_random() == before
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        second = quick(method, epochs=1, batch_size=128).fit(X, y).predict_proba(X)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    np.testing.assert_array_equal(first, second)


def test_fits_in_several_threads_are_the_same() -> None:
    X, _, y = five_blobs()
    alone = [quick(random_state=seed).fit(X, y).predict_proba(X) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda seed: quick(random_state=seed).fit(X, y).predict_proba(X), range(4)))
    np.testing.assert_array_equal(alone, together)
    assert not np.array_equal(alone[0], alone[1])


def test_random_state_may_be_a_generator() -> None:
    X, _, y = five_blobs()
    old = [quick(random_state=np.random.RandomState(0)).fit(X, y).predict_proba(X) for _ in range(2)]
    new = [quick(random_state=np.random.default_rng(0)).fit(X, y).predict_proba(X) for _ in range(2)]
    np.testing.assert_array_equal(*old)
    np.testing.assert_array_equal(*new)
    fresh = [quick(random_state=None).fit(X, y).predict_proba(X) for _ in range(2)]
    assert not np.array_equal(*fresh)


def test_it_is_quiet_unless_asked(capsys: pytest.CaptureFixture[str]) -> None:
    X, _, y = five_blobs()
    quick().fit(X, y)
    assert capsys.readouterr() == ("", "")
    quick(verbose=True).fit(X, y)
    assert "5 classes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"method": "nothing"}, "There is no method 'nothing'"),
        ({"method_options": {"nothing": 1}}, "nothing"),
        ({"n_classes": 2}, "from 3"),
        ({"n_classes": 151}, "to 150"),
        ({"n_classes": "many"}, "'many' is neither"),
        ({"epochs": 0}, "epochs"),
        ({"batch_size": 1}, "batch_size"),
        ({"lr": -1.0}, "lr"),
        ({"random_state": -1}, "random_state=-1"),
    ],
)
def test_a_wrong_parameter_is_named(parameters: dict[str, Any], words: str) -> None:
    X, _, y = five_blobs()
    with pytest.raises(InputError, match=re.escape(words)):
        quick(**parameters).fit(X, y)


def test_numbers_beyond_reach() -> None:
    X, _, y = five_blobs(24)
    model = quick("kmeans").fit(X, y)
    with pytest.raises(ValueError, match="too large for dtype"):
        model.predict(X * 1e200)
    narrow = quick("kmeans").fit(X[:, :2] + 1.7e9, y)  # float32 would round these to a handful of values
    assert narrow.score(X[:, :2] + 1.7e9, y) > 0.8


def test_the_lift_is_a_gaussian_kernel() -> None:
    X = np.random.default_rng(0).normal(5.0, 3.0, size=(40, 4))
    lifted = fit_lift(X, 0)(torch.from_numpy(X))
    standard = (X - X.mean(0)) / X.std(0)
    distance = ((standard[:, None] - standard[None]) ** 2).sum(2)
    np.testing.assert_allclose(lifted.norm(dim=1), 1)
    assert np.abs((lifted @ lifted.T).numpy() - np.exp(-distance / 8)).mean() < 0.1


def test_importing_the_package_is_cheap() -> None:
    code = (
        "import sys, rowssl; assert not {'torch', 'numpy', 'sklearn'} & set(sys.modules); rowssl.OpenWorldClassifier()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert rowssl.OpenWorldClassifier is OpenWorldClassifier
    with pytest.raises(AttributeError):
        _ = rowssl.nothing


def test_the_example_of_the_documentation_runs() -> None:
    text = (ROOT / "docs" / "estimator.md").read_text(encoding="utf-8")
    (code, *_) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    truth = load_digits(return_X_y=True)[1][:600]
    assert names["model"].n_classes_ == 10
    known, given = truth < 6, names["y"] >= 0
    assert (names["model"].transduction_[known & ~given] == truth[known & ~given]).mean() > 0.9


def test_the_example_program_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "estimator.py"), run_name="__main__")
    assert "novel" in capsys.readouterr().out
