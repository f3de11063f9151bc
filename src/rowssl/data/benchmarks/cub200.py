"""CUB-200-2011: birds."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from rowssl.core.errors import InputError
from rowssl.core.text import printable
from rowssl.data.table import Table

NAMES = {"cub200": "11,788 photographs of 200 kinds of birds"}
WANTS = "images.txt, image_class_labels.txt, train_test_split.txt and images/ of CUB_200_2011"
FOLDERS = ("CUB_200_2011", "cub200/CUB_200_2011")


def read(name: str, folder: Path, **_: object) -> tuple[Table, Table] | None:
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
