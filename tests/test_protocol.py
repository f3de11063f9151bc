"""The numbers of the protocol once more as plain loops over all assignments, and the corners of its helpers, exactly."""

from __future__ import annotations

import io
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from rowssl.evaluation import evaluate, fit_matching, print_metrics

Pairs = list[tuple[int, int]]  # (cluster, class) of each sample


def recalls(pairs: Pairs, partner: dict[int, int], classes: int) -> list[float | None]:
    """Share of each class that lies in its cluster; None without samples."""
    found: list[float | None] = []
    for one in range(classes):
        own = [cluster for cluster, truth in pairs if truth == one]
        found.append(sum(cluster == partner.get(one, -1) for cluster in own) / len(own) if own else None)
    return found


def best(pairs: Pairs, clusters: int, classes: int) -> list[dict[int, int]]:
    """All assignments class -> cluster that explain the most samples."""
    padded = list(range(clusters)) + [-1] * classes
    tried = {order[:classes] for order in permutations(padded, classes)}
    scores = {order: sum(order[truth] == cluster for cluster, truth in pairs) for order in tried}
    return [dict(enumerate(order)) for order, score in scores.items() if score == max(scores.values())]


def as_a_user(train: Pairs, judged: Pairs, clusters: int, classes: int, old: int) -> list[dict[str, float | None]]:
    """Balanced accuracies in percent where cluster i < old is class i, and one of the best matchings names the others."""
    novel = [(cluster, truth) for cluster, truth in train if cluster >= old and truth >= old]
    options = []
    for order in set(permutations([*range(old, classes), *[-1] * max(0, clusters - old)], max(0, clusters - old))):
        means = dict(zip(range(old, clusters), order, strict=True))
        options.append((sum(means[cluster] == truth for cluster, truth in novel), means))
    scores = []
    for explained, means in options:
        # A cluster that shares nothing with its class has no name.
        named = {k: c for k, c in means.items() if (k, c) in novel} | {k: k for k in range(min(old, clusters))}
        found: dict[str, float | None] = {}
        for side, members in {"all": range(classes), "old": range(old), "new": range(old, classes)}.items():
            rates = []
            for one in members:
                own = [cluster for cluster, truth in judged if truth == one]
                if own:
                    rates.append(sum(named.get(cluster, -1) == one for cluster in own) / len(own))
            found[side] = 100 * sum(rates) / len(rates) if rates else None
        scores.append((explained, found))
    most = max((explained for explained, _ in scores), default=0)
    return [found for explained, found in scores if explained == most]


def percent(
    pairs: Pairs, partner: dict[int, int], classes: int, old: int, *, balanced: bool
) -> dict[str, float | None]:
    parts = {"all": range(classes), "old": range(old), "new": range(old, classes)}
    found: dict[str, float | None] = {}
    for side, members in parts.items():
        if balanced:
            rates = [
                rate for one, rate in enumerate(recalls(pairs, partner, classes)) if one in members and rate is not None
            ]
            found[side] = 100 * sum(rates) / len(rates) if rates else None
        else:
            hits = [partner.get(truth, -1) == cluster for cluster, truth in pairs if truth in members]
            found[side] = 100 * sum(hits) / len(hits) if hits else None
    return found


