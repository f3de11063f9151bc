"""Accuracy of a clustering under one protocol: match clusters to classes once on the unlabelled set, freeze, apply.

Class ids are targets: known (Old) classes are 0..n_old-1, novel (New) ones n_old..C-1. Predictions are cluster ids. All
numbers are percentages, and the name of each says how it was made:

tr_acc, tr_bacc              unlabelled training set; share of samples, mean recall of the classes
in_acc, in_bacc              test set under the matching of the training set, so each row is judged on its own
in_bacc_rematch              test set under a new matching, fitted on the test set
in_bacc_recluster_rematch    the same for a new clustering of the test set
tr_acc_v1                    training set, Old and New matched separately (optimistic: a cluster may serve both)
user_tr_bacc, user_in_bacc   as a user judges: a known class must be called by its own name, and only novel clusters are matched
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rowssl.core.errors import InputError
from rowssl.core.frame import Frame

if TYPE_CHECKING:
    from rich.console import Console

GROUPS = ("many", "med", "few")
NAMES = {
    "tr_acc": "Tr-ACC",
    "tr_bacc": "Tr-bACC",
    "in_acc": "In-ACC",
    "in_bacc": "In-bACC",
    "in_bacc_rematch": "In-bACC (rematch)",
    "in_bacc_recluster_rematch": "In-bACC (recluster+rematch)",
    "tr_acc_v1": "Tr-ACC (v1)",
    "user_tr_bacc": "Tr-bACC (user)",
    "user_in_bacc": "In-bACC (user)",
}


def contingency(predicted: Any, truth: Any, *, n_clusters: int, n_classes: int) -> np.ndarray:
    """How often each cluster meets each class: int64 (n_clusters, n_classes)."""
    predicted, truth = _ids(predicted, n_clusters, "predicted"), _ids(truth, n_classes, "truth")
    if len(predicted) != len(truth):
        raise InputError(f"there are {len(predicted)} predictions for {len(truth)} true classes")
    counts = np.bincount(predicted * n_classes + truth, minlength=n_clusters * n_classes)
    return counts.reshape(n_clusters, n_classes)


@dataclass(frozen=True, eq=False)
class Matching:
    """A one-to-one matching of clusters and classes; -1 stands for no partner.

    Attributes
    ----------
    class_of : (n_clusters,) class of each cluster.
    cluster_of : (n_classes,) cluster of each class.
    """

    class_of: np.ndarray
    cluster_of: np.ndarray

    def apply(self, predicted: Any) -> np.ndarray:
        """Class id of each predicted cluster, -1 where the cluster has none."""
        return self.class_of[_ids(predicted, len(self.class_of), "predicted")]


def fit_matching(predicted: Any, truth: Any, *, n_clusters: int, n_classes: int, on: str = "count") -> Matching:
    """The matching of clusters to classes that explains the most (one Hungarian over all classes, known as v2).

    Parameters
    ----------
    predicted, truth : (N,) cluster ids and class ids.
    on : "count" maximises the number of matched samples (ACC), "rate" the sum of matched recalls (bACC).

    Notes
    -----
    A cluster and a class that share no sample stay unmatched: nothing speaks for the pair, and it would add nothing
    here and mere luck on other data. Ties are broken by the contents of the clusters, and between clusters of equal
    contents by which appears first, so renaming clusters never changes a result.
    """
    from scipy.optimize import linear_sum_assignment

    if on not in ("count", "rate"):
        raise InputError(f"a matching is made on count or rate, not {on!r}")
    counts = contingency(predicted, truth, n_clusters=n_clusters, n_classes=n_classes)
    order = _canonical_order(counts, np.asarray(predicted))
    weight = counts[order].astype(np.float64)
    if on == "rate":
        weight /= np.maximum(counts.sum(0), 1)
    rows, classes = linear_sum_assignment(weight, maximize=True)
    clusters = order[rows]
    shared = counts[clusters, classes] > 0
    class_of = np.full(n_clusters, -1, dtype=np.int64)
    cluster_of = np.full(n_classes, -1, dtype=np.int64)
    class_of[clusters[shared]] = classes[shared]
    cluster_of[classes[shared]] = clusters[shared]
    return Matching(class_of, cluster_of)


def v1_accuracy(predicted: Any, truth: Any, *, n_old: int, n_classes: int, n_clusters: int) -> dict[str, float | None]:
    """ACC in percent with one Hungarian for the Old samples and another for the New ones; All weighted by samples."""
    counts = contingency(predicted, truth, n_clusters=n_clusters, n_classes=n_classes)
    predicted, truth = np.asarray(predicted), np.asarray(truth)
    hits = np.zeros(n_classes, dtype=np.int64)
    for part in (truth < n_old, truth >= n_old):  # each part matches its own classes only
        hits += _hits(counts, fit_matching(predicted[part], truth[part], n_clusters=n_clusters, n_classes=n_classes))
    return _split(hits, counts.sum(0), n_old)


def user_matching(predicted: Any, truth: Any, named: Any, *, n_old: int, n_classes: int) -> np.ndarray:
    """The class that each cluster means to a user, -1 for none: (n_clusters,).

    Parameters
    ----------
    predicted, truth : (N,) cluster ids and class ids of the unlabelled training set.
    named : (n_clusters,) the known class that a cluster is called by, -1 for novel clusters. Several may have one name.

    Notes
    -----
    A name is a promise, so nothing is matched there. The novel clusters are matched one to one to the novel classes, by
    how many of their rows they share.
    """
    predicted, truth, named = np.asarray(predicted), np.asarray(truth), np.asarray(named)
    rows = (named < 0)[predicted] & (truth >= n_old)
    found = fit_matching(predicted[rows], truth[rows], n_clusters=len(named), n_classes=n_classes)
    return np.where(named < 0, found.class_of, named)


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """What `evaluate` found.

    Attributes
    ----------
    metrics : JSON-ready dict of percentages, `{name: {"all", "old", "new"}}` with None where there is nothing to count;
        `tr_bacc_groups` and `in_bacc_groups` as `{basis: {"known" | "novel" | "all": {"many", "med", "few"}}}`; and
        `weights`, the samples (ACC) or classes (bACC) behind the Old and the New part of each All.
    matching : fitted on the unlabelled training set.
    confusion : `{"train": ..., "test": ...}`, int64 (C, C + 1): true class by assigned class, last column unmatched.
    recall_train, recall_test : (C,) matched recall, 0 to 1, nan for a class without samples.
    user_class_of : (n_clusters,) the class each cluster means to a user, see `user_matching`.
    user_confusion, user_recall_train, user_recall_test : the same three under it.
    """

    metrics: dict[str, Any]
    matching: Matching
    confusion: dict[str, np.ndarray]
    recall_train: np.ndarray
    recall_test: np.ndarray
    user_class_of: np.ndarray
    user_confusion: dict[str, np.ndarray]
    user_recall_train: np.ndarray
    user_recall_test: np.ndarray

    @classmethod
    def without_truth(cls) -> Evaluation:
        """That of rows whose classes nobody knows: every number is None, and it counts as false."""
        none, empty = np.zeros(0, dtype=np.int64), np.zeros(0)
        confusion = {part: np.zeros((0, 1), dtype=np.int64) for part in ("train", "test")}
        numbers = dict.fromkeys(NAMES)
        return cls(numbers, Matching(none, none), confusion, empty, empty, none, confusion, empty, empty)

    def __bool__(self) -> bool:
        return len(self.matching.class_of) > 0

    @property
    def frame(self) -> Frame:
        """The numbers that exist, in percent, named as in the paper."""
        return Frame(("", "All %", "Old %", "New %"), evaluation_table(self.metrics))

    def to_pandas(self) -> Any:
        """A pandas DataFrame of the numbers."""
        return self.frame.to_pandas()

    def __repr__(self) -> str:
        return repr(self.frame)

    def _repr_html_(self) -> str:
        return self.frame._repr_html_()


def evaluate(
    *,
    train_predicted: Any,
    train_truth: Any,
    test_predicted: Any = None,
    test_truth: Any = None,
    recluster_predicted: Any = None,
    n_old: int,
    n_classes: int,
    n_clusters: int,
    groups: Mapping[str, Any] | None = None,
    match_on: str = "count",
    named: Any = None,
) -> Evaluation:
    """Every number of the protocol from cluster ids and true classes.

    Parameters
    ----------
    train_predicted, train_truth : cluster ids and classes of the unlabelled training set; the matching comes from here.
    test_predicted, test_truth : the same of the test set, predicted row by row.
    recluster_predicted : cluster ids of the test set from a clustering of the test set itself.
    n_old, n_classes, n_clusters : known classes, all classes, and the range of the cluster ids.
    groups : `{basis: (C,) array of "many", "med" or "few"}`.
    match_on : what the matching of the training set maximises, "count" (the protocol of the paper) or "rate".
    named : (n_clusters,) known class that each cluster is called by, -1 for novel ones; by default cluster i is known class i.

    Notes
    -----
    bACC averages over the classes that have samples. Rematched numbers are bACC, so the new matching maximises bACC
    ("rate") whatever `match_on` says: a rematch never lowers the number. On a balanced test set, such as the paper's,
    that is the same as matching on counts.
    """
    if not 0 <= n_old <= n_classes:
        raise InputError(f"n_old={n_old} must lie between 0 and n_classes={n_classes}")
    if (test_predicted is None) != (test_truth is None):
        raise InputError("test_predicted and test_truth must be given together")
    if recluster_predicted is not None and test_truth is None:
        raise InputError("recluster_predicted needs test_truth")
    masks = _group_masks(groups or {}, n_old, n_classes)
    sizes = {"n_clusters": n_clusters, "n_classes": n_classes}
    matching = fit_matching(train_predicted, train_truth, on=match_on, **sizes)
    nothing = np.zeros(0, dtype=np.int64)
    test_predicted, test_truth = (nothing, nothing) if test_truth is None else (test_predicted, test_truth)
    again, again_truth = (nothing, nothing) if recluster_predicted is None else (recluster_predicted, test_truth)
    again_sizes = {"n_clusters": int(np.max(again, initial=0)) + 1, "n_classes": n_classes}
    train = contingency(train_predicted, train_truth, **sizes)
    test = contingency(test_predicted, test_truth, **sizes)
    recluster = contingency(again, again_truth, **again_sizes)
    recall = {
        "tr_bacc": _recall(train, matching),
        "in_bacc": _recall(test, matching),
        "in_bacc_rematch": _recall(test, fit_matching(test_predicted, test_truth, on="rate", **sizes)),
        "in_bacc_recluster_rematch": _recall(recluster, fit_matching(again, again_truth, on="rate", **again_sizes)),
    }
    if named is None:
        named = np.where(np.arange(n_clusters) < n_old, np.arange(n_clusters), -1)
    user = user_matching(train_predicted, train_truth, named, n_old=n_old, n_classes=n_classes)
    recall |= {"user_tr_bacc": _called(train, user), "user_in_bacc": _called(test, user)}
    metrics: dict[str, Any] = {name: _balanced(values, n_old) for name, values in recall.items()}
    metrics["tr_acc"] = _split(_hits(train, matching), train.sum(0), n_old)
    metrics["in_acc"] = _split(_hits(test, matching), test.sum(0), n_old)
    metrics["tr_acc_v1"] = v1_accuracy(train_predicted, train_truth, n_old=n_old, **sizes)
    metrics |= {f"{name}_groups": _grouped(recall[name], masks) for name in ("tr_bacc", "in_bacc")}
    weights = {"tr_acc": train.sum(0), "tr_acc_v1": train.sum(0), "in_acc": test.sum(0)}
    weights |= {name: np.isfinite(values) for name, values in recall.items()}
    metrics["weights"] = {n: {"old": int(w[:n_old].sum()), "new": int(w[n_old:].sum())} for n, w in weights.items()}
    parts = {"train": train, "test": test}
    confusion, user_confusion = (
        {part: _confusion(counts, class_of) for part, counts in parts.items()} for class_of in (matching.class_of, user)
    )
    return Evaluation(
        metrics, matching, confusion, recall["tr_bacc"], recall["in_bacc"],
        user, user_confusion, recall["user_tr_bacc"], recall["user_in_bacc"],
    )  # fmt: skip


def evaluation_table(metrics: Mapping[str, Any]) -> list[tuple[str, float | None, float | None, float | None]]:
    """Rows (name, All, Old, New) in percent of the numbers that exist, with names as in the paper."""
    values = [(label, metrics.get(name) or {}) for name, label in NAMES.items()]
    return [(label, v["all"], v["old"], v["new"]) for label, v in values if v.get("all") is not None]


def print_metrics(metrics: Mapping[str, Any], console: Console) -> None:
    """Print the numbers, and Many / Med / Few where groups were given, as tables."""
    from rich.table import Table

    table = Table("", "All %", "Old %", "New %")
    for label, *numbers in evaluation_table(metrics):
        table.add_row(label, *map(_text, numbers))
    console.print(table)
    if not metrics.get("in_bacc_groups"):
        return
    sides = ("known", "novel")
    table = Table("", "sizes by", *(f"{side} {word} %" for side in sides for word in GROUPS))
    for name in ("tr_bacc", "in_bacc"):
        for basis, parts in metrics[f"{name}_groups"].items():
            table.add_row(NAMES[name], basis, *(_text(parts[side][word]) for side in sides for word in GROUPS))
    console.print(table)


def _ids(values: Any, limit: int, name: str) -> np.ndarray:
    """`values` as int64 ids (N,) in 0..limit-1."""
    ids = np.asarray(values)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise InputError(f"{name} must be one row of whole numbers, not {ids.dtype} of shape {ids.shape}")
    if ids.size and not 0 <= ids.min() <= ids.max() < limit:
        raise InputError(f"{name} must lie in 0..{limit - 1}, but runs from {ids.min()} to {ids.max()}")
    return ids.astype(np.int64, copy=False)


def _canonical_order(counts: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Clusters that have samples in an order that does not depend on ids: by contents, then by first appearance."""
    first = np.full(len(counts), len(predicted), dtype=np.int64)
    first[predicted[::-1].astype(np.int64)] = np.arange(len(predicted))[::-1]
    return np.lexsort((first, *counts.T))[np.sum(~counts.any(1)) :]  # empty clusters sort first


