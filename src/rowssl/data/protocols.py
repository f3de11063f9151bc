"""How each protocol deals the rows of a table: which classes, how many images, and which ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rowssl.core.errors import InputError
from rowssl.data import class_lists
from rowssl.data.profiles import SETTINGS, graded_counts, longtail_profile, reversed_counts, shared_counts

# Class size that the `rowssl` profiles start from; a table of another name starts from its smallest class.
_FULL_SIZE = {"cifar10": 5000, "cifar100": 500, "imagenet100": 1300, "cub200": 30}
_RATIO = {"cub200": 2.0, "digits": 10.0}  # usual imbalance ratio where it is not 100
_GCD_KNOWN = {"cifar100": 80}
_BACON = {  # dataset: largest class, number of known classes, class ids from the most to the least frequent
    "cifar10": (4500, 5, class_lists.BACON_CIFAR10_ORDER),
    "cifar100": (450, 80, class_lists.BACON_CIFAR100_ORDER),
}


@dataclass(frozen=True)
class Options:
    """The options of `make_split`, checked one by one; the protocols check them against each other."""

    protocol: str
    dataset: str
    known: int | float | Sequence[int] | Sequence[str] | None
    gamma: float | None
    prior: str
    labelled_share: float
    setting: str | None
    seed: int
    n_max: int | None
    order: str | None
    shuffle_classes: bool
    mismatch: str | None

    @property
    def unlabelled_part(self) -> str:
        """Classes of the unlabelled set: known, novel or both."""
        return "both" if self.setting is None else SETTINGS[self.setting].unlabelled

    @property
    def usual_ratio(self) -> float:
        return _RATIO.get(self.dataset, 100.0)

    def refuse(self, where: str, *names: str) -> None:
        """An option that would have no effect is an error, not a surprise."""
        idle = {"prior": "match", "labelled_share": 0.5, "shuffle_classes": False}
        for name in names:
            if getattr(self, name) != idle.get(name):
                raise InputError(f"--{name.replace('_', '-')} has no effect with {where}: leave it out")


@dataclass(frozen=True)
class Source:
    """What a protocol may look at: labels (N,), class names, and the rows of each class in table order."""

    labels: np.ndarray
    names: tuple[str, ...]
    rows: tuple[np.ndarray, ...]

    def sizes(self, classes: Sequence[int]) -> np.ndarray:
        return np.array([len(self.rows[c]) for c in classes], dtype=np.int64)


@dataclass(frozen=True)
class Dealt:
    """Classes and rows of a split, and what the protocol adds to the recipe."""

    known: tuple[int, ...]
    novel: tuple[int, ...]
    labelled: np.ndarray
    unlabelled: np.ndarray
    recipe: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Sizes:
    """Images wanted per class, in the order of the known and of the novel classes."""

    labelled: np.ndarray
    known: np.ndarray
    novel: np.ndarray


def gcd(source: Source, options: Options) -> Dealt:
    """Natural sizes; the labelled rows are one uniform draw over all known-class images, not stratified."""
    if options.gamma == 1:  # what a balanced table has anyway
        options.refuse("these class sizes", "n_max", "order", "mismatch", "prior")
    else:
        options.refuse("these class sizes", "gamma", "n_max", "order", "mismatch", "prior")
    known, novel = _classes(source, options)
    rows = np.flatnonzero(np.isin(source.labels, known))
    # The published splits come from numpy's legacy generator, one seeded choice over the known rows in table order.
    chosen = np.random.RandomState(options.seed).choice(
        len(rows), size=int(options.labelled_share * len(rows)), replace=False
    )
    if not len(chosen):
        raise InputError(
            f"--labelled-share {options.labelled_share} of {len(rows)} known-class images is not one image"
        )
    rest = np.delete(rows, chosen) if options.unlabelled_part != "novel" else rows[:0]
    unlabelled = np.concatenate([rest, *(source.rows[c] for c in novel)])
    return Dealt(known, novel, rows[chosen], unlabelled, _recipe(options))


def profiles(source: Source, options: Options) -> Dealt:
    """Exponential or natural sizes for the labelled, the unlabelled known and the novel images."""
    known, novel = _classes(source, options)
    herbarium = (options.protocol, options.dataset) == ("rowssl", "herbarium19")
    gamma, n_max, mismatch = options.gamma, options.n_max, options.mismatch
    if options.protocol == "rowssl" and not herbarium:
        gamma = options.usual_ratio if gamma is None else gamma
        n_max = n_max or _FULL_SIZE.get(options.dataset)
    if gamma is None or herbarium:
        options.refuse("natural class sizes", *(["gamma", "n_max"] if herbarium else ["n_max"]))
        mismatch = (mismatch or "graded") if options.prior == "mismatch" else None
        sizes = _natural(source, known, novel, options.prior, options.labelled_share, mismatch)
        order = options.order or "random"
    else:
        options.refuse("an exponential profile", "mismatch")
        sizes = _exponential(source, known, novel, gamma, options.prior, options.labelled_share, n_max)
        order = options.order or ("first" if options.protocol == "rowssl" else "random")
    if options.unlabelled_part == "novel":
        sizes = _Sizes(sizes.labelled, np.zeros_like(sizes.known), sizes.novel)
    hint = f": give a smaller --n-max than {n_max}" if n_max else ""
    labelled, unlabelled = _deal(source, known, novel, sizes, order, options.seed, hint)
    recipe = _recipe(options) | {"gamma": gamma, "n_max": n_max, "order": order, "mismatch": mismatch}
    return Dealt(known, novel, labelled, unlabelled, recipe)


def bacon(source: Source, options: Options) -> Dealt:
    """One profile over all classes, known and novel interleaved; half of each known class, rounded up, is labelled."""
    options.refuse(
        "--protocol bacon", "known", "prior", "labelled_share", "n_max", "order", "shuffle_classes", "mismatch"
    )
    wanted = np.zeros(len(source.names), dtype=np.int64)
    gamma: float | None = None
    if options.dataset in _BACON:
        largest, n_known, ranking = _BACON[options.dataset]
        gamma = 100.0 if options.gamma is None else options.gamma
        wanted[list(ranking)] = longtail_profile(largest, len(ranking), gamma)
        known, novel = tuple(range(n_known)), tuple(range(n_known, len(ranking)))
    elif options.dataset == "imagenet100":
        options.refuse("the published class sizes of imagenet100", "gamma")
        synsets = class_lists.BACON_IMAGENET100_SYNSETS
        # Without real synset names the labels are taken to be the published label ids.
        named = any(name.startswith(("n0", "n1")) for name in source.names)
        if named and set(source.names) != set(synsets):
            raise InputError("--protocol bacon needs BaCon's 100 classes of imagenet100: use --variant bacon")
        ids = [source.names.index(synset) for synset in synsets] if named else list(range(100))
        wanted[ids] = class_lists.BACON_IMAGENET100_SIZES
        known, novel = tuple(ids[:50]), tuple(ids[50:])
    else:
        raise InputError(
            f"--protocol bacon knows {', '.join(sorted([*_BACON, 'imagenet100']))}, not {options.dataset!r}"
        )
    half = wanted[list(known)] // 2
    sizes = _Sizes(wanted[list(known)] - half, half, wanted[list(novel)])
    if gamma is not None:
        _check_not_empty(source, known, novel, sizes, gamma)
    labelled, unlabelled = _deal(source, known, novel, sizes, "random", options.seed)
    return Dealt(known, novel, labelled, unlabelled, _recipe(options) | {"gamma": gamma, "order": "random"})


def _recipe(options: Options) -> dict[str, Any]:
    return {name: getattr(options, name) for name in ("gamma", "prior", "labelled_share", "shuffle_classes")}


def _classes(source: Source, options: Options) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Known and novel class ids in target order, which is also the order of the long tail."""
    total = len(source.names)
    wanted = _usual_known(options, total) if options.known is None else options.known
    order = np.arange(total)
    if options.shuffle_classes:
        order = np.random.default_rng([options.seed, total]).permutation(total)
    if isinstance(wanted, float):
        if not 0 < wanted < 1:
            raise InputError(f"--known as a share must be between 0 and 1, not {wanted}")
        wanted = max(1, int(wanted * total + 0.5))
    if isinstance(wanted, int | np.integer):
        if not 1 <= wanted <= total or isinstance(wanted, bool):
            raise InputError(f"--known must be between 1 and the {total} classes of the table, not {wanted}")
        known = [int(c) for c in order[:wanted]]
    else:
        given: list[Any] = [wanted] if isinstance(wanted, str) else list(wanted)
        ids = [_class_id(source, value) for value in given]
        if not ids or len(set(ids)) != len(ids):
            raise InputError(
                f"--known must name at least one class and none twice: {', '.join(map(str, given)) or 'none'}"
            )
        known = [int(c) for c in order if c in ids] if options.shuffle_classes else ids
    novel = tuple(int(c) for c in order if c not in set(known))
    if options.unlabelled_part == "known":
        novel = ()
    elif options.unlabelled_part == "novel" and not novel:
        raise InputError(f"--setting {options.setting} needs novel classes, but --known takes all {total}")
    return tuple(known), novel


