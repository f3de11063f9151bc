"""Protocols: from the labels of a table and a few options to a `Split`. Pure functions: same options, same rows.

`rowssl`    three exponential profiles in class order, first images first (the paper's CIFAR, CUB, ImageNet builders);
            Herbarium19 keeps its natural sizes, and its `mismatch` is defined here, for the authors' is not published
`bacon`     one exponential profile over all classes in a fixed order, or the published ImageNet-100 class sizes
`gcd`       natural sizes; half of the known-class images, drawn uniformly over images, are labelled
`longtail`  any labelled table: the profiles of `rowssl`, or natural sizes, with every choice open
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from rowssl.core.errors import InputError
from rowssl.data import protocols
from rowssl.data.class_lists import CLASS_COUNTS
from rowssl.data.profiles import MISMATCHES, PRIORS, SETTINGS, frequency_groups, longtail_profile
from rowssl.data.split_file import Split

__all__ = ["ORDERS", "PRIORS", "PROTOCOLS", "SETTINGS", "Split", "frequency_groups", "longtail_profile", "make_split"]

PROTOCOLS = {
    "rowssl": protocols.profiles,
    "bacon": protocols.bacon,
    "gcd": protocols.gcd,
    "longtail": protocols.profiles,
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
        protocols.Options(
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
    build = protocols.gcd if natural and options.prior == "match" else PROTOCOLS[protocol]
    dealt = build(source, options)

    recipe |= dealt.recipe | {"known": len(dealt.known), "novel": len(dealt.novel)}
    wanted = {"known": dealt.known, "novel": dealt.novel, "both": dealt.known + dealt.novel}[tested]
    test = np.flatnonzero(np.isin(tests, wanted))
    split = Split(
        dealt.labelled, dealt.unlabelled, test, dealt.known, dealt.novel, recipe, options.seed, class_names=names
    )
    return replace(split, class_counts=split.counts(source.labels, tests))


def _checked(options: protocols.Options) -> protocols.Options:
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


def _with_setting(options: protocols.Options, natural: bool, prior: str | None, sizes: np.ndarray) -> protocols.Options:
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


def _source(train_labels: Sequence[int] | np.ndarray, names: tuple[str, ...] | None) -> protocols.Source:
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
    return protocols.Source(labels, shown, tuple(by_class[a:b] for a, b in pairwise(bounds)))


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
