"""Every published size, profile and group of the protocols, on label arrays of the benchmarks' class sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rowssl.core.errors import InputError
from rowssl.data import class_lists
from rowssl.data.benchmarks import load_benchmark
from rowssl.data.profiles import (
    SETTINGS,
    frequency_groups,
    graded_counts,
    longtail_profile,
    reversed_counts,
    shared_counts,
)
from rowssl.data.splits import Split, make_split

CIFAR100 = np.tile(np.arange(100), 500)  # interleaved, so that the order inside a class is not the order of rows
CIFAR100_TEST = np.repeat(np.arange(100), 100)
CUB = np.repeat(np.arange(200), 30)
IMAGENET100 = np.repeat(np.arange(100), 1300)

F250 = """250 227 207 188 171 156 142 129 117 107 97 88 80 73 67 61 55 50 46 41 38 34 31 28 26 23 21 19 17 16 14 13 12
11 10 9 8 7 7 6 5 5 4 4 3 3 3 3 2 2"""
F500 = """500 455 414 377 343 312 284 258 235 214 195 177 161 147 134 122 111 101 92 83 76 69 63 57 52 47 43 39 35 32
29 27 24 22 20 18 16 15 14 12 11 10 9 8 7 7 6 6 5 5"""


def sizes(split: Split) -> tuple[int, int, int]:
    assert split.class_counts is not None
    return tuple(split.class_counts[k] for k in ("labelled", "unlabelled_known", "unlabelled_novel"))  # type: ignore[return-value]


def column(split: Split, name: str) -> list[int]:
    assert split.class_counts is not None
    return [row[name] for row in split.class_counts["classes"]]


def herbarium() -> np.ndarray:
    """683 classes of 2 to 250 images, mixed: the shape of Herbarium19 without its images."""
    frequent_first = np.maximum(2, 250 * np.arange(1, 684) ** -0.55).astype(int)
    return np.repeat(np.random.default_rng(3).permutation(683), frequent_first)


def test_profile_fixtures() -> None:
    assert longtail_profile(250, 50, 100).tolist() == [int(v) for v in F250.split()]
    assert longtail_profile(500, 50, 100).tolist() == [int(v) for v in F500.split()]
    assert longtail_profile(250, 50, 100).sum() == 2736
    assert longtail_profile(500, 50, 100).sum() == 5499
    ten = longtail_profile(250, 50, 10)
    assert (ten[:3].tolist(), ten[-3:].tolist(), ten.sum()) == ([250, 238, 227], [27, 26, 25], 4903)
    ten = longtail_profile(500, 50, 10)
    assert (ten[:3].tolist(), ten[-3:].tolist(), ten.sum()) == ([500, 477, 455], [54, 52, 50], 9830)


def test_profile_is_exact_where_floats_are_not() -> None:
    assert longtail_profile(1000, 4, 1000).tolist() == [1000, 100, 10, 1]
    assert longtail_profile(3**5, 6, 3**5).tolist() == [243, 81, 27, 9, 3, 1]
    assert longtail_profile(121, 3, 1.21).tolist() == [121, 110, 100]
    # Half a billionth below 999,999: nearer than floats should be trusted, and still below.
    assert longtail_profile(10**6, 3, 1.000002000003001).tolist() == [1_000_000, 999_998, 999_998]
    assert longtail_profile(7, 1, 100).tolist() == [7]
    assert longtail_profile(7, 0, 100).tolist() == []
    assert longtail_profile(7, 3, 1).tolist() == [7, 7, 7]


@pytest.mark.parametrize("gamma", [0.5, 0, -1, float("nan"), float("inf")])
def test_profile_refuses_a_ratio_below_one(gamma: float) -> None:
    with pytest.raises(InputError, match="--gamma must be a number of at least 1"):
        longtail_profile(250, 50, gamma)


@pytest.mark.parametrize(
    ("gamma", "expected"), [(100, (2736, 2736, 5499)), (10, (4903, 4903, 9830)), (1, (12500, 12500, 25000))]
)
@pytest.mark.parametrize("prior", ["match", "mismatch"])
def test_rowssl_cifar100(gamma: int, expected: tuple[int, int, int], prior: str) -> None:
    split = make_split(CIFAR100, CIFAR100_TEST, protocol="rowssl", dataset="cifar100", gamma=gamma, prior=prior)
    assert sizes(split) == expected
    assert split.known_classes == tuple(range(50))
    assert split.novel_classes == tuple(range(50, 100))
    assert len(split.test) == 10_000
    labelled, unlabelled = np.array(column(split, "labelled")), np.array(column(split, "unlabelled"))
    profile = longtail_profile(250, 50, gamma)
    turn = slice(None) if prior == "match" else slice(None, None, -1)
    assert labelled[:50].tolist() == profile.tolist()
    assert labelled[50:].tolist() == [0] * 50
    assert unlabelled[:50].tolist() == profile[turn].tolist()
    assert unlabelled[50:].tolist() == longtail_profile(500, 50, gamma)[turn].tolist()


def test_rowssl_takes_first_images_then_the_next_ones() -> None:
    split = make_split(CIFAR100, dataset="cifar100", gamma=100, prior="mismatch")
    for class_id, n_labelled, n_unlabelled in ((0, 250, 2), (49, 2, 250), (99, 0, 500)):
        rows = np.flatnonzero(class_id == CIFAR100)
        assert split.labelled[CIFAR100[split.labelled] == class_id].tolist() == rows[:n_labelled].tolist()
        taken = split.unlabelled[CIFAR100[split.unlabelled] == class_id]
        assert taken.tolist() == rows[n_labelled : n_labelled + n_unlabelled].tolist()
    totals = np.array(column(split, "labelled"))[:50] + np.array(column(split, "unlabelled"))[:50]
    assert (totals.min(), totals.max()) == (49, 252)


def test_rowssl_uniform_prior() -> None:
    split = make_split(CIFAR100, dataset="cifar100", gamma=100, prior="uniform")
    assert sizes(split) == (2736, 12500, 25000)
    assert column(split, "unlabelled") == [250] * 50 + [500] * 50


@pytest.mark.parametrize(("gamma", "old", "new"), [(2, 1030, 2115), (5, 699, 1446), (10, 538, 1129)])
def test_rowssl_cub(gamma: int, old: int, new: int) -> None:
    split = make_split(CUB, dataset="cub200", gamma=gamma)
    assert sizes(split) == (old, old, new)
    assert split.known_classes[:3] == (150, 70, 34)  # the list order is the long-tail rank
    assert list(split.novel_classes) == sorted(set(range(200)) - set(class_lists.SSB_CUB_KNOWN))
    assert column(split, "labelled")[0] == 15


def test_rowssl_imagenet100_and_cifar10() -> None:
    assert sizes(make_split(IMAGENET100, dataset="imagenet100")) == (7157, 7157, 14336)
    split = make_split(np.repeat(np.arange(10), 5000), dataset="cifar10", gamma=100)
    assert column(split, "labelled")[:5] == longtail_profile(2500, 5, 100).tolist()
    assert column(split, "unlabelled")[5:] == longtail_profile(5000, 5, 100).tolist()


def test_rowssl_names_the_class_with_too_few_images() -> None:
    short = np.delete(CUB, np.flatnonzero(CUB == 150)[:2])
    names = [f"bird {i}" for i in range(200)]
    with pytest.raises(InputError, match="class bird 150 has 28 images but the split needs 30"):
        make_split(short, dataset="cub200", gamma=2, class_names=names)
    assert column(make_split(short, dataset="cub200", gamma=2, n_max=28), "labelled")[0] == 14


@pytest.mark.parametrize(
    ("gamma", "expected"),
    [(100, (3788, 3754, 2212)), (20, (5579, 5540, 3196)), (50, (4418, 4371, 2560)), (150, (3504, 3459, 2048))],
)
def test_bacon_cifar100(gamma: int, expected: tuple[int, int, int]) -> None:
    split = make_split(CIFAR100, protocol="bacon", dataset="cifar100", gamma=gamma)
    assert sizes(split) == expected
    totals = np.array(column(split, "labelled")) + np.array(column(split, "unlabelled"))
    assert totals[list(class_lists.BACON_CIFAR100_ORDER)].tolist() == longtail_profile(450, 100, gamma).tolist()
    other = make_split(CIFAR100, protocol="bacon", dataset="cifar100", gamma=gamma, seed=1)
    assert sizes(other) == expected
    assert other.sha256() != split.sha256()


def test_bacon_cifar10_and_imagenet100() -> None:
    assert sizes(make_split(np.repeat(np.arange(10), 5000), protocol="bacon", dataset="cifar10")) == (4494, 4490, 2181)
    split = make_split(IMAGENET100, protocol="bacon", dataset="imagenet100")
    assert sizes(split) == (3166, 3146, 5893)
    assert split.seed == 416
    # A table whose synsets stand in another order has the same sizes by synset.
    names = sorted(class_lists.BACON_IMAGENET100_SYNSETS)
    by_name = make_split(IMAGENET100, protocol="bacon", dataset="imagenet100", class_names=names)
    assert sizes(by_name) == (3166, 3146, 5893)
    assert names[by_name.novel_classes[-1]] == "n02090622"
    with pytest.raises(InputError, match="use --variant bacon"):
        make_split(IMAGENET100, protocol="bacon", dataset="imagenet100", class_names=[f"n0{i}" for i in range(100)])
    with pytest.raises(InputError, match="bacon knows cifar10, cifar100, imagenet100"):
        make_split(IMAGENET100, protocol="bacon", dataset="mine")


def test_gcd_draws_with_the_legacy_generator() -> None:
    split = make_split(CIFAR100, CIFAR100_TEST, protocol="gcd", dataset="cifar100")
    assert sizes(split) == (20000, 20000, 10000)
    rows = np.flatnonzero(CIFAR100 < 80)
    np.random.seed(0)  # noqa: NPY002 - the published procedure
    drawn = np.random.choice(range(len(rows)), replace=False, size=int(0.5 * len(rows)))  # noqa: NPY002
    assert split.labelled.tolist() == np.sort(rows[drawn]).tolist()
    half = make_split(CIFAR100, protocol="gcd", dataset="cifar100", known=50)
    assert sizes(half) == (12500, 12500, 25000)
    assert len(set(column(half, "labelled")[:50])) > 1  # not stratified
    assert len(make_split(IMAGENET100, protocol="gcd", dataset="imagenet100").known_classes) == 50


def test_gcd_imagenet_indices_follow_from_the_seed() -> None:
    np.random.seed(0)  # noqa: NPY002
    assert sorted(np.random.choice(1000, 100, replace=False)) == list(class_lists.GCD_IMAGENET100_INDICES)  # noqa: NPY002


def test_herbarium() -> None:
    labels = herbarium()
    split = make_split(labels, dataset="herbarium19")
    np.random.seed(0)  # noqa: NPY002
    assert list(split.known_classes) == np.random.choice(range(683), 341, replace=False).tolist()  # noqa: NPY002
    assert list(split.novel_classes) == sorted(split.novel_classes)
    n_known = int(np.isin(labels, split.known_classes).sum())
    assert sizes(split) == (n_known // 2, n_known - n_known // 2, len(labels) - n_known)
    assert make_split(labels, protocol="gcd", dataset="herbarium19").sha256() == split.sha256()
    with pytest.raises(InputError, match="--gamma has no effect with natural class sizes"):
        make_split(labels, dataset="herbarium19", gamma=10, prior="mismatch")


def test_herbarium_mismatch() -> None:
    labels = herbarium()
    graded = make_split(labels, dataset="herbarium19", prior="mismatch")
    match = make_split(labels, dataset="herbarium19")
    assert abs(len(graded.labelled) - len(match.labelled)) <= 1  # the same sizes, divided differently
    assert sizes(graded)[2] == sizes(match)[2]
    labelled, rest = np.array(column(graded, "labelled"))[:341], np.array(column(graded, "unlabelled"))[:341]
    assert labelled.min() >= 1
    assert rest.min() >= 1
    share, frequent = labelled / (labelled + rest), np.argsort(-(labelled + rest), kind="stable")
    assert share[frequent[:50]].mean() > 0.6 > 0.45 > share[frequent[-150:-100]].mean()
    reverse = make_split(labels, dataset="herbarium19", prior="mismatch", mismatch="reverse")
    labelled, rest = np.array(column(reverse, "labelled"))[:341], np.array(column(reverse, "unlabelled"))[:341]
    most = int(labelled.argmax())
    assert rest[most] == labelled.min()
    assert reverse.recipe["mismatch"] == "reverse"


def test_counts_of_natural_sizes() -> None:
    natural = np.array([100, 50, 10, 2, 1])
    assert shared_counts(natural, 0.5).tolist() == [50, 25, 5, 1, 1]
    graded = graded_counts(natural, 0.5)
    assert graded.sum() == 82  # half of 163, rounded up
    assert graded[0] / 100 > 0.5 > graded[2] / 10
    assert reversed_counts(np.array([50, 25, 5, 1]), np.array([100, 50, 10, 2])).tolist() == [1, 5, 5, 1]


def test_frequency_groups() -> None:
    def members(counts: np.ndarray) -> tuple[list[int], list[int], list[int]]:
        groups = frequency_groups(counts)
        return tuple(np.flatnonzero(groups == g).tolist() for g in ("many", "med", "few"))  # type: ignore[return-value]

    thirds = (list(range(16)), list(range(16, 34)), list(range(34, 50)))
    old, new = longtail_profile(250, 50, 100), longtail_profile(500, 50, 100)
    for gamma in (100, 10):
        assert members(2 * longtail_profile(250, 50, gamma)) == thirds
        assert members(longtail_profile(500, 50, gamma)) == thirds
    assert (np.sort(2 * old)[::-1][[16, 33]].tolist(), np.sort(new)[::-1][[16, 33]].tolist()) == ([110, 22], [111, 22])
    mismatch = old + old[::-1]
    assert np.sort(mismatch)[::-1][[16, 33]].tolist() == [122, 66]
    assert members(mismatch)[0] == [*range(8), *range(42, 50)]
    assert members(mismatch)[2] == list(range(17, 33))
    bacon = np.array(class_lists.BACON_IMAGENET100_SIZES)
    for half, thresholds in ((bacon[:50], [130, 54]), (bacon[50:], [96, 42])):
        assert np.sort(half)[::-1][[16, 33]].tolist() == thresholds
        assert [len(group) for group in members(half)] == [16, 18, 16]
    for gamma, expected in ((2, [32, 41, 27]), (5, [32, 36, 32])):
        assert [len(group) for group in members(2 * longtail_profile(15, 100, gamma))] == expected
        assert [len(group) for group in members(longtail_profile(30, 100, gamma))] == expected
    cub = longtail_profile(15, 100, 2)
    assert members(cub + cub[::-1])[2] == []
    assert members(np.array([5, 5])) == ([], [0, 1], [])
    assert len(frequency_groups([])) == 0


@pytest.mark.parametrize("name", SETTINGS)
def test_settings(name: str) -> None:
    preset = SETTINGS[name]
    split = make_split(CIFAR100, CIFAR100_TEST, dataset="cifar100", setting=name)
    everything = make_split(
        CIFAR100, CIFAR100_TEST, dataset="cifar100", gamma=1 if preset.balanced else 100, prior=preset.prior
    )
    assert split.labelled.tolist() == everything.labelled.tolist()
    targets = split.targets(CIFAR100)[split.unlabelled]
    present = {"known" if t < 50 else "novel" for t in targets.tolist()}
    assert present == ({"known", "novel"} if preset.unlabelled == "both" else {preset.unlabelled})
    tested = {"known" if t < 50 else "novel" for t in CIFAR100_TEST[split.test].tolist()}
    assert tested == ({"known", "novel"} if preset.test == "both" else {preset.test})
    assert len(split.novel_classes) == (0 if preset.novel == "not present" else 50)
    assert split.recipe["evaluation"] == preset.evaluation


@pytest.mark.shared
def test_real_cifar100(shared_dir: Path) -> None:
    train, test = load_benchmark("cifar100", shared_dir / "data")
    split = make_split(train.labels, test.labels, dataset="cifar100", class_names=train.class_names)
    assert sizes(split) == (2736, 2736, 5499)
    assert split.labelled[:250].tolist() == list(range(250))  # this file is ordered by class
    features = np.load(shared_dir / "data" / "cifar100-lt-features.npz")
    truth, labels = features["truth"], features["labels"]
    assert column(split, "labelled") == np.bincount(labels[labels >= 0], minlength=100).tolist()
    assert column(split, "unlabelled") == np.bincount(truth[labels < 0], minlength=100).tolist()
