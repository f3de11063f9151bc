"""Options of a split that cannot be, the free `longtail` protocol, and the JSON file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rowssl.core.errors import InputError
from rowssl.data.benchmarks import load_benchmark
from rowssl.data.splits import Split, make_split

LABELS = np.tile(np.arange(6), 40)
TEST = np.tile(np.arange(6), 5)
NAMES = ["ant", "bee", "cat", "dog", "eel", "fly"]


def make(**options: Any) -> Split:
    return make_split(LABELS, TEST, **({"protocol": "longtail", "class_names": NAMES} | options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"protocol": "bcn"}, r"--protocol must be one of rowssl, bacon, gcd, longtail, not 'bcn'"),
        ({"prior": "same"}, r"--prior must be one of match, mismatch, uniform, not 'same'"),
        ({"setting": "sssl"}, r"--setting must be one of ssl, robust-ssl, lt-ssl, .*, rowssl, not 'sssl'"),
        ({"order": "last"}, r"--order must be one of first, random, not 'last'"),
        ({"mismatch": "none"}, r"--mismatch must be one of graded, reverse, not 'none'"),
        ({"gamma": 0.5}, r"--gamma must be a number of at least 1, not 0.5"),
        ({"gamma": float("nan")}, r"--gamma must be a number of at least 1, not nan"),
        ({"gamma": 100}, r"--gamma 100 leaves class cat no labelled image: use 20 or less"),
        ({"labelled_share": 1.0}, r"--labelled-share must be between 0 and 1, not 1.0"),
        (
            {"labelled_share": 0.01, "gamma": 1},
            r"--labelled-share 0.01 of a class of 40 images leaves no labelled image",
        ),
        ({"n_max": 1}, r"--n-max must be at least 2, not 1"),
        ({"n_max": 20}, r"--n-max has no effect with natural class sizes: leave it out"),
        ({"n_max": 50, "gamma": 2}, r"class ant has 40 images but the split needs 50: give a smaller --n-max than 50"),
        ({"mismatch": "graded", "gamma": 2}, r"--mismatch has no effect with an exponential profile: leave it out"),
        ({"seed": -1}, r"--seed must be between 0 and 4294967295, not -1"),
        ({"known": 0}, r"--known must be between 1 and the 6 classes of the table, not 0"),
        ({"known": 7}, r"--known must be between 1 and the 6 classes of the table, not 7"),
        ({"known": 1.5}, r"--known as a share must be between 0 and 1, not 1.5"),
        ({"known": []}, r"--known must name at least one class and none twice: none"),
        ({"known": [1, 1]}, r"--known must name at least one class and none twice: 1, 1"),
        ({"known": [6]}, r"--known: there is no class 6 among the 6 of the table"),
        ({"known": ["gnu"]}, r"--known: there is no class 'gnu' in the table"),
        ({"known": 6, "setting": "ncd"}, r"--setting ncd needs novel classes, but --known takes all 6"),
        ({"setting": "gcd", "gamma": 10}, r"--setting gcd is balanced, but --gamma 10 would not be"),
        ({"setting": "rowssl", "gamma": 1}, r"--setting rowssl is imbalanced, but --gamma 1 is balanced"),
        ({"setting": "lt-ssl"}, r"--setting lt-ssl is imbalanced, but the classes of the table are nearly equal"),
        ({"setting": "gcd", "prior": "uniform"}, r"--setting gcd has no distribution mismatch, but --prior uniform"),
        ({"setting": "gcd", "protocol": "gcd"}, r"--setting gcd needs --protocol rowssl or longtail, not gcd"),
        ({"protocol": "gcd", "gamma": 10}, r"--gamma has no effect with these class sizes: leave it out"),
        ({"protocol": "gcd", "prior": "mismatch"}, r"--prior has no effect with these class sizes: leave it out"),
        ({"protocol": "gcd", "labelled_share": 0.001}, r"--labelled-share 0.001 of 120 known-class images is not one"),
        ({"protocol": "bacon", "known": 3}, r"--known has no effect with --protocol bacon: leave it out"),
        (
            {"protocol": "rowssl", "dataset": "cifar100"},
            r"cifar100 has 100 classes but the table has 6: use --protocol",
        ),
    ],
)
def test_impossible_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        make(**options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ([0, 1, -1], [], "row 2 of the train table has no label"),
        ([0, 1, 9], [], "row 2 of the train table has class 9 of only 6"),
        ([0, 1, 2, 3, 5], [], "class eel has no image in the train table"),
        ([], [], "the train table has no rows to split"),
        ([0.5, 1.0], [], "the labels of the train table must be one list of class ids"),
        (LABELS, [0, -1], "row 1 of the test table has no label"),
        (LABELS, [7], "row 0 of the test table has class 7 of only 6"),
    ],
)
def test_impossible_labels(train: list[int], test: list[int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_split(train, test, protocol="longtail", class_names=NAMES)


def test_known_classes_by_number_share_id_and_name() -> None:
    assert make(known=2).known_classes == (0, 1)
    assert make(known=1 / 3).known_classes == (0, 1)
    assert make(known=[4, 1]).known_classes == (4, 1)
    assert make(known=["eel", "bee"]).known_classes == (4, 1)
    assert make(known=[4, 1]).novel_classes == (0, 2, 3, 5)
    shuffled = make(known=3, shuffle_classes=True, seed=5)
    assert sorted(shuffled.classes) == list(range(6))
    assert shuffled.classes != tuple(range(6))
    assert set(make(known=[4, 1], shuffle_classes=True).known_classes) == {1, 4}


def test_longtail_on_digits() -> None:
    train, test = load_benchmark("digits")
    smallest = [int(np.bincount(train.labels)[half].min()) for half in (slice(5), slice(5, 10))]
    split = make_split(train.labels, test.labels, protocol="longtail", dataset="digits", gamma=10, prior="mismatch")
    counts = split.counts(train.labels, test.labels)
    labelled = [row["labelled"] for row in counts["classes"]]
    unlabelled = [row["unlabelled"] for row in counts["classes"]]
    assert labelled[0] == smallest[0] // 2
    assert labelled[4] == labelled[0] // 10
    assert unlabelled[5:] == sorted(unlabelled[5:])
    assert unlabelled[9] == smallest[1]
    assert [row["test"] for row in counts["classes"]] == [50] * 10


def test_order_first_and_random() -> None:
    first = make(gamma=2, order="first", seed=1)
    assert first.sha256() == make(gamma=2, order="first", seed=2).sha256()
    assert first.labelled[LABELS[first.labelled] == 0].tolist() == list(range(0, 120, 6))
    assert make(gamma=2, seed=1).sha256() != make(gamma=2, seed=2).sha256()
    assert make(gamma=2).recipe == make(gamma=2.0).recipe


def test_natural_priors() -> None:
    labels = np.repeat(np.arange(4), [40, 10, 30, 6])
    split = make_split(labels, protocol="longtail", prior="uniform")
    assert [(r["labelled"], r["unlabelled"]) for r in split.counts(labels)["classes"]] == [
        (20, 5),
        (5, 5),
        (0, 6),
        (0, 6),
    ]
    split = make_split(labels, protocol="longtail", prior="mismatch", mismatch="reverse")
    assert [(r["labelled"], r["unlabelled"]) for r in split.counts(labels)["classes"]] == [
        (20, 5),
        (5, 5),
        (0, 30),
        (0, 6),
    ]


def test_targets() -> None:
    split = make(known=[4, 1])
    assert split.targets([4, 1, 0, 2, 3, 5, -1, 99]).tolist() == [0, 1, 2, 3, 4, 5, -1, -1]
    assert make(setting="ssl", known=2).targets([0, 1, 2]).tolist() == [0, 1, -1]


def test_file_round_trip(tmp_path: Path) -> None:
    split = make(gamma=10, prior="mismatch", seed=7)
    path = tmp_path / "split.json"
    path.write_text("an older file")
    split.save(path)
    assert os.listdir(tmp_path) == ["split.json"]  # no temporary file is left
    loaded = Split.load(path, n_train=len(LABELS), n_test=len(TEST))
    for name in ("labelled", "unlabelled", "test", "known_classes", "novel_classes"):
        assert list(getattr(loaded, name)) == list(getattr(split, name))
    assert (loaded.recipe, loaded.seed, loaded.class_names) == (split.recipe, 7, tuple(NAMES))
    assert loaded.class_counts == split.counts(LABELS, TEST)
    content = json.loads(path.read_text())
    assert content["format"] == 1
    assert content["counts"]["labelled"] == len(split.labelled)
    assert content["counts"]["classes"][0] | {"test": 5} == content["counts"]["classes"][0]
    split.save(tmp_path / "new" / "split.json")
    assert (tmp_path / "new" / "split.json").read_text() == path.read_text()
    with pytest.raises(InputError, match=r"split\.json cannot be written"):
        split.save(path / "split.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "has split format 2, this version reads format 1"),
        ({"labelled": "all"}, "`labelled` must be a list of integers"),
        ({"labelled": [0.5]}, "`labelled` must be a list of integers"),
        ({"labelled": [True]}, "`labelled` must be a list of integers"),
        ({"unlabelled": [-1]}, "`unlabelled` must be a list of integers"),
        ({"test": [10**30]}, "`test` must be a list of integers"),
        ({"labelled": [3, 3]}, "labelled rows of a split must be distinct"),
        ({"labelled": [3], "unlabelled": [3]}, "row 3 of a split is both labelled and unlabelled"),
        ({"known_classes": [0], "novel_classes": [0]}, "classes of a split must be distinct"),
        ({"known_classes": [0, 6]}, "a class id is beyond the 6 class names"),
        ({"labelled": [999]}, "labelled row 999 is not in a table of 240 rows"),
        ({"test": [30]}, "test row 30 is not in a table of 30 rows"),
        ({"labelled": [0]}, "do not match their sha256"),
        ({"sha256": None}, "do not match their sha256"),
        ({"recipe": []}, "`recipe` must be an object and `seed` an integer"),
        ({"seed": "0"}, "`recipe` must be an object and `seed` an integer"),
        ({"class_names": [1]}, "`class_names` must be a list of strings"),
        ({"known_classes": None}, "`known_classes` must be a list of integers"),
    ],
)
def test_damaged_file(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "split.json"
    make(gamma=2).save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InputError, match=message) as caught:
        Split.load(path, n_train=len(LABELS), n_test=len(TEST))
    assert "split.json" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("[1]", "no `format` number"),
        ("{}", "no `format` number"),
        ("[" * 9999, "not valid JSON"),
    ],
)
def test_file_that_is_no_split(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "split.json"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        Split.load(path)
    with pytest.raises(InputError, match="cannot read the split"):
        Split.load(tmp_path / "absent.json")
    path.write_bytes(b"\xff\xfe{")
    with pytest.raises(InputError, match="not valid JSON"):
        Split.load(path)
