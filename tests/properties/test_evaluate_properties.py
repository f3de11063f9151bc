"""Laws that every evaluation obeys, whatever the predictions."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rowssl.evaluation import NAMES, contingency, evaluate, fit_matching

many = settings(max_examples=200, deadline=None)
ORDERS = {side: np.array(list(permutations(range(side)))) for side in range(1, 8)}


@st.composite
def problems(draw: st.DrawFn, max_clusters: int = 9) -> dict[str, Any]:
    """Keyword arguments of `evaluate`: small sets with many ties, empty classes and unused clusters."""
    n_classes = draw(st.integers(1, 7))
    n_clusters = draw(st.integers(1, max_clusters))

    def ids(limit: int, size: int) -> np.ndarray:
        return np.array(draw(st.lists(st.integers(0, limit - 1), min_size=size, max_size=size)), dtype=np.int64)

    train, test = draw(st.integers(1, 40)), draw(st.integers(0, 30))
    return {
        "train_predicted": ids(n_clusters, train),
        "train_truth": ids(n_classes, train),
        "test_predicted": ids(n_clusters, test),
        "test_truth": ids(n_classes, test),
        "recluster_predicted": ids(n_clusters, test),
        "n_old": draw(st.integers(0, n_classes)),
        "n_classes": n_classes,
        "n_clusters": n_clusters,
        "match_on": draw(st.sampled_from(["count", "rate"])),
    }


@many
@given(problems(), st.randoms(use_true_random=False))
def test_renaming_clusters_changes_nothing(problem: dict[str, Any], random: Any) -> None:
    name = np.array(random.sample(range(problem["n_clusters"]), problem["n_clusters"]), dtype=np.int64)
    renamed = {key: name[problem[key]] for key in ("train_predicted", "test_predicted", "recluster_predicted")}
    groups = {"total": [("many", "med", "few")[c % 3] for c in range(problem["n_classes"])]}
    own = np.arange(problem["n_clusters"])
    called = np.where(own < problem["n_old"], own, -1)  # renamed, a cluster is still called what it was called
    before = evaluate(**problem, groups=groups)
    after = evaluate(**{**problem, **renamed}, groups=groups, named=called[np.argsort(name)])
    assert after.metrics == before.metrics
    assert np.array_equal(after.confusion["test"], before.confusion["test"])
    assert np.array_equal(after.matching.class_of[name], before.matching.class_of)


@many
@given(problems(), st.randoms(use_true_random=False))
def test_the_order_of_training_rows_does_not_change_training_numbers(problem: dict[str, Any], random: Any) -> None:
    size = len(problem["train_truth"])
    order = np.array(random.sample(range(size), size), dtype=np.int64)
    shuffled = {key: problem[key][order] for key in ("train_predicted", "train_truth")}
    before, after = evaluate(**problem).metrics, evaluate(**{**problem, **shuffled}).metrics
    for key in ("tr_acc", "tr_bacc", "tr_acc_v1"):
        assert after[key] == before[key]


@many
@given(problems())
def test_all_is_the_weighted_mean_of_old_and_new(problem: dict[str, Any]) -> None:
    metrics = evaluate(**problem).metrics
    for name in NAMES:
        parts, weights = metrics[name], metrics["weights"][name]
        total = weights["old"] + weights["new"]
        if total == 0:
            assert parts == {"all": None, "old": None, "new": None}
            continue
        assert all((parts[side] is None) == (weights[side] == 0) for side in ("old", "new"))
        mean = sum(weights[side] * (parts[side] or 0.0) for side in ("old", "new")) / total
        assert parts["all"] == pytest.approx(mean, abs=1e-9)


@many
@given(problems())
def test_rematching_never_lowers_the_number(problem: dict[str, Any]) -> None:
    metrics = evaluate(**problem).metrics
    assume(len(problem["test_truth"]) > 0)
    assert metrics["in_bacc_rematch"]["all"] >= metrics["in_bacc"]["all"] - 1e-9
    sizes = {"n_clusters": problem["n_clusters"], "n_classes": problem["n_classes"]}
    rematched = fit_matching(problem["test_predicted"], problem["test_truth"], on="count", **sizes)
    accuracy = 100 * (rematched.apply(problem["test_predicted"]) == problem["test_truth"]).mean()
    assert accuracy >= metrics["in_acc"]["all"] - 1e-9


@many
@given(st.data())
def test_on_balanced_data_bacc_is_acc(data: st.DataObject) -> None:
    n_classes, each = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 6))
    truth = np.repeat(np.arange(n_classes), each)
    size = len(truth)
    predicted = np.array(data.draw(st.lists(st.integers(0, 6), min_size=size, max_size=size)))
    sets = {"train_predicted": predicted, "train_truth": truth, "test_predicted": predicted[::-1], "test_truth": truth}
    n_old = data.draw(st.integers(0, n_classes))
    metrics = evaluate(**sets, n_old=n_old, n_classes=n_classes, n_clusters=7).metrics
    for side in ("all", "old", "new"):
        assert metrics["tr_bacc"][side] == pytest.approx(metrics["tr_acc"][side], abs=1e-9)
        assert metrics["in_bacc"][side] == pytest.approx(metrics["in_acc"][side], abs=1e-9)


@many
@given(problems(max_clusters=7))
def test_brute_force_finds_no_better_matching(problem: dict[str, Any]) -> None:
    predicted, truth, on = problem["train_predicted"], problem["train_truth"], problem["match_on"]
    n_clusters, n_classes = problem["n_clusters"], problem["n_classes"]
    weight = contingency(predicted, truth, n_clusters=n_clusters, n_classes=n_classes).astype(float)
    if on == "rate":
        weight /= np.maximum(weight.sum(0), 1)
    side = max(n_clusters, n_classes)
    square = np.zeros((side, side))
    square[:n_clusters, :n_classes] = weight
    best = square[np.arange(side), ORDERS[side]].sum(1).max()
    matching = fit_matching(predicted, truth, n_clusters=n_clusters, n_classes=n_classes, on=on)
    matched = np.flatnonzero(matching.class_of >= 0)
    assert weight[matched, matching.class_of[matched]].sum() == pytest.approx(best, abs=1e-9)
    assert np.array_equal(matching.cluster_of[matching.class_of[matched]], matched)


@many
@given(problems())
def test_the_unlabelled_set_as_test_set_reproduces_the_training_numbers(problem: dict[str, Any]) -> None:
    same = {"test_predicted": problem["train_predicted"], "test_truth": problem["train_truth"]}
    found = evaluate(**{**problem, **same, "recluster_predicted": None})
    assert found.metrics["in_bacc"] == found.metrics["tr_bacc"]
    assert found.metrics["in_acc"] == found.metrics["tr_acc"]
    assert np.array_equal(found.confusion["train"], found.confusion["test"])
    assert np.array_equal(found.recall_train, found.recall_test, equal_nan=True)


@many
@given(problems())
def test_separate_matchings_are_never_below_the_joint_one(problem: dict[str, Any]) -> None:
    metrics = evaluate(**problem).metrics
    assert metrics["tr_acc_v1"]["all"] >= metrics["tr_acc"]["all"] - 1e-9


@many
@given(problems())
def test_the_confusion_matrix_counts_every_sample_once(problem: dict[str, Any]) -> None:
    found = evaluate(**problem)
    for part, truth in (("train", problem["train_truth"]), ("test", problem["test_truth"])):
        confusion = found.confusion[part]
        assert np.array_equal(confusion.sum(1), np.bincount(truth, minlength=problem["n_classes"]))
        recall = found.recall_train if part == "train" else found.recall_test
        hits = np.where(np.isnan(recall), 0, recall) * confusion.sum(1)
        assert np.diagonal(confusion) == pytest.approx(hits)