def _hits(counts: np.ndarray, matching: Matching) -> np.ndarray:
    """Samples of each class that lie in its cluster (C,)."""
    cluster = matching.cluster_of
    return np.where(cluster >= 0, counts[cluster, np.arange(len(cluster))], 0)


def _recall(counts: np.ndarray, matching: Matching) -> np.ndarray:
    """Matched recall of each class (C,), nan without samples."""
    totals = counts.sum(0)
    return np.where(totals > 0, _hits(counts, matching) / np.maximum(totals, 1), np.nan)


def _called(counts: np.ndarray, class_of: np.ndarray) -> np.ndarray:
    """Share of each class that lies in clusters which mean it (C,), nan without samples."""
    totals, clusters = counts.sum(0), np.flatnonzero(class_of >= 0)
    hits = np.bincount(class_of[clusters], counts[clusters, class_of[clusters]], minlength=len(totals))
    return np.where(totals > 0, hits / np.maximum(totals, 1), np.nan)


def _split(hits: np.ndarray, totals: np.ndarray, n_old: int) -> dict[str, float | None]:
    """100 * hits / totals over all classes, the known and the novel ones."""
    parts = {"all": slice(None), "old": slice(None, n_old), "new": slice(n_old, None)}
    sums = {name: (hits[part].sum(), totals[part].sum()) for name, part in parts.items()}
    return {name: float(100 * hit / total) if total else None for name, (hit, total) in sums.items()}


