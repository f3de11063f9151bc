"""The benchmarks of the paper as tables: train and test, with class ids in the order the protocols count on.

Only `digits` comes along (scikit-learn bundles it); the others are read where the user keeps them, under `data_root`
or the environment variable `ROWSSL_DATA`: in a subfolder of the benchmark's name, or in the root itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rowssl.core.console import track
from rowssl.core.errors import InputError
from rowssl.core.text import printable
from rowssl.data import class_lists
from rowssl.data.cifar import read_cifar
from rowssl.data.images import SUFFIXES
from rowssl.data.table import Table

_DIGITS_TEST = 50  # test images of each digit


@dataclass(frozen=True)
class Benchmark:
    """Where a benchmark is looked for, what belongs there, and the function that reads it."""

    folders: tuple[str, ...]  # below the data root, in this order
    wants: str
    read: Callable[[Path, str, Path | None], tuple[Table, Table] | None]
    variants: tuple[str, ...] = ()


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
    if variant is not None and variant not in benchmark.variants:
        choices = f"one of {', '.join(benchmark.variants)}" if benchmark.variants else "left out"
        raise InputError(f"--variant for {name} must be {choices}, not {variant!r}")
    if class_list is not None and variant != "orca":
        raise InputError("--class-list goes with --variant orca of imagenet100 alone")
    if not benchmark.folders:
        return _digits()
    if data_root is None:
        data_root = os.environ.get("ROWSSL_DATA") or None
    if data_root is None:
        raise InputError(
            f"{name} needs a data root: give --data-root or set ROWSSL_DATA to a folder with {benchmark.wants}"
        )
    root = Path(data_root)
    if not root.is_dir():
        raise InputError(f"the data root {printable(str(root))} is not a folder")
    listed = None if class_list is None else Path(class_list)
    places = [root / folder for folder in benchmark.folders]
    for place in places:
        tables = benchmark.read(place, variant or next(iter(benchmark.variants), ""), listed)
        if tables is not None:
            return tables
    looked = ", ".join(printable(str(place)) for place in places)
    raise InputError(f"{name} was not found in {looked}: put {benchmark.wants} into the first of them")


def _digits() -> tuple[Table, Table]:
    """1,797 images of 8 x 8: 50 of each digit, evenly spread over the bundled order, are test, 1,297 are train."""
    from sklearn.datasets import load_digits

    bundled = load_digits()
    # Grey levels 0..16 become 0..255.
    images = np.rint(bundled.images * (255 / 16)).astype(np.uint8)
    labels = bundled.target.astype(np.int64)
    is_test = np.zeros(len(labels), dtype=bool)
    for digit in range(10):
        rows = np.flatnonzero(labels == digit)
        is_test[rows[np.arange(_DIGITS_TEST) * len(rows) // _DIGITS_TEST]] = True
    names = tuple(str(digit) for digit in range(10))

    def table(mask: np.ndarray, part: str) -> Table:
        rows = np.flatnonzero(mask)
        return Table(
            labels[rows], names, tuple(f"image {i}" for i in rows), images=images[rows], source=f"digits {part}"
        )

    return table(~is_test, "train"), table(is_test, "test")


def _class_folders(folder: Path) -> list[str]:
    return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))


def _folder_table(folder: Path, classes: Sequence[str], only: Collection[str] | None = None) -> Table:
    """The images of the class folders of `folder`, class by class, files in order of name; `only` of these classes."""
    root = Path(os.path.abspath(folder))
    labels, names, paths = [], [], []
    for label, name in enumerate(track(classes, f"listing {folder.name}")):
        if only is not None and name not in only:
            continue
        try:
            files = sorted(entry.name for entry in os.scandir(root / name))
        except OSError as error:
            raise InputError(f"{printable(str(folder / name))} cannot be read: {error.strerror}") from error
        files = [file for file in files if os.path.splitext(file)[1].lower() in SUFFIXES and not file.startswith(".")]
        if not files:
            raise InputError(f"{printable(str(folder / name))} holds no images")
        labels += [label] * len(files)
        names += [printable(f"{name}/{file}") for file in files]
        paths += [root / name / file for file in files]
    shown = tuple(printable(name) for name in classes)
    return Table(np.array(labels), shown, tuple(names), paths=tuple(paths), source=printable(str(folder)))


def _imagenet100(folder: Path, variant: str, class_list: Path | None) -> tuple[Table, Table] | None:
    """Four class lists go by the name ImageNet-100; the class ids are the places in the chosen one."""
    train, val = folder / "train", folder / "val"
    if not (train.is_dir() and val.is_dir()):
        return None
    present = _class_folders(train)
    if not present:
        raise InputError(f"{printable(str(train))} holds no class folders")
    if variant == "folder":
        classes = present
    elif variant == "bacon":
        classes = list(class_lists.BACON_IMAGENET100_SYNSETS)
    elif variant == "orca":
        # The list is published with SCAN and not known here, so the user brings it.
        classes = _read_class_list(class_list or folder / "imagenet100.txt")
    else:
        if len(present) != 1000:
            raise InputError(
                f"--variant gcd counts in the 1,000 ILSVRC folders but {printable(str(train))} holds {len(present)}: "
                "use --variant folder to take those as they are"
            )
        classes = [present[i] for i in class_lists.GCD_IMAGENET100_INDICES]
    for part in (train, val):
        missing = sorted(set(classes) - set(_class_folders(part)))
        if missing:
            raise InputError(
                f"{printable(str(part))} lacks {len(missing)} of the {len(classes)} classes of --variant {variant}, "
                f"among them {printable(missing[0])}"
            )
    return _folder_table(train, classes), _folder_table(val, classes)


def _read_class_list(path: Path) -> list[str]:
    """The first word of every line that is not empty, each once."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"--variant orca needs SCAN's list of 100 synsets, one a line, in {printable(str(path))} or as --class-list"
        ) from error
    classes = [line.split()[0] for line in lines if line.strip()]
    if len(classes) != 100 or len(set(classes)) != 100:
        raise InputError(f"{printable(str(path))} must name 100 synsets, one a line and each once, not {len(classes)}")
    return classes