@pytest.mark.parametrize("seed", range(8))
def test_every_number_is_that_of_plain_loops(seed: int) -> None:
    rng = np.random.default_rng([5, seed])
    classes, clusters, old = 4, int(rng.integers(2, 6)), int(rng.integers(0, 5))
    train = list(zip(rng.integers(0, clusters, 17).tolist(), rng.integers(0, 4, 17).tolist(), strict=True))
    test = list(
        zip(rng.integers(0, clusters, 9).tolist(), rng.integers(0, 3, 9).tolist(), strict=True)
    )  # class 3 is absent
    words = [("many", "med", "few")[i] for i in rng.integers(0, 3, classes)]
    found = evaluate(
        train_predicted=[p for p, _ in train], train_truth=[t for _, t in train], test_predicted=[p for p, _ in test],
        test_truth=[t for _, t in test], n_old=old, n_classes=classes, n_clusters=clusters, groups={"x": words},
    )  # fmt: skip
    partner = {one: int(cluster) for one, cluster in enumerate(found.matching.cluster_of)}
    explained = sum(partner[truth] == cluster for cluster, truth in train)
    assert explained == sum(best(train, clusters, classes)[0][truth] == cluster for cluster, truth in train)
    wanted = {
        "tr_acc": percent(train, partner, classes, old, balanced=False),
        "in_acc": percent(test, partner, classes, old, balanced=False),
        "tr_bacc": percent(train, partner, classes, old, balanced=True),
        "in_bacc": percent(test, partner, classes, old, balanced=True),
    }
    for name, numbers in wanted.items():
        assert found.metrics[name] == pytest.approx(numbers), name
    for name, judged in (("user_tr_bacc", train), ("user_in_bacc", test)):
        allowed = as_a_user(train, judged, clusters, classes, old)
        assert any(found.metrics[name] == pytest.approx(one) for one in allowed), name
    parts = {"known": range(old), "novel": range(old, classes), "all": range(classes)}
    for side, members in parts.items():
        for word in ("many", "med", "few"):
            rates = recalls(test, partner, classes)
            chosen = [rates[c] for c in members if words[c] == word and rates[c] is not None]
            mean = 100 * sum(chosen) / len(chosen) if chosen else None  # type: ignore[arg-type]
            assert found.metrics["in_bacc_groups"]["x"][side][word] == pytest.approx(mean)
    hits = 0
    for part in ([p for p in train if p[1] < old], [p for p in train if p[1] >= old]):
        hits += sum(best(part, clusters, classes)[0][truth] == cluster for cluster, truth in part)
    assert found.metrics["tr_acc_v1"]["all"] == pytest.approx(100 * hits / len(train))
    for name, pairs in (("tr_acc", train), ("tr_acc_v1", train), ("in_acc", test)):
        before = sum(truth < old for _, truth in pairs)
        assert found.metrics["weights"][name] == {"old": before, "new": len(pairs) - before}


@pytest.mark.parametrize("seed", range(6))
def test_of_clusters_with_equal_contents_the_first_to_appear_has_the_class(seed: int) -> None:
    rng = np.random.default_rng([6, seed])
    predicted = rng.permutation(np.repeat(np.arange(4), 3))
    matching = fit_matching(predicted, np.zeros(12, dtype=np.int64), n_clusters=6, n_classes=1)
    assert matching.cluster_of.tolist() == [predicted[0]]
    assert matching.class_of.tolist() == [0 if one == predicted[0] else -1 for one in range(6)]


def printed(metrics: dict[str, Any]) -> list[list[str]]:
    """The cells of every line that has some."""
    text = io.StringIO()
    print_metrics(metrics, Console(file=text, width=200))
    lines = [line.replace("┃", "│") for line in text.getvalue().splitlines()]
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if "│" in line]


def test_the_printed_tables_cell_by_cell() -> None:
    truth, predicted = [0, 0, 1, 1, 2, 2], [0, 0, 1, 0, 2, 2]
    given: dict[str, Any] = {
        "train_predicted": predicted,
        "train_truth": truth,
        "n_old": 2,
        "n_classes": 3,
        "n_clusters": 3,
    }
    first = [
        ["", "All %", "Old %", "New %"],
        ["Tr-ACC", "83.3", "75.0", "100.0"],
        ["Tr-bACC", "83.3", "75.0", "100.0"],
        ["Tr-ACC (v1)", "83.3", "75.0", "100.0"],
        ["Tr-bACC (user)", "83.3", "75.0", "100.0"],
    ]
    assert printed(evaluate(**given).metrics) == first
    grouped = evaluate(**given, groups={"total": ["many", "few", "med"]}).metrics
    assert printed(grouped)[:5] == first
    assert printed(grouped)[5:] == [
        ["", "sizes by", *(f"{side} {word} %" for side in ("known", "novel") for word in ("many", "med", "few"))],
        ["Tr-bACC", "total", "100.0", "-", "50.0", "-", "100.0", "-"],
        ["In-bACC", "total", *["-"] * 6],
    ]
