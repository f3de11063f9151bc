"""Benchmarks that are folders of images, one for each class."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from rowssl.core.console import track
from rowssl.core.errors import InputError
from rowssl.core.text import printable
from rowssl.data.images import SUFFIXES
from rowssl.data.table import Table


def class_folders(folder: Path) -> list[str]:
    return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))


def folder_table(folder: Path, classes: Sequence[str], only: Collection[str] | None = None) -> Table:
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
