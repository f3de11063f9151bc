"""The benchmarks by name: each a table to train on and one to test on, with class ids in the order the protocols count on.

A benchmark is a file of this folder, or of `benchmarks/` in a folder of `ROWSSL_PLUGINS`, with

- `NAMES`: its names (of a family of data sets several) and a help line for each;
- `WANTS`: which files belong into its folder, in words; empty for data that need none;
- `FOLDERS`: further names of that folder, where it has any;
- `VARIANTS`: names of variants, where it has any, the usual one first;
- `read(name, folder, variant, class_list)`: train and test table, or None where the folder does not hold it.

Only `digits` comes along; the others are read where the user keeps them, under `data_root` or the environment variable
`ROWSSL_DATA`: in a subfolder of the benchmark's name, or in the root itself.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rowssl.core.errors import InputError
from rowssl.core.listing import Listing, with_plugins
from rowssl.core.text import printable

if TYPE_CHECKING:
    from rowssl.data.table import Table

__path__ = with_plugins(__path__, "benchmarks")
BENCHMARKS: Listing[Any] = Listing(__name__, first=("digits",))


def load_benchmark(
    name: str,
    data_root: str | Path | None = None,
    *,
    variant: str | None = None,
    class_list: str | Path | None = None,
) -> tuple[Table, Table]:
    """Train and test table of a benchmark.

    Parameters
    ----------
    name : str
        One of `BENCHMARKS`.
    data_root : path, optional
        The folder that holds the data sets, or the one of this data set; by default `$ROWSSL_DATA`.
    variant : str, optional
        For imagenet100, whose 100 classes are meant: gcd (default), orca, bacon or folder.
    class_list : path, optional
        For imagenet100 as `orca`: a text file with one synset a line; by default `imagenet100.txt` beside `train`.

    Returns
    -------
    tuple of Table
        Train and test with the same class names; row order is the archive's (CIFAR), the list's (CUB), or class by
        class in order of file names (folders).
    """
    if name not in BENCHMARKS:
        raise InputError(f"there is no benchmark {name!r}: choose one of {', '.join(BENCHMARKS)}")
    benchmark = BENCHMARKS[name]
    variants = getattr(benchmark, "VARIANTS", ())
    if variant is not None and variant not in variants:
        choices = f"one of {', '.join(variants)}" if variants else "left out"
        raise InputError(f"--variant for {name} must be {choices}, not {variant!r}")
    if class_list is not None and variant != "orca":
        raise InputError("--class-list goes with --variant orca of imagenet100 alone")
    asked = {
        "variant": variant or next(iter(variants), ""),
        "class_list": None if class_list is None else Path(class_list),
    }
    if not benchmark.WANTS:
        return benchmark.read(name, folder=None, **asked)
    data_root = data_root or os.environ.get("ROWSSL_DATA") or None
    if data_root is None:
        raise InputError(
            f"{name} needs a data root: give --data-root or set ROWSSL_DATA to a folder with {benchmark.WANTS}"
        )
    root = Path(data_root)
    if not root.is_dir():
        raise InputError(f"the data root {printable(str(root))} is not a folder")
    places = [root / folder for folder in (name, *getattr(benchmark, "FOLDERS", ()), "")]
    for place in places:
        tables = benchmark.read(name, place, **asked)
        if tables is not None:
            return tables
    looked = ", ".join(printable(str(place)) for place in places)
    raise InputError(f"{name} was not found in {looked}: put {benchmark.WANTS} into the first of them")