def _cub200(folder: Path, variant: str, class_list: Path | None) -> tuple[Table, Table] | None:
    """CUB_200_2011: the lists say which images there are, of which class, and which are for training."""
    lists = [folder / f"{name}.txt" for name in ("images", "image_class_labels", "train_test_split")]
    if not any(path.is_file() for path in lists):
        return None
    files, labels, parts = (_read_pairs(path) for path in lists)
    if not files or set(files) != set(labels) or set(files) != set(parts):
        raise InputError(f"the three lists of {printable(str(folder))} do not name the same images")
    root = Path(os.path.abspath(folder)) / "images"
    ids = sorted(files)
    names = {}
    for image in ids:
        if not labels[image].isdecimal() or int(labels[image]) < 1 or parts[image] not in ("0", "1"):
            raise InputError(
                f"{printable(str(folder))}: image {image} has class {labels[image]!r}, part {parts[image]!r}"
            )
        if ".." in Path(files[image]).parts or Path(files[image]).is_absolute() or not (root / files[image]).is_file():
            raise InputError(f"{printable(str(folder / 'images' / files[image]))} of images.txt is not there")
        names[int(labels[image]) - 1] = printable(files[image].split("/")[0])
    if sorted(names) != list(range(len(names))):
        raise InputError(f"{printable(str(lists[1]))} leaves out a class between 1 and {max(names) + 1}")

    def table(part: str) -> Table:
        rows = [image for image in ids if parts[image] == part]
        return Table(
            np.array([int(labels[image]) - 1 for image in rows], dtype=np.int64),
            tuple(names[c] for c in range(len(names))),
            tuple(printable(files[image]) for image in rows),
            paths=tuple(root / files[image] for image in rows),
            source=printable(str(folder)),
        )

    return table("1"), table("0")


def _read_pairs(path: Path) -> dict[int, str]:
    """`number value` on each line."""
    pairs = {}
    try:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if line.strip():
                key, _, value = line.strip().partition(" ")
                if not key.isdecimal() or not value:
                    raise InputError(f"{printable(str(path))} line {number} is not `number value`")
                pairs[int(key)] = value.strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{printable(str(path))} cannot be read: {printable(str(error))}") from error
    return pairs


def _herbarium19(folder: Path, variant: str, class_list: Path | None) -> tuple[Table, Table] | None:
    """Class folders in order of name (as text), which the published list of known classes counts on."""
    train, test = folder / "small-train", folder / "small-validation"
    if not (train.is_dir() and test.is_dir()):
        return None
    classes = _class_folders(train)
    tested = _class_folders(test)
    if not classes:
        raise InputError(f"{printable(str(train))} holds no class folders")
    if set(tested) - set(classes):
        extra = printable(min(set(tested) - set(classes)))
        raise InputError(f"{printable(str(test))} holds class {extra}, which {printable(str(train))} does not")
    return _folder_table(train, classes), _folder_table(test, classes, only=set(tested))


def _cifar(classes: int) -> Benchmark:
    archive = "cifar-10-python.tar.gz" if classes == 10 else "cifar-100-python.tar.gz"
    return Benchmark(
        folders=(f"cifar{classes}", ""),
        wants=f"train.parquet and test.parquet of Hugging Face, or the original {archive}",
        read=lambda folder, variant, class_list: read_cifar(folder, classes),
    )


BENCHMARKS = {
    "digits": Benchmark((), "nothing, it comes with scikit-learn", lambda folder, variant, class_list: _digits()),
    "cifar10": _cifar(10),
    "cifar100": _cifar(100),
    "imagenet100": Benchmark(
        ("imagenet100", "imagenet", ""),
        "the folders train/<synset> and val/<synset> of ImageNet",
        _imagenet100,
        ("gcd", "orca", "bacon", "folder"),
    ),
    "cub200": Benchmark(
        ("cub200", "CUB_200_2011", "cub200/CUB_200_2011", ""),
        "images.txt, image_class_labels.txt, train_test_split.txt and images/ of CUB_200_2011",
        _cub200,
    ),
    "herbarium19": Benchmark(
        ("herbarium19", "herbarium_19", ""),
        "the folders small-train/<class> and small-validation/<class> of Herbarium 2019",
        _herbarium19,
    ),
}
