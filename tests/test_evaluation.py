"""The protocol's numbers on examples small enough to check by hand, its edge cases, and its speed."""

from __future__ import annotations

import io
import json
from itertools import permutations

import numpy as np
import pytest
from rich.console import Console

from rowssl.core.errors import InputError
from rowssl.evaluation import contingency, evaluate, evaluation_table, fit_matching, print_metrics, v1_accuracy

# Six samples of class 0, three of class 1, one of class 2 (novel). Cluster 2 is mostly class 0.
TRUTH = np.array([0, 0, 0, 0, 0, 0, 1, 1, 1, 2])
PREDICTED = np.array([2, 2, 2, 2, 0, 0, 0, 0, 1, 1])


def test_contingency_by_hand() -> None:
    counts = contingency(PREDICTED, TRUTH, n_clusters=4, n_classes=3)
    assert counts.tolist() == [[2, 2, 0], [0, 1, 1], [4, 0, 0], [0, 0, 0]]
    assert counts.dtype == np.int64


@pytest.mark.parametrize(
    ("predicted", "truth", "word"),
    [
        ([0, 1], [0], "2 predictions for 1"),
        ([0, -1], [0, 0], "predicted"),
        ([0, 3], [0, 0], "predicted"),
        ([0, 0], [0, 2], "truth"),
        ([0.0, 1.0], [0, 0], "whole numbers"),
        ([[0, 1]], [0, 1], "whole numbers"),
    ],
)
def test_contingency_names_the_mistake(predicted: list, truth: list, word: str) -> None:
    with pytest.raises(InputError, match=word):
        contingency(predicted, truth, n_clusters=3, n_classes=2)


def test_all_numbers_by_hand() -> None:
    found = evaluate(
        train_predicted=PREDICTED,
        train_truth=TRUTH,
        test_predicted=[2, 2, 0, 1, 1, 2],
        test_truth=[0, 0, 1, 1, 2, 2],
        recluster_predicted=[0, 0, 1, 1, 2, 2],
        n_old=2,
        n_classes=3,
        n_clusters=3,
        groups={"total": ["many", "few", "med"]},
    )
    metrics = found.metrics
    assert found.matching.class_of.tolist() == [1, 2, 0]  # 4 + 2 + 1 samples
    assert found.matching.cluster_of.tolist() == [2, 0, 1]
    assert metrics["tr_acc"] == pytest.approx({"all": 70.0, "old": 100 * 6 / 9, "new": 100.0})
    assert metrics["tr_bacc"] == pytest.approx({"all": 100 * 7 / 9, "old": 100 * 2 / 3, "new": 100.0})
    assert metrics["in_acc"] == pytest.approx({"all": 100 * 4 / 6, "old": 75.0, "new": 50.0})
    assert metrics["in_bacc"] == pytest.approx({"all": 100 * 2 / 3, "old": 75.0, "new": 50.0})
    assert metrics["in_bacc_recluster_rematch"] == {"all": 100.0, "old": 100.0, "new": 100.0}
    assert metrics["in_bacc_groups"]["total"] == {
        "known": {"many": 100.0, "med": None, "few": 50.0},
        "novel": {"many": None, "med": 50.0, "few": None},
        "all": {"many": 100.0, "med": 50.0, "few": 50.0},
    }
    assert metrics["tr_bacc_groups"]["total"]["known"] == pytest.approx({"many": 200 / 3, "med": None, "few": 200 / 3})
    assert metrics["weights"]["tr_acc"] == {"old": 9, "new": 1}
    assert metrics["weights"]["in_bacc"] == {"old": 2, "new": 1}
    assert found.confusion["train"].tolist() == [[4, 2, 0, 0], [0, 2, 1, 0], [0, 0, 1, 0]]
    assert found.recall_test.tolist() == [1.0, 0.5, 0.5]
    assert json.loads(json.dumps(metrics)) == metrics


def test_rematch_hides_a_swap() -> None:
    """Clusters that change their meaning between training and test: rematching reports 100, the frozen matching 0."""
    truth = np.repeat([0, 1], 5)
    found = evaluate(
        train_predicted=truth,
        train_truth=truth,
        test_predicted=1 - truth,
        test_truth=truth,
        n_old=1,
        n_classes=2,
        n_clusters=2,
    )
    assert found.metrics["in_bacc"]["all"] == 0.0
    assert found.metrics["in_bacc_rematch"]["all"] == 100.0


