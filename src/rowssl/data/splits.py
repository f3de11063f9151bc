"""A split: which rows are labelled, unlabelled and test, which classes are known and novel, and the protocols that make one.

From the labels of a table and a few options to a `Split`, JSON in and out. Pure functions: same options, same rows.

`rowssl`    three exponential profiles in class order, first images first (the paper's CIFAR, CUB, ImageNet builders);
            Herbarium19 keeps its natural sizes, and its `mismatch` is defined here, for the authors' is not published
`bacon`     one exponential profile over all classes in a fixed order, or the published ImageNet-100 class sizes
`gcd`       natural sizes; half of the known-class images, drawn uniformly over images, are labelled
`longtail`  any labelled table: the profiles of `rowssl`, or natural sizes, with every choice open
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from rowssl.core.errors import InputError
from rowssl.core.files import write_text
from rowssl.data import class_lists
from rowssl.data.class_lists import CLASS_COUNTS
from rowssl.data.profiles import (
    MISMATCHES,
    PRIORS,
    SETTINGS,
    frequency_groups,
    graded_counts,
    longtail_profile,
    reversed_counts,
    shared_counts,
)

FORMAT = 1
_LISTS = ("labelled", "unlabelled", "test", "known_classes", "novel_classes")


@dataclass(frozen=True, eq=False)
class Split:
    """Rows and classes of one open-world problem.

    Parameters
    ----------
    labelled, unlabelled : np.ndarray
        int64, sorted rows of the train table, disjoint.
    test : np.ndarray
        int64, sorted rows of the test table.
    known_classes, novel_classes : tuple of int
        Class ids of the table in target order: targets 0 .. n_known - 1 are known.
    recipe : dict
        Every option that made the split, enough to make it again.
    seed : int
        The seed that was used.
    class_names : tuple of str, optional
        Names of all classes of the table, by class id.
    class_counts : dict, optional
        What `counts` gave when the split was made; written to the file.
    """

    labelled: np.ndarray
    unlabelled: np.ndarray
    test: np.ndarray
    known_classes: tuple[int, ...]
    novel_classes: tuple[int, ...]
    recipe: dict[str, Any]
    seed: int
    class_names: tuple[str, ...] | None = None
    class_counts: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        for name in ("labelled", "unlabelled", "test"):
            rows = np.sort(np.asarray(getattr(self, name), dtype=np.int64).reshape(-1))
            if len(rows) and (rows[0] < 0 or (np.diff(rows) == 0).any()):
                raise InputError(f"the {name} rows of a split must be distinct and not negative")
            object.__setattr__(self, name, rows)
        for name in ("known_classes", "novel_classes"):
            object.__setattr__(self, name, tuple(int(c) for c in getattr(self, name)))
        both = np.intersect1d(self.labelled, self.unlabelled, assume_unique=True)
        if len(both):
            raise InputError(f"row {both[0]} of a split is both labelled and unlabelled")
        if len(set(self.classes)) != len(self.classes) or min(self.classes, default=0) < 0:
            raise InputError("the known and novel classes of a split must be distinct and not negative")

    @property
    def classes(self) -> tuple[int, ...]:
        """Class ids in target order, known then novel."""
        return self.known_classes + self.novel_classes

    def targets(self, labels: Sequence[int] | np.ndarray) -> np.ndarray:
        """Target ids of table labels, int64 (N,) -> (N,): the place in known + novel, -1 for every other class."""
        labels = np.asarray(labels, dtype=np.int64)
        ids = np.array(self.classes, dtype=np.int64)
        if not len(ids):
            return np.full(labels.shape, -1, dtype=np.int64)
        order = np.argsort(ids)
        nearest = order[np.searchsorted(ids, labels, sorter=order).clip(max=len(ids) - 1)]
        return np.where(ids[nearest] == labels, nearest, -1)

    def counts(
        self, train_labels: Sequence[int] | np.ndarray, test_labels: Sequence[int] | np.ndarray | None = None
    ) -> dict[str, Any]:
        """Images per class and in all.

        Returns
        -------
        dict
            `classes`: one dict per class in target order (`id`, `name` where known, `known`, `labelled`, `unlabelled`,
            and `test` where test labels are given); and the totals `labelled`, `unlabelled`, `unlabelled_known`,
            `unlabelled_novel`, `test`.
        """
        train_targets = self.targets(train_labels)
        columns = {"labelled": train_targets[self.labelled], "unlabelled": train_targets[self.unlabelled]}
        if test_labels is not None:
            columns["test"] = self.targets(test_labels)[self.test]
        numbers = {name: np.bincount(t[t >= 0], minlength=len(self.classes)) for name, t in columns.items()}
        rows = []
        for target, class_id in enumerate(self.classes):
            row: dict[str, Any] = {"id": class_id}
            if self.class_names is not None:
                row["name"] = self.class_names[class_id]
            row["known"] = target < len(self.known_classes)
            rows.append(row | {name: int(values[target]) for name, values in numbers.items()})
        n_known = len(self.known_classes)
        return {
            "labelled": len(self.labelled),
            "unlabelled": len(self.unlabelled),
            "unlabelled_known": int(numbers["unlabelled"][:n_known].sum()),
            "unlabelled_novel": int(numbers["unlabelled"][n_known:].sum()),
            "test": len(self.test),
            "classes": rows,
        }

    def sha256(self) -> str:
        """Hash of the rows and classes, hex: two splits with the same hash are the same problem."""
        lists = {name: [int(v) for v in getattr(self, name)] for name in _LISTS}
        return hashlib.sha256(json.dumps(lists, separators=(",", ":"), sort_keys=True).encode()).hexdigest()

    def save(self, path: str | Path) -> None:
        """Write the split as JSON, atomically: the file is complete or it is the old one."""
        path = Path(path)
        content: dict[str, Any] = {"format": FORMAT, "recipe": self.recipe, "seed": self.seed}
        if self.class_names is not None:
            content["class_names"] = list(self.class_names)
        if self.class_counts is not None:
            content["counts"] = self.class_counts
        content |= {name: [int(v) for v in getattr(self, name)] for name in _LISTS} | {"sha256": self.sha256()}
        text = ",\n".join(
            f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in content.items()
        )
        write_text(path, "{\n" + text + "\n}\n")

    @classmethod
    def load(cls, path: str | Path, *, n_train: int | None = None, n_test: int | None = None) -> Split:
        """Read a split, refusing a damaged one; with `n_train` and `n_test` also one made for a larger table."""
        path = Path(path)
        content = _read_json(path)
        values = {name: _integers(content, name, path) for name in _LISTS}
        recipe, seed, names = content.get("recipe"), content.get("seed"), content.get("class_names")
        if not isinstance(recipe, dict) or type(seed) is not int:
            raise InputError(f"{path}: `recipe` must be an object and `seed` an integer")
        if names is not None and not (isinstance(names, list) and all(isinstance(n, str) for n in names)):
            raise InputError(f"{path}: `class_names` must be a list of strings")
        for name, limit in (("labelled", n_train), ("unlabelled", n_train), ("test", n_test)):
            if limit is not None and max(values[name], default=-1) >= limit:
                raise InputError(f"{path}: {name} row {max(values[name])} is not in a table of {limit} rows")
        if names is not None and max(values["known_classes"] + values["novel_classes"], default=-1) >= len(names):
            raise InputError(f"{path}: a class id is beyond the {len(names)} class names")
        rows = {name: np.array(values[name], dtype=np.int64) for name in ("labelled", "unlabelled", "test")}
        known, novel = tuple(values["known_classes"]), tuple(values["novel_classes"])
        try:
            split = cls(
                **rows,
                known_classes=known,
                novel_classes=novel,
                recipe=recipe,
                seed=seed,
                class_names=None if names is None else tuple(names),
                class_counts=content.get("counts"),
            )
        except InputError as error:
            raise InputError(f"{path}: {error}") from error
        if content.get("sha256") != split.sha256():
            raise InputError(f"{path}: the rows do not match their sha256, the file was changed after it was made")
        return split


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read the split {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not a split: it is not valid JSON ({error})") from error
    if not isinstance(content, dict) or "format" not in content:
        raise InputError(f"{path} is not a split: it has no `format` number")
    if content["format"] != FORMAT:
        raise InputError(f"{path} has split format {content['format']!r}, this version reads format {FORMAT}")
    return content


def _integers(content: dict[str, Any], name: str, path: Path) -> list[int]:
    values = content.get(name)
    if not isinstance(values, list) or not all(type(v) is int and 0 <= v < 2**62 for v in values):
        raise InputError(f"{path}: `{name}` must be a list of integers that are not negative")
    return values


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


__all__ = ["ORDERS", "PRIORS", "PROTOCOLS", "SETTINGS", "Split", "frequency_groups", "longtail_profile", "make_split"]

PROTOCOLS = {
    "rowssl": profiles,
    "bacon": bacon,
    "gcd": gcd,
    "longtail": profiles,
}
ORDERS = ("first", "random")


def make_split(
    train_labels: Sequence[int] | np.ndarray,
    test_labels: Sequence[int] | np.ndarray | None = None,
    *,
    protocol: str = "rowssl",
    dataset: str = "",
    known: int | float | Sequence[int] | Sequence[str] | None = None,
    gamma: float | None = None,
    prior: str | None = None,
    labelled_share: float = 0.5,
    setting: str | None = None,
    seed: int | None = None,
    class_names: Sequence[str] | None = None,
    n_max: int | None = None,
    order: str | None = None,
    shuffle_classes: bool = False,
    mismatch: str | None = None,
) -> Split:
    """Make the split of one protocol.

    Parameters
    ----------
    train_labels, test_labels : array of int
        Class ids of every row of the train and of the test table.
    protocol : str
        One of `PROTOCOLS`.
    dataset : str
        A benchmark's name gives its published class lists and sizes; any other name is only recorded.
    known : int, float or list, optional
        Number of known classes, share of all classes, or the classes themselves by id or name; by default half of
        the classes, or what the benchmark publishes.
    gamma : float, optional
        Imbalance ratio; `longtail` without it keeps the natural class sizes.
    prior : str, optional
        How unlabelled class sizes relate to labelled ones: match (default), mismatch (reversed) or uniform.
    labelled_share : float
        Labelled share of the images of known classes.
    setting : str, optional
        A related setting from `SETTINGS`: fixes balance, prior and the classes that take part. The labelled rows are
        the same in all settings of one ratio.
    seed : int, optional
        By default 0, and 416 for BaCon's ImageNet-100.
    class_names : sequence of str, optional
        Names by class id, recorded and used in messages.
    n_max : int, optional
        Class size that the profiles start from, labelled and unlabelled together; by default the benchmark's, or the
        smallest class of the table.
    order : str, optional
        Which images of a class are taken: `first` in table order (default of `rowssl`) or `random` by seed.
    shuffle_classes : bool
        Draw the order of classes by seed, hence who is known (if `known` is no list) and who is frequent.
    mismatch : str, optional
        For natural sizes: `graded` (default; frequent classes label more of theirs) or `reverse` (the unlabelled sizes
        are the labelled ones reversed, the surplus is cut).

    Returns
    -------
    Split
        Disjoint rows, classes in target order, and the recipe with every option as it was applied.
    """
    options = _checked(
        Options(
            protocol=protocol,
            dataset=dataset,
            known=known,
            gamma=gamma,
            prior=prior or "match",
            labelled_share=labelled_share,
            setting=setting,
            seed=(416 if (protocol, dataset) == ("bacon", "imagenet100") else 0) if seed is None else seed,
            n_max=n_max,
            order=order,
            shuffle_classes=shuffle_classes,
            mismatch=mismatch,
        )
    )
    names = None if class_names is None else tuple(class_names)
    source = _source(train_labels, names)
    total = len(source.names)
    tests = _labels(() if test_labels is None else test_labels, "test", total)
    if protocol != "longtail" and CLASS_COUNTS.get(dataset, total) != total:
        raise InputError(
            f"{dataset} has {CLASS_COUNTS[dataset]} classes but the table has {total}: use --protocol longtail"
        )
    natural = (protocol, dataset) == ("rowssl", "herbarium19")
    recipe: dict[str, object] = {"protocol": protocol, "dataset": dataset}
    tested = "both"
    if setting is not None:
        options = _with_setting(options, natural, prior, np.bincount(source.labels))
        recipe |= {"setting": setting, "evaluation": SETTINGS[setting].evaluation}
        tested = SETTINGS[setting].test
    build = gcd if natural and options.prior == "match" else PROTOCOLS[protocol]
    dealt = build(source, options)

    recipe |= dealt.recipe | {"known": len(dealt.known), "novel": len(dealt.novel)}
    wanted = {"known": dealt.known, "novel": dealt.novel, "both": dealt.known + dealt.novel}[tested]
    test = np.flatnonzero(np.isin(tests, wanted))
    split = Split(
        dealt.labelled, dealt.unlabelled, test, dealt.known, dealt.novel, recipe, options.seed, class_names=names
    )
    return replace(split, class_counts=split.counts(source.labels, tests))


def _checked(options: Options) -> Options:
    """The options if each is possible in itself; an InputError names the one that is not."""
    for name, choices in (
        ("protocol", tuple(PROTOCOLS)),
        ("prior", PRIORS),
        ("setting", (None, *SETTINGS)),
        ("order", (None, *ORDERS)),
        ("mismatch", (None, *MISMATCHES)),
    ):
        value = getattr(options, name)
        if value not in choices:
            raise InputError(f"--{name} must be one of {', '.join(c for c in choices if c)}, not {value!r}")
    if not 0 < options.labelled_share < 1:
        raise InputError(f"--labelled-share must be between 0 and 1, not {options.labelled_share}")
    if options.gamma is not None and not 1 <= options.gamma < float("inf"):
        raise InputError(f"--gamma must be a number of at least 1, not {options.gamma}")
    if options.n_max is not None and options.n_max < 2:
        raise InputError(f"--n-max must be at least 2, not {options.n_max}")
    if not 0 <= options.seed < 2**32:
        raise InputError(f"--seed must be between 0 and {2**32 - 1}, not {options.seed}")
    # One spelling of equal options, so that the recipe and its file are the same for 10 and 10.0.
    gamma = None if options.gamma is None else float(options.gamma)
    return replace(options, gamma=gamma, seed=int(options.seed), shuffle_classes=bool(options.shuffle_classes))


def _with_setting(options: Options, natural: bool, prior: str | None, sizes: np.ndarray) -> Options:
    """The options completed by a setting; one that contradicts it is an error."""
    name = str(options.setting)
    preset = SETTINGS[name]
    if options.protocol not in ("rowssl", "longtail"):
        raise InputError(f"--setting {name} needs --protocol rowssl or longtail, not {options.protocol}")
    if preset.balanced and (natural or options.gamma not in (None, 1)):
        what = "the natural class sizes of herbarium19" if natural else f"--gamma {options.gamma:g}"
        raise InputError(f"--setting {name} is balanced, but {what} would not be")
    if not preset.balanced and options.gamma == 1:
        raise InputError(f"--setting {name} is imbalanced, but --gamma 1 is balanced")
    if not preset.mismatch and options.prior != "match":
        raise InputError(f"--setting {name} has no distribution mismatch, but --prior {options.prior} makes one")
    gamma = options.gamma
    if preset.balanced:
        gamma = 1.0
    elif gamma is None and not natural and options.dataset in CLASS_COUNTS:
        gamma = options.usual_ratio
    elif gamma is None and (sizes.max() < 2 * sizes.min()):
        raise InputError(f"--setting {name} is imbalanced, but the classes of the table are nearly equal: give --gamma")
    return replace(options, gamma=gamma, prior=prior or preset.prior)


def _source(train_labels: Sequence[int] | np.ndarray, names: tuple[str, ...] | None) -> Source:
    """Labels with the rows of each class; every row must have a class and every class a row."""
    labels = _labels(train_labels, "train", None if names is None else len(names))
    if not len(labels):
        raise InputError("the train table has no rows to split")
    total = int(labels.max()) + 1 if names is None else len(names)
    by_class = np.argsort(labels, kind="stable")
    bounds = np.searchsorted(labels[by_class], np.arange(total + 1))
    shown = names or tuple(str(c) for c in range(total))
    empty = np.flatnonzero(np.diff(bounds) == 0)
    if len(empty):
        raise InputError(f"class {shown[empty[0]]} has no image in the train table")
    return Source(labels, shown, tuple(by_class[a:b] for a, b in pairwise(bounds)))


def _labels(labels: Sequence[int] | np.ndarray, table: str, total: int | None) -> np.ndarray:
    values = np.asarray(labels)
    if values.ndim != 1 or (len(values) and values.dtype.kind not in "iu"):
        raise InputError(f"the labels of the {table} table must be one list of class ids")
    wrong = np.flatnonzero((values < 0) | (values >= (np.inf if total is None else total)))
    if len(wrong) and values[wrong[0]] < 0:
        raise InputError(f"row {wrong[0]} of the {table} table has no label: a split needs a label for every row")
    if len(wrong):
        raise InputError(f"row {wrong[0]} of the {table} table has class {values[wrong[0]]} of only {total}")
    return values.astype(np.int64)
