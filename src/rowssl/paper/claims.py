"""What the paper says of its comparisons of methods, as differences that can be computed from our runs."""

from __future__ import annotations

from rowssl.bench.published import METHODS
from rowssl.paper import quotes
from rowssl.paper.spec import Claim, Where, pick

NAMES = {name: word for name, word in METHODS.items() if name != "dts"}
METRICS = ("Tr-ACC", "Tr-bACC", "In-bACC")


def _others(methods: tuple[str, ...] = tuple(NAMES), **where: str) -> tuple[Where, ...]:
    return tuple(pick(method=NAMES[name], **where) for name in methods)


def _lead(source: str, prior: str, metric: str, group: str, methods: tuple[str, ...] = tuple(NAMES)) -> Claim:
    """DTS above the best of the others."""
    where = {"prior": prior, "metric": metric, "group": group}
    says = f"DTS above the best other method on {metric} {group} (prior {prior})"
    return Claim(says, source, pick(method="DTS", **where), _others(methods, **where))


MAIN = tuple(
    claim
    for prior in ("match", "mismatch")
    for claim in (
        *(_lead(f"Table 2. {quotes.OVERALL}", prior, metric, "All") for metric in METRICS),
        _lead(f"Table 2. {quotes.NOVEL}", prior, "Tr-bACC", "New"),
        _lead(f"Table 2. {quotes.NOVEL}", prior, "In-bACC", "New"),
    )
)

_FIVE = ("kmeans", "orca", "gcd", "simgcd", "bacon")
_SPLITS = ("split1 80:20", "split2 50:50")


def _judged(split: str, how: str, **where: str) -> Where:
    return pick(variant=f"{split}, {how}", metric="bACC", group="All", **where)


STRATEGIES = (
    *(
        Claim(
            f"BaCon above every other method when the test set is reclustered and rematched ({split})",
            f"Table 1. {quotes.BACON_HIGH}",
            _judged(split, "test recluster+rematch", method="BaCon"),
            tuple(
                _judged(split, "test recluster+rematch", method=name)
                for name in ("k-means", "ORCA", "GCD", "SimGCD", "DTS")
            ),
        )
        for split in _SPLITS
    ),
    Claim(
        "BaCon below the best other baseline on the training set (split 2)",
        f"Table 1. {quotes.BACON_TRAIN}",
        _judged(_SPLITS[1], "train", method="BaCon"),
        tuple(_judged(_SPLITS[1], "train", method=name) for name in ("k-means", "ORCA", "GCD", "SimGCD")),
        sign=-1,
    ),
    *(
        Claim(
            f"reclustering raises k-means' accuracy on the test set ({split})",
            f"Table 1. {quotes.UNIFORM}",
            _judged(split, "test recluster+rematch", method="k-means"),
            _judged(split, "test rematch", method="k-means"),
        )
        for split in _SPLITS
    ),
    *(
        Claim(
            f"DTS above the best other method in inductive inference ({split})",
            "Table 1",
            _judged(split, "test inductive", method="DTS"),
            tuple(_judged(split, "test inductive", method=NAMES[name]) for name in _FIVE),
        )
        for split in _SPLITS
    ),
)

_SIX = ("kmeans", "orca", "gcd", "trssl", "simgcd", "bacon")
BALANCED = tuple(_lead(f"Table D.6. {quotes.RATIOS}", "match", metric, "All", _SIX) for metric in METRICS)
RATIO_10 = tuple(
    claim
    for prior in ("match", "mismatch")
    for claim in (
        *(_lead(f"Table D.7. {quotes.RATIOS}", prior, metric, "All", _SIX) for metric in METRICS),
        Claim(
            f"BaCon above DTS on Tr-ACC New (prior {prior})",
            f"Table D.7. {quotes.BACON_NEW}",
            pick(method="BaCon", prior=prior, metric="Tr-ACC", group="New"),
            pick(method="DTS", prior=prior, metric="Tr-ACC", group="New"),
        ),
        Claim(
            f"DTS above BaCon on In-bACC New (prior {prior})",
            f"Table D.7. {quotes.BACON_NEW}",
            pick(method="DTS", prior=prior, metric="In-bACC", group="New"),
            pick(method="BaCon", prior=prior, metric="In-bACC", group="New"),
        ),
    )
)


def detailed(
    prior: str, table: str, methods: tuple[str, ...] = tuple(NAMES), groups: tuple[str, ...] = ("New", "KFew", "UFew")
) -> tuple[Claim, ...]:
    """Of the tables with Many, Med and Few: novel and tail classes."""
    return tuple(_lead(f"{table}. {quotes.TAIL_CLASSES}", prior, "In-bACC", group, methods) for group in groups)


def imagenet(prior: str, table: str) -> tuple[Claim, ...]:
    """Of ImageNet-100-LT."""
    three = ("gcd", "simgcd", "bacon")
    where = {"prior": prior, "metric": "Tr-ACC", "group": "New"}
    return (
        *(_lead(f"{table}. {quotes.IMAGENET}", prior, "In-bACC", group, three) for group in ("All", "New", "UFew")),
        Claim(
            f"GCD above the other methods on Tr-ACC New (prior {prior})",
            f"{table}. {quotes.GCD_BEST}",
            pick(method="GCD", **where),
            tuple(pick(method=name, **where) for name in ("SimGCD", "BaCon", "DTS")),
        ),
    )