def test_v1_lets_a_cluster_serve_old_and_new() -> None:
    predicted, truth = [0, 0, 0, 0], [0, 0, 1, 1]
    assert v1_accuracy(predicted, truth, n_old=1, n_classes=2, n_clusters=1) == {
        "all": 100.0,
        "old": 100.0,
        "new": 100.0,
    }
    found = evaluate(train_predicted=predicted, train_truth=truth, n_old=1, n_classes=2, n_clusters=1)
    assert found.metrics["tr_acc"]["all"] == 50.0
    assert found.metrics["tr_acc_v1"]["all"] == 100.0


@pytest.mark.parametrize("n_classes", [2, 4, 7])
def test_brute_force_over_all_permutations(n_classes: int) -> None:
    rng = np.random.default_rng([3, n_classes])
    for _ in range(3):
        truth = rng.integers(0, n_classes, 60)
        predicted = np.where(rng.random(60) < 0.5, truth, rng.integers(0, n_classes, 60))
        counts = contingency(predicted, truth, n_clusters=n_classes, n_classes=n_classes)
        rates = counts / np.maximum(counts.sum(0), 1)
        columns = np.arange(n_classes)
        best_count = max(counts[list(p), columns].sum() for p in permutations(range(n_classes)))
        best_rate = max(rates[list(p), columns].sum() for p in permutations(range(n_classes)))
        sizes = {"n_clusters": n_classes, "n_classes": n_classes}
        by_count = fit_matching(predicted, truth, **sizes, on="count")
        by_rate = fit_matching(predicted, truth, **sizes, on="rate")
        assert (by_count.apply(predicted) == truth).sum() == best_count
        matched = by_rate.cluster_of >= 0
        assert rates[by_rate.cluster_of[matched], columns[matched]].sum() == pytest.approx(best_rate)


def test_more_clusters_than_classes_leaves_some_wrong() -> None:
    found = evaluate(train_predicted=[0, 0, 1, 2, 3], train_truth=[0, 0, 0, 1, 1], n_old=1, n_classes=2, n_clusters=5)
    assert found.metrics["tr_acc"]["all"] == pytest.approx(60.0)
    assert (found.matching.class_of == -1).sum() == 3
    assert found.confusion["train"][:, -1].tolist() == [1, 1]


def test_fewer_clusters_than_classes() -> None:
    found = evaluate(train_predicted=[0, 0, 0, 0], train_truth=[0, 0, 1, 2], n_old=2, n_classes=3, n_clusters=1)
    assert found.matching.cluster_of.tolist() == [0, -1, -1]
    assert found.metrics["tr_acc"] == pytest.approx({"all": 50.0, "old": 200 / 3, "new": 0.0})
    assert found.recall_train.tolist() == [1.0, 0.0, 0.0]


def test_a_pair_without_a_shared_sample_is_no_match() -> None:
    matching = fit_matching([0, 0, 0], [0, 0, 1], n_clusters=2, n_classes=2)
    assert matching.class_of.tolist() == [0, -1]
    assert matching.cluster_of.tolist() == [0, -1]


def test_classes_absent_from_the_test_set_are_skipped() -> None:
    found = evaluate(
        train_predicted=[0, 1, 2],
        train_truth=[0, 1, 2],
        test_predicted=[0, 0],
        test_truth=[0, 0],
        n_old=1,
        n_classes=3,
        n_clusters=3,
    )
    assert found.metrics["in_bacc"] == {"all": 100.0, "old": 100.0, "new": None}
    assert np.isnan(found.recall_test[1:]).all()
    assert found.metrics["weights"]["in_bacc"] == {"old": 1, "new": 0}


@pytest.mark.parametrize(("n_old", "empty", "full"), [(2, "new", "old"), (0, "old", "new")])
def test_without_novel_or_without_known_classes(n_old: int, empty: str, full: str) -> None:
    found = evaluate(
        train_predicted=[1, 0],
        train_truth=[0, 1],
        test_predicted=[1, 0],
        test_truth=[0, 1],
        n_old=n_old,
        n_classes=2,
        n_clusters=2,
    )
    for name in ("tr_acc", "tr_bacc", "in_acc", "in_bacc", "in_bacc_rematch", "tr_acc_v1"):
        assert found.metrics[name] == {"all": 100.0, full: 100.0, empty: None}


