"""Arithmetic of class sizes: long-tailed profiles, labelled counts, Many/Med/Few groups, and the related settings.

Nothing here sees an image or draws a random number: class sizes in, class sizes out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from rowssl.core.errors import InputError

PRIORS = ("match", "mismatch", "uniform")
MISMATCHES = ("graded", "reverse")


@dataclass(frozen=True)
class Setting:
    """One row of the paper's table of related settings, as instructions for the split builder."""

    title: str
    known: str  # what is asked of known classes
    novel: str  # what is asked of novel classes
    balanced: bool
    prior: str  # the default; a setting with distribution mismatch accepts every prior
    unlabelled: str  # classes in the unlabelled set: known, novel or both
    test: str  # classes in the test set: known, novel or both
    evaluation: str

    @property
    def mismatch(self) -> bool:
        return self.prior == "mismatch"


_INDUCTIVE = "inductive: accuracy on test images never seen in training"
_TRANSDUCTIVE = "transductive: clustering accuracy on the unlabelled training images"

SETTINGS = {
    "ssl": Setting("SSL", "classify", "not present", True, "match", "known", "known", _INDUCTIVE),
    "robust-ssl": Setting(
        "Robust SSL", "classify", "reject", True, "match", "both", "known", _INDUCTIVE + "; novel images are outliers"
    ),
    "lt-ssl": Setting("LT-SSL", "classify", "not present", False, "match", "known", "known", _INDUCTIVE),
    "rlt-ssl": Setting("RLT-SSL", "classify", "not present", False, "mismatch", "known", "known", _INDUCTIVE),
    "ncd": Setting("NCD", "not present", "discover", True, "match", "novel", "novel", _TRANSDUCTIVE),
    "da-ncd": Setting("DA-NCD", "not present", "discover", False, "match", "novel", "novel", _TRANSDUCTIVE),
    "gcd": Setting("OWSSL/GCD", "classify", "discover", True, "match", "both", "both", _TRANSDUCTIVE),
    "da-gcd": Setting(
        "DA-GCD", "classify", "discover", False, "match", "both", "both", _TRANSDUCTIVE + ", or of a whole test set"
    ),
    "rowssl": Setting(
        "ROWSSL", "classify", "discover and classify", False, "mismatch", "both", "both",
        "transductive on the unlabelled training images and inductive on test images, one at a time",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class ClassSizes:
    """Training images of each class, known classes first: labelled and unlabelled ones, int64 (n,) each."""

    names: tuple[str, ...]
    labelled: np.ndarray
    unlabelled: np.ndarray
    n_known: int

    def ordered(self) -> tuple[ClassSizes, bool]:
        """In their own order if that is a profile already, otherwise each half from large to small, and whether it was so."""
        order = np.arange(len(self.names))
        halves = ((slice(0, self.n_known), self.labelled), (slice(self.n_known, None), self.unlabelled))
        steps = [np.diff(sizes[half]) for half, sizes in halves]
        if all((step <= 0).all() or (step >= 0).all() for step in steps):
            return self, False
        for half, sizes in halves:
            order[half] = order[half][np.argsort(-sizes[half], kind="stable")]
        names = tuple(self.names[i] for i in order)
        return ClassSizes(names, self.labelled[order], self.unlabelled[order], self.n_known), True


def longtail_profile(n_max: int, n: int, gamma: float) -> np.ndarray:
    """Sizes of `n` classes that fall exponentially from `n_max` to `n_max / gamma`.

    Parameters
    ----------
    n_max : int
        Size of the largest class, at least 1.
    n : int
        Number of classes; one class alone keeps `n_max`.
    gamma : float
        Imbalance ratio, largest to smallest class, at least 1.

    Returns
    -------
    np.ndarray
        int64 (n,), entry i is floor(n_max * gamma ** (-i / (n - 1))).
    """
    if not (math.isfinite(gamma) and gamma >= 1):
        raise InputError(f"--gamma must be a number of at least 1, not {gamma}")
    if n_max < 1 or n < 0:
        raise InputError(
            f"a profile needs a largest class of at least one image and no negative class number: {n_max}, {n}"
        )
    if n <= 1 or gamma == 1:
        return np.full(n, n_max, dtype=np.int64)
    exponents = np.arange(n) / (n - 1)
    sizes = n_max * np.power(float(gamma), -exponents)
    floors = np.floor(sizes).astype(np.int64)
    # Where the real value is an integer, rounding may put the float just below it: those few are decided exactly, by
    # k <= n_max * gamma^(-i/(n-1))  <=>  k^(n-1) * gamma^i <= n_max^(n-1).
    ratio = Fraction(str(gamma))
    for i in np.flatnonzero(np.abs(sizes - np.rint(sizes)) < 1e-6):
        k = int(np.rint(sizes[i]))
        fits = k ** (n - 1) * ratio.numerator ** int(i) <= n_max ** (n - 1) * ratio.denominator ** int(i)
        floors[i] = k if fits else k - 1
    return floors


def frequency_groups(counts: Sequence[int] | np.ndarray) -> np.ndarray:
    """Many, Med and Few classes of one set (apply it to known and to novel classes separately).

    Parameters
    ----------
    counts : array of int
        Images per class; the caller chooses the basis: labelled, unlabelled or total.

    Returns
    -------
    np.ndarray
        str (n,), "many" where the count is above the one at place n // 3 of the descending order, "few" where it is
        below the one at place 2n // 3, otherwise "med"; ties fall into "med", so "many" or "few" can be empty.
    """
    values = np.asarray(counts, dtype=np.int64)
    groups = np.full(len(values), "med", dtype="<U4")
    if len(values):
        ordered = np.sort(values)[::-1]
        groups[values > ordered[len(values) // 3]] = "many"
        groups[values < ordered[2 * len(values) // 3]] = "few"
    return groups


def _limits(sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Smallest and largest labelled count per class: one labelled, and one left unlabelled where there are two."""
    return np.ones_like(sizes), np.maximum(sizes - 1, 1)


def shared_counts(sizes: np.ndarray, share: float) -> np.ndarray:
    """Labelled images per class when every class labels the same share, (n,) -> (n,)."""
    low, high = _limits(sizes)
    return np.clip(np.floor(share * sizes + 0.5).astype(np.int64), low, high)


def graded_counts(sizes: np.ndarray, share: float) -> np.ndarray:
    """Labelled images per class when frequent classes label more of theirs, (n,) -> (n,).

    The labelled share falls in a straight line with the frequency rank, as steeply as the bounds 5 % and 95 % allow,
    around the image-weighted mean `share`; every class of two or more images keeps one labelled and one unlabelled.
    """
    low, high = _limits(sizes)
    if len(sizes) < 2:
        return shared_counts(sizes, share)
    by_frequency = np.argsort(-sizes, kind="stable")
    place = np.empty(len(sizes))
    place[by_frequency] = np.arange(len(sizes)) / (len(sizes) - 1)
    centre = float(np.average(place, weights=sizes))
    room_above, room_below = max(0.95, (1 + share) / 2) - share, share - min(0.05, share / 2)
    slope = min(room_above / centre, room_below / (1 - centre))
    counts = np.clip(np.floor((share + slope * (centre - place)) * sizes + 0.5).astype(np.int64), low, high)
    # Rounding and the limits moved the total: give it back one image a class, the largest classes first.
    missing = int(np.floor(share * sizes.sum() + 0.5) - counts.sum())
    while missing:
        step = 1 if missing > 0 else -1
        free = by_frequency[((counts < high) if step > 0 else (counts > low))[by_frequency]][: abs(missing)]
        if not len(free):
            break
        counts[free] += step
        missing -= step * len(free)
    return counts


def reversed_counts(labelled: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Unlabelled images per class when their order of sizes is the labelled one reversed, as far as images go."""
    by_count = np.argsort(-labelled, kind="stable")
    wanted = np.empty_like(labelled)
    wanted[by_count] = labelled[by_count][::-1]
    return np.minimum(wanted, sizes - labelled)
