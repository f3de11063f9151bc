"""Herbarium 2019: pressed plants, as they are found."""

from __future__ import annotations

from pathlib import Path

from rowssl.core.errors import InputError
from rowssl.core.text import printable
from rowssl.data.benchmarks._folders import class_folders, folder_table
from rowssl.data.table import Table

NAMES = {"herbarium19": "pressed plants of 683 species, in the numbers in which they are found"}
WANTS = "the folders small-train/<class> and small-validation/<class> of Herbarium 2019"
FOLDERS = ("herbarium_19",)


def read(name: str, folder: Path, **_: object) -> tuple[Table, Table] | None:
    """Class folders in order of name (as text), which the published list of known classes counts on."""
    train, test = folder / "small-train", folder / "small-validation"
    if not (train.is_dir() and test.is_dir()):
        return None
    classes = class_folders(train)
    tested = class_folders(test)
    if not classes:
        raise InputError(f"{printable(str(train))} holds no class folders")
    if set(tested) - set(classes):
        extra = printable(min(set(tested) - set(classes)))
        raise InputError(f"{printable(str(test))} holds class {extra}, which {printable(str(train))} does not")
    return folder_table(train, classes), folder_table(test, classes, only=set(tested))