@pytest.mark.parametrize("test", [{}, {"test_predicted": [], "test_truth": []}])
def test_without_a_test_set(test: dict) -> None:
    found = evaluate(train_predicted=PREDICTED, train_truth=TRUTH, n_old=2, n_classes=3, n_clusters=3, **test)
    assert found.metrics["in_bacc"] == {"all": None, "old": None, "new": None}
    assert found.metrics["in_bacc_recluster_rematch"]["all"] is None
    assert found.confusion["test"].sum() == 0
    assert [row[0] for row in evaluation_table(found.metrics)] == [
        "Tr-ACC",
        "Tr-bACC",
        "Tr-ACC (v1)",
        "Tr-bACC (user)",
    ]


def test_what_cannot_be_evaluated_is_an_input_error() -> None:
    given = {"train_predicted": [0], "train_truth": [0], "n_old": 1, "n_classes": 1, "n_clusters": 1}
    for extra, word in [
        ({"test_predicted": [0]}, "together"),
        ({"recluster_predicted": [0]}, "test_truth"),
        ({"n_old": 2}, "n_old"),
        ({"groups": {"total": ["most"]}}, "many, med or few"),
        ({"groups": {"total": ["many", "few"]}}, "total"),
        ({"match_on": "luck"}, "luck"),
        ({"recluster_predicted": [-1], "test_predicted": [0], "test_truth": [0]}, "predicted"),
    ]:
        with pytest.raises(InputError, match=word):
            evaluate(**{**given, **extra})


def test_a_matching_is_applied_to_other_predictions() -> None:
    matching = fit_matching(PREDICTED, TRUTH, n_clusters=4, n_classes=3)
    assert matching.apply([3, 2]).tolist() == [-1, 0]
    with pytest.raises(InputError, match="predicted"):
        matching.apply([4])


def test_the_printed_table_names_every_protocol() -> None:
    found = evaluate(
        train_predicted=PREDICTED,
        train_truth=TRUTH,
        test_predicted=TRUTH,
        test_truth=TRUTH,
        recluster_predicted=TRUTH,
        n_old=2,
        n_classes=3,
        n_clusters=3,
        groups={"labelled": ["many", "few", "med"]},
    )
    text = io.StringIO()
    print_metrics(found.metrics, Console(file=text, width=160))
    for word in (
        "Tr-ACC",
        "Tr-bACC",
        "In-bACC",
        "In-bACC (rematch)",
        "In-bACC (recluster+rematch)",
        "Tr-bACC (user)",
        "In-bACC (user)",
        "labelled",
        "70.0",
    ):
        assert word in text.getvalue()


def test_a_user_wants_known_classes_by_their_names() -> None:
    """The protocol lets cluster 2, a novel one, be known class 0; a user does not."""
    found = evaluate(
        train_predicted=PREDICTED,
        train_truth=TRUTH,
        test_predicted=[2, 0, 1, 1, 2, 2],
        test_truth=[0, 0, 1, 0, 2, 2],
        n_old=2,
        n_classes=3,
        n_clusters=3,
    )
    assert found.matching.class_of.tolist() == [1, 2, 0]
    assert found.user_class_of.tolist() == [0, 1, -1]  # no image of class 2 lies in cluster 2
    assert found.metrics["user_tr_bacc"] == pytest.approx({"all": 100 * (2 / 6 + 1 / 3) / 3, "old": 100 / 3, "new": 0})
    assert found.metrics["user_in_bacc"] == pytest.approx({"all": 100 * (1 / 3 + 1) / 3, "old": 200 / 3, "new": 0})
    assert found.metrics["weights"]["user_in_bacc"] == {"old": 2, "new": 1}
    assert found.user_confusion["train"].tolist() == [[2, 0, 0, 4], [2, 1, 0, 0], [0, 1, 0, 0]]
    assert found.user_recall_test.tolist() == pytest.approx([1 / 3, 1, 0])


def test_parts_of_a_known_class_may_share_its_name() -> None:
    found = evaluate(
        train_predicted=[0, 1, 2, 2], train_truth=[0, 0, 1, 1], n_old=1, n_classes=2, n_clusters=3, named=[0, 0, -1]
    )
    assert found.metrics["user_tr_bacc"] == {"all": 100.0, "old": 100.0, "new": 100.0}
    assert found.metrics["tr_bacc"]["old"] == 50.0


def test_a_million_predictions_over_a_thousand_classes() -> None:
    """How long it takes is measured by benchmarks/clustering.py."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 1000, 1_000_000)
    predicted = np.where(rng.random(len(truth)) < 0.6, (truth * 7) % 1000, rng.integers(0, 1000, len(truth)))
    found = evaluate(train_predicted=predicted, train_truth=truth, n_old=500, n_classes=1000, n_clusters=1000)
    assert found.metrics["tr_acc"]["all"] == pytest.approx(60, abs=1)
