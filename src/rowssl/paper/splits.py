"""Splits that are made here and kept in files: the small subsets, and the mismatched ImageNet-100-LT.

A small subset has 20 classes (as many of them known as in the table, one half if it is not said otherwise), at most 40 training
images of a class and 20 test images, and an imbalance ratio of at most half the largest class, so that no class is empty.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from rowssl.core.errors import InputError
from rowssl.data.benchmarks import load_benchmark
from rowssl.data.class_lists import BACON_IMAGENET100_SIZES, CLASS_COUNTS, SSB_CUB_KNOWN
from rowssl.data.splits import Split, make_split
from rowssl.data.table import Table
from rowssl.paper.spec import Data

CLASSES, IMAGES, TESTS = 20, 40, 20
BACON_SEED = 416


@lru_cache(maxsize=2)
def tables(name: str, variant: str | None, root: str | None) -> tuple[Table, Table]:
    """Train and test table of a benchmark, read once."""
    return load_benchmark(name, root, variant=variant)


def split_file(data: Data, root: str | None, folder: Path, *, small: bool) -> Path:
    """Make the split and write it, under a name that says what is in it."""
    train, test = tables(data.options["name"], data.options.get("variant"), root)
    split = small_split(data, train, test) if small else imagenet_mismatch(train, test)
    path = folder / f"{'small-' if small else ''}{data.key}-{split.sha256()[:8]}.json"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        split.save(path)
    return path


def small_split(data: Data, train: Table, test: Table) -> Split:
    """A subset of the benchmark, cut by the same rules as far as so few images go."""
    chosen, n_known = small_classes(data, train)
    rows = {c: np.flatnonzero(train.labels == c)[:IMAGES] for c in chosen}
    if data.options["name"] == "herbarium19":  # natural sizes, known classes from the largest
        ratio, largest = None, None
    else:
        largest = min(len(found) for found in rows.values())
        usual = float(data.gamma) if data.gamma[:1].isdigit() else 100.0
        ratio = min(usual, largest / 2)
        if largest < 4:
            raise InputError(f"{data.options['name']}: the small subset needs 4 images of each of its classes.")
    labels = np.concatenate([np.full(len(found), place) for place, found in enumerate(rows.values())])
    cut = make_split(
        labels, protocol="longtail", known=n_known, gamma=ratio, prior=data.prior, n_max=largest,
        order=None if ratio is None else "first",
    )  # fmt: skip
    places = np.concatenate(list(rows.values()))
    tests = np.concatenate([np.flatnonzero(test.labels == c)[:TESTS] for c in chosen])
    recipe = {**cut.recipe, "dataset": data.options["name"], "small": f"{len(chosen)} classes"}
    split = Split(
        places[cut.labelled], places[cut.unlabelled], tests, tuple(chosen[:n_known]), tuple(chosen[n_known:]), recipe, 0,
        class_names=train.class_names,
    )  # fmt: skip
    return replace(split, class_counts=split.counts(train.labels, test.labels))


def small_classes(data: Data, train: Table) -> tuple[list[int], int]:
    """Class ids of the subset, known ones first, evenly spread over those of the whole; and how many are known."""
    total, share = len(train.class_names), data.known_share
    known = list(range(max(1, round(share * total))))
    if CLASS_COUNTS.get(data.options["name"]) == total:  # else it is a part of the data set already
        if data.options["name"] == "cub200":
            known = [int(c) for c in SSB_CUB_KNOWN]
        elif data.options["name"] == "herbarium19":
            known = [int(c) for c in np.random.RandomState(0).choice(total, total // 2, replace=False)]
    novel = [c for c in range(total) if c not in set(known)]
    size = min(CLASSES, total)
    n_known = min(len(known), max(1, round(share * size)))
    return [*_spread(known, n_known), *_spread(novel, size - n_known)], n_known


def _spread(values: list[int], count: int) -> list[int]:
    count = min(count, len(values))
    return [values[i * len(values) // count] for i in range(count)]


def imagenet_mismatch(train: Table, test: Table) -> Split:
    """BaCon's classes and sizes; of the known classes the unlabelled sizes go in reverse order of the labelled ones."""
    matched = make_split(
        train.labels, test.labels, protocol="bacon", dataset="imagenet100", class_names=train.class_names
    )
    sizes = np.array(BACON_IMAGENET100_SIZES)[: len(matched.known_classes)]
    half = sizes // 2
    labelled = sizes - half
    room = np.array([(train.labels == c).sum() for c in matched.known_classes])
    # Reverse the order of the unlabelled sizes: who has most labelled images gets the fewest unlabelled ones.
    wanted = np.empty_like(half)
    wanted[np.argsort(-labelled, kind="stable")] = np.sort(half)
    wanted = np.minimum(wanted, room - labelled)
    first: list[np.ndarray] = []
    rest: list[np.ndarray] = []
    for c, n_labelled, n_more in zip(matched.known_classes, labelled, wanted, strict=True):
        rows = np.random.default_rng([BACON_SEED, c]).permutation(np.flatnonzero(train.labels == c))
        first.append(rows[:n_labelled])
        rest.append(rows[n_labelled : n_labelled + n_more])
    novel = matched.unlabelled[matched.targets(train.labels)[matched.unlabelled] >= len(matched.known_classes)]
    recipe = {**matched.recipe, "prior": "mismatch", "mismatch": "reverse"}
    split = replace(
        matched,
        labelled=np.concatenate(first),
        unlabelled=np.concatenate([*rest, novel]),
        recipe=recipe,
        class_counts=None,
    )
    return replace(split, class_counts=split.counts(train.labels, test.labels))
