"""The scikit-learn face: what counts as a label, what novel classes are called, and the files of a saved model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import make_blobs

from rowssl.core.errors import InputError
from rowssl.methods import METHODS
from rowssl.sklearn import OpenWorldClassifier


def rows(features: int = 20) -> tuple[np.ndarray, np.ndarray]:
    """120 rows of four classes."""
    return make_blobs(120, centers=4, n_features=features, cluster_std=0.5, random_state=1)


def fitted(y: Any, **more: Any) -> OpenWorldClassifier:
    """k-means with four classes."""
    return OpenWorldClassifier("kmeans", **{"n_classes": 4, **more}).fit(rows()[0], y)


HOLES: dict[str, Any] = {"none": None, "nan": float("nan"), "empty": ""}


@pytest.mark.parametrize("hole", HOLES)
@pytest.mark.parametrize("container", [list, lambda y: np.array(y, dtype=object)], ids=["list", "array"])
def test_text_labels_with_holes(hole: str, container: Any) -> None:
    X, truth = rows()
    y = container([("oak", "elm")[c] if c < 2 and i % 2 else HOLES[hole] for i, c in enumerate(truth)])
    model = fitted(y)
    assert model.classes_.tolist() == ["elm", "oak", "novel-01", "novel-02"]
    assert model.novel_classes_.tolist() == ["novel-01", "novel-02"]
    names = np.array(["oak", "elm", "?", "?"])[truth]
    known = truth < 2
    np.testing.assert_array_equal(model.predict(X)[known], names[known])
    assert model.score(X, y) == 1.0


def test_text_of_fixed_width_has_room_for_novel_names() -> None:
    y = np.array(["a", "b", "", ""])[rows()[1]]
    assert y.dtype.kind == "U"
    model = fitted(y)
    assert model.classes_.tolist() == ["a", "b", "novel-01", "novel-02"]
    assert model.transduction_.dtype == model.predict(rows()[0]).dtype == model.classes_.dtype


def test_a_class_may_be_called_like_a_novel_one() -> None:
    y = np.array(["novel-01", "b", "", ""])[rows()[1]]
    assert fitted(y).classes_.tolist() == ["b", "novel-01", "novel-02", "novel-03"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([3, 7, -1, -1]), [3, 7, 8, 9]),
        (np.array([0, 1, -1, -1], dtype=np.int8), [0, 1, 2, 3]),
        (np.array([2.0, 5.0, -1.0, -1.0]), [2.0, 5.0, 6.0, 7.0]),
        (np.array([-9, -4, -1, -1]), [-9, -4, 0, 1]),
        (np.array([126, 127, -1, -1], dtype=np.int8), [126, 127, 128, 129]),
        (np.array([4, 2, None, None]), [2, 4, 5, 6]),
        (np.array([True, False, None, None]), [0, 1, 2, 3]),
    ],
)
def test_novel_ids_of_numbers_follow_the_largest_label(values: np.ndarray, expected: list[float]) -> None:
    model = fitted(values[rows()[1]])
    assert model.classes_.tolist() == expected
    if values.dtype.kind in "if" and max(expected) < 128:
        assert model.classes_.dtype == values.dtype
    assert model.predict(rows()[0]).dtype == model.classes_.dtype


def test_another_value_can_mark_unlabelled_rows() -> None:
    model = fitted(np.array([-1, 2, 4, 4])[rows()[1]], unlabelled=4)
    assert model.classes_.tolist() == [-1, 2, 3, 5]
    model = fitted(np.array(["a", "b", "?", "?"])[rows()[1]], unlabelled="?")
    assert model.classes_.tolist() == ["a", "b", "novel-01", "novel-02"]


def test_nothing_but_minus_one_and_one() -> None:
    y = np.array([-1, 1, -1, 1])[rows()[1]]
    with pytest.warns(UserWarning, match="unlabelled=-1 reads it as one known class"):
        assert fitted(y, n_classes="auto").classes_.tolist() == [-1, 1]
    assert fitted(y, unlabelled=-1).classes_.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("y", "words"),
    [
        ([0, "a"] * 60, "Unknown label type"),
        (np.linspace(0, 1, 120), "continuous"),
        ([0, float("nan")] * 60, "Input y contains NaN"),
        ([0, 1], "inconsistent numbers of samples"),
        ([1] * 120, "only one class"),
    ],
)
def test_labels_that_cannot_be_used(y: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        fitted(y, n_classes="auto")


@pytest.mark.parametrize("count", [2, 3, 4, 7])
def test_a_handful_of_rows(count: int) -> None:
    X = np.random.default_rng(0).normal(size=(count, 3))
    if count < 4:
        with pytest.raises(InputError, match=f"n_samples={count}"):
            OpenWorldClassifier(epochs=1).fit(X)
        model = OpenWorldClassifier(n_classes=2, epochs=1).fit(X)
    else:
        model = OpenWorldClassifier(epochs=1).fit(X)
    assert model.transduction_.shape == (count,)


@pytest.mark.parametrize("features", [3, 20])
@pytest.mark.parametrize("method", METHODS)
def test_a_loaded_model_is_the_saved_one(method: str, features: int, tmp_path: Path) -> None:
    X, truth = rows(features)
    options = {"n_prompts": 3} if method == "promptcal" else None
    model = OpenWorldClassifier(method, n_classes=np.int64(4), epochs=2, method_options=options, random_state=5)
    model.fit(X.astype(np.float32), np.where(truth < 2, truth, -1))
    model.save(tmp_path / "model")
    assert {path.suffix for path in (tmp_path / "model").iterdir()} == {".safetensors", ".json"}
    loaded = OpenWorldClassifier.load(tmp_path / "model")
    assert loaded.get_params() == model.get_params()
    for name in ("classes_", "novel_classes_", "transduction_", "n_classes_", "n_features_in_"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(model, name))
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
    np.testing.assert_array_equal(loaded.transform(X), model.transform(X))
    assert loaded.score(X, truth) == model.score(X, truth)
    with pytest.raises(ValueError, match=f"expecting {features} features"):
        loaded.predict(X[:, :2])


@pytest.mark.parametrize("values", [["a", "b", "", ""], [None, "b", "c", None], [1.0, -1.0, 2.0, 3.0]])
def test_labels_of_any_type_are_saved(values: list[Any], tmp_path: Path) -> None:
    model = fitted([values[c] for c in rows()[1]], random_state=np.random.default_rng(1))
    model.set_params(method="dts", method_options={"queue_size": 8})  # after the fit: not what the weights came from
    model.save(tmp_path / "model")
    loaded = OpenWorldClassifier.load(tmp_path / "model")
    assert loaded.classes_.dtype == model.classes_.dtype
    np.testing.assert_array_equal(loaded.predict(rows()[0]), model.predict(rows()[0]))


def test_a_damaged_model_is_refused(tmp_path: Path) -> None:
    y = np.where(rows()[1] < 2, rows()[1], -1)
    fitted(y).save(tmp_path / "model")
    weights = tmp_path / "model" / "tail.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(InputError, match=r"tail\.safetensors is missing or damaged"):
        OpenWorldClassifier.load(tmp_path / "model")
    with pytest.raises(InputError, match="missing or damaged"):
        OpenWorldClassifier.load(tmp_path / "nothing")


def test_parameters_that_json_cannot_hold(tmp_path: Path) -> None:
    model = fitted(np.where(rows()[1] < 2, rows()[1], -1)).set_params(unlabelled=object())
    with pytest.raises(InputError, match="cannot be kept as JSON"):
        model.save(tmp_path / "model")
    assert not list(tmp_path.iterdir())