def _usual_known(options: Options, total: int) -> int | Sequence[int]:
    """Known classes where the user names none: the benchmark's published ones, else the first half."""
    if options.protocol != "longtail" and options.dataset == "cub200":
        return class_lists.SSB_CUB_KNOWN
    if options.protocol != "longtail" and options.dataset == "herbarium19":
        return [int(c) for c in np.random.RandomState(0).choice(total, total // 2, replace=False)]
    if options.protocol == "gcd" and options.dataset in _GCD_KNOWN:
        return _GCD_KNOWN[options.dataset]
    return max(1, total // 2)


def _class_id(source: Source, value: int | str) -> int:
    if isinstance(value, str):
        if value not in source.names:
            raise InputError(f"--known: there is no class {value!r} in the table")
        return source.names.index(value)
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value < len(source.names):
        raise InputError(f"--known: there is no class {value!r} among the {len(source.names)} of the table")
    return int(value)


def _exponential(
    source: Source,
    known: tuple[int, ...],
    novel: tuple[int, ...],
    gamma: float,
    prior: str,
    share: float,
    n_max: int | None,
) -> _Sizes:
    """Three profiles: labelled falls in class order, the unlabelled two as the prior says. Sums never exceed n_max."""
    full = n_max or int(source.sizes(known).min())
    n_labelled = int(share * full + 1e-9)
    if not 0 < n_labelled < full:
        kind = "labelled" if n_labelled == 0 else "unlabelled"
        raise InputError(f"--labelled-share {share} of a class of {full} images leaves no {kind} image")

    def tail(largest: int, n: int) -> np.ndarray:
        sizes = longtail_profile(largest, n, gamma)
        return {"match": sizes, "mismatch": sizes[::-1], "uniform": np.full_like(sizes, largest)}[prior]

    largest_novel = n_max or (int(source.sizes(novel).min()) if novel else 1)
    labelled = longtail_profile(n_labelled, len(known), gamma)
    sizes = _Sizes(labelled, tail(full - n_labelled, len(known)), tail(largest_novel, len(novel)))
    _check_not_empty(source, known, novel, sizes, gamma)
    return sizes


def _natural(
    source: Source, known: tuple[int, ...], novel: tuple[int, ...], prior: str, share: float, mismatch: str | None
) -> _Sizes:
    """All images; under mismatch only the division of the known classes changes, under uniform the surplus is cut."""
    sizes, new = source.sizes(known), source.sizes(novel)
    labelled = graded_counts(sizes, share) if mismatch == "graded" else shared_counts(sizes, share)
    rest = sizes - labelled
    if mismatch == "reverse":
        rest = reversed_counts(labelled, sizes)
    elif prior == "uniform":
        rest = np.minimum(rest, max(1, rest.min()))
        new = np.full_like(new, new.min()) if len(new) else new
    return _Sizes(labelled, rest, new)


def _check_not_empty(
    source: Source, known: tuple[int, ...], novel: tuple[int, ...], sizes: _Sizes, gamma: float
) -> None:
    """A profile that reaches zero would make a known class novel, or a novel one vanish."""
    for classes, numbers, kind in (
        (known, sizes.labelled, "labelled"),
        (known, sizes.known, "unlabelled"),
        (novel, sizes.novel, "unlabelled"),
    ):
        if len(numbers) and numbers.min() < 1:
            name, most = source.names[classes[int(numbers.argmin())]], int(numbers.max())
            raise InputError(f"--gamma {gamma:g} leaves class {name} no {kind} image: use {most} or less")


def _deal(
    source: Source, known: tuple[int, ...], novel: tuple[int, ...], sizes: _Sizes, order: str, seed: int, hint: str = ""
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the labelled and of the unlabelled images: per class the first ones labelled, the next ones not."""
    labelled: list[np.ndarray] = []
    unlabelled: list[np.ndarray] = []
    first = [*sizes.labelled, *np.zeros_like(sizes.novel)]
    for class_id, n_labelled, n_more in zip(known + novel, first, [*sizes.known, *sizes.novel], strict=True):
        rows = source.rows[class_id]
        if n_labelled + n_more > len(rows):
            raise InputError(
                f"class {source.names[class_id]} has {len(rows)} images but the split needs {n_labelled + n_more}{hint}"
            )
        if order == "random":
            rows = np.random.default_rng([seed, class_id]).permutation(rows)
        labelled.append(rows[:n_labelled])
        unlabelled.append(rows[n_labelled : n_labelled + n_more])
    return np.concatenate(labelled), np.concatenate(unlabelled)