def _balanced(recall: np.ndarray, n_old: int) -> dict[str, float | None]:
    """Mean recall in percent over the classes that have samples."""
    return _split(np.nan_to_num(recall), np.isfinite(recall), n_old)


def _group_masks(groups: Mapping[str, Any], n_old: int, n_classes: int) -> dict[str, Any]:
    """`{basis: {side: {group: (C,) bool}}}`."""
    known = np.arange(n_classes) < n_old
    sides = {"known": known, "novel": ~known, "all": known | True}
    masks = {}
    for basis, values in groups.items():
        words = np.asarray(values)
        if words.shape != (n_classes,) or not np.isin(words, GROUPS).all():
            raise InputError(f"groups[{basis!r}] must say many, med or few for each of the {n_classes} classes")
        masks[basis] = {side: {word: mask & (words == word) for word in GROUPS} for side, mask in sides.items()}
    return masks


def _grouped(recall: np.ndarray, masks: Mapping[str, Any]) -> dict[str, Any]:
    """`masks` with each mask replaced by the mean recall of its classes in percent."""
    return {
        key: _grouped(recall, value) if isinstance(value, dict) else _balanced(recall[value], 0)["all"]
        for key, value in masks.items()
    }


def _confusion(counts: np.ndarray, class_of: np.ndarray) -> np.ndarray:
    """True class by assigned class (C, C + 1); unmatched clusters fall into the last column."""
    result = np.zeros((counts.shape[1] + 1, counts.shape[1]), dtype=np.int64)
    np.add.at(result, class_of, counts)  # class -1 is the last row
    return result.T


def _text(value: Any) -> str:
    return "-" if value is None else f"{value:.1f}"
