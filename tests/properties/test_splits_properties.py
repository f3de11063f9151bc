"""What holds for every split of every table: disjoint rows, sizes by the formula, the same file for the same seed."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rowssl.data.profiles import frequency_groups, graded_counts, longtail_profile, reversed_counts, shared_counts
from rowssl.data.splits import Split, make_split

examples = settings(max_examples=200, deadline=None)


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """A table of mixed rows with 4 to 40 images a class, and options that fit it."""
    n = draw(st.integers(2, 9))
    per_class = draw(st.lists(st.integers(4, 40), min_size=n, max_size=n))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    labels = rng.permutation(np.repeat(np.arange(n), per_class))
    test = rng.integers(0, n, draw(st.integers(0, 30)))
    protocol = draw(st.sampled_from(["rowssl", "longtail", "gcd"]))
    options: dict[str, Any] = {
        "protocol": protocol,
        "known": draw(st.one_of(st.integers(1, n - 1), st.permutations(range(n)).map(lambda p: p[: max(1, n // 2)]))),
        "labelled_share": draw(st.sampled_from([0.3, 0.5, 0.7])),
        "seed": draw(st.integers(0, 2**32 - 1)),
        "shuffle_classes": draw(st.booleans()),
    }
    if protocol != "gcd":
        options["prior"] = draw(st.sampled_from(["match", "mismatch", "uniform"]))
        options["order"] = draw(st.sampled_from(["first", "random"]))
        natural = protocol == "longtail" and draw(st.booleans())
        if natural and options["prior"] == "mismatch":
            options["mismatch"] = draw(st.sampled_from(["graded", "reverse"]))
        if not natural:  # a ratio at which even the smallest part of the smallest class keeps an image
            options["gamma"] = draw(st.floats(1, max(1, int(0.3 * min(per_class)))))
    return labels, test, options


@examples
@given(problems())
def test_rows_are_disjoint_and_of_the_right_classes(problem: tuple[np.ndarray, np.ndarray, dict[str, Any]]) -> None:
    labels, test, options = problem
    split = make_split(labels, test, **options)
    together = np.concatenate([split.labelled, split.unlabelled])
    assert len(np.unique(together)) == len(together)
    assert together.min() >= 0
    assert together.max() < len(labels)
    assert set(labels[split.labelled]) <= set(split.known_classes)
    assert sorted(split.classes) == sorted(set(labels.tolist()))
    assert split.test.tolist() == list(range(len(test)))
    if options["protocol"] != "gcd":
        assert set(labels[split.labelled]) == set(split.known_classes)
        assert set(labels[split.unlabelled]) == set(split.classes)
    if options.get("gamma") is None and options.get("prior", "match") == "match":
        assert len(together) == len(labels)


@examples
@given(problems())
def test_sizes_follow_the_formula(problem: tuple[np.ndarray, np.ndarray, dict[str, Any]]) -> None:
    labels, _, options = problem
    split = make_split(labels, **options)
    n_known, full = len(split.known_classes), np.bincount(labels)
    counts = split.counts(labels)["classes"]
    labelled = np.array([row["labelled"] for row in counts])
    unlabelled = np.array([row["unlabelled"] for row in counts])
    assert (labelled + unlabelled <= full[list(split.classes)]).all()
    assert labelled[n_known:].sum() == 0
    gamma = options.get("gamma")
    if gamma is None:
        return
    size = int(full[list(split.known_classes)].min())
    largest = [int(options["labelled_share"] * size + 1e-9)]
    largest += [size - largest[0], int(full[list(split.novel_classes)].min())]
    for part, n_max in zip((labelled[:n_known], unlabelled[:n_known], unlabelled[n_known:]), largest, strict=True):
        profile = longtail_profile(n_max, len(part), gamma)
        if part.base is labelled or options["prior"] == "match":
            assert part.tolist() == profile.tolist()
        elif options["prior"] == "mismatch":
            assert part.tolist() == profile[::-1].tolist()
        else:
            assert part.tolist() == [n_max] * len(part)


@examples
@given(problems())
def test_same_seed_same_file_and_round_trip(problem: tuple[np.ndarray, np.ndarray, dict[str, Any]]) -> None:
    labels, test, options = problem
    with tempfile.TemporaryDirectory() as folder:
        first, second = Path(folder, "first.json"), Path(folder, "second.json")
        split = make_split(labels, test, **options)
        split.save(first)
        make_split(labels.copy(), test.copy(), **options).save(second)
        assert first.read_bytes() == second.read_bytes()
        loaded = Split.load(first, n_train=len(labels), n_test=len(test))
        assert loaded.sha256() == split.sha256()
        loaded.save(second)
        assert first.read_bytes() == second.read_bytes()


@examples
@given(st.integers(1, 2000), st.integers(2, 60), st.integers(1, 500), st.integers(1, 20))
def test_profile_is_the_exact_floor(n_max: int, n: int, numerator: int, denominator: int) -> None:
    gamma = max(1.0, round(numerator / denominator, 2))
    hundred = round(gamma * 100)  # gamma as the exact fraction hundred / 100
    for i, size in enumerate(longtail_profile(n_max, n, gamma).tolist()):
        bound = n_max ** (n - 1) * 100**i
        assert size ** (n - 1) * hundred**i <= bound
        assert (size + 1) ** (n - 1) * hundred**i > bound


@examples
@given(st.lists(st.integers(1, 300), min_size=1, max_size=80), st.sampled_from([0.1, 0.25, 0.5, 0.8]))
def test_natural_counts_leave_both_kinds(sizes: list[int], share: float) -> None:
    natural = np.array(sizes)
    several = natural >= 2
    for labelled in (shared_counts(natural, share), graded_counts(natural, share)):
        assert (labelled >= 1).all()
        assert (labelled[several] < natural[several]).all()
        assert (labelled[~several] == 1).all()
    graded = graded_counts(natural, share)
    low, high = len(natural), int(np.maximum(natural - 1, 1).sum())
    assert graded.sum() == np.clip(np.floor(share * natural.sum() + 0.5), low, high)
    rest = reversed_counts(graded, natural)
    assert ((rest >= 0) & (rest + graded <= natural)).all()


@examples
@given(st.lists(st.integers(0, 50), min_size=1, max_size=60))
def test_groups_are_ordered_and_never_above_a_third(counts: list[int]) -> None:
    values, groups = np.array(counts), frequency_groups(counts)
    for higher, lower in (("many", "med"), ("med", "few"), ("many", "few")):
        if (groups == higher).any() and (groups == lower).any():
            assert values[groups == higher].min() > values[groups == lower].max()
    assert (groups == "many").sum() <= len(counts) // 3
    assert (groups == "few").sum() <= len(counts) - 2 * len(counts) // 3 - 1
    assert (groups == "med").any()
