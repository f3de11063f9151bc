"""What a person gives on the command line, as values; what cannot be meant is refused before any work is done."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from rowssl.core.errors import InputError

LONGEST_NAME = 230  # bytes of a name: systems have 255, and a temporary name beside it is longer
LARGEST_NUMBER = 9  # digits of a number of classes, or of the width of a tail
Root = Annotated[Path | None, typer.Option("--data-root", help="Folder with the benchmark's files [$ROWSSL_DATA].")]
Labels = Annotated[Path | None, typer.Option("--labels", help="CSV with some labels: path,label or row,label.")]
Source = Annotated[
    str | None, typer.Argument(help="Folder of images, CSV, parquet, or .npy/.npz/.safetensors embeddings.")
]


def parse_known(text: str | None) -> int | float | list[str] | None:
    """`50` is a number of classes, `0.5` a share, `cat,dog` names."""
    if text is None:
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return [name.strip() for name in text.split(",") if name.strip()]


def parse_classes(text: str | None) -> int | str | None:
    """A number of classes, `auto` or `oracle`."""
    if text is None or text in ("auto", "oracle"):
        return text
    if not text.isdecimal() or len(text) > LARGEST_NUMBER:
        raise InputError(f"--classes takes a number, auto or oracle, not {text[:40]!r}.")
    return int(text)


def file_to_write(path: Path | None, option: str) -> None:
    """An InputError where a file to be written later is none, before any work is done for it."""
    if path is None:
        return
    if not path.name or os.path.isdir(path):
        raise InputError(f"{option} {path} is a folder: name a file to write.")
    if len(os.fsencode(path.name)) > LONGEST_NAME:
        raise InputError(f"{option} {path.name[:40]}... cannot be written: the name of a file is shorter.")


def check_tail(text: str) -> None:
    """An InputError for a tail whose number nobody can mean; the encoder says whether it can have the others."""
    if len(text.partition(":")[2]) > LARGEST_NUMBER:
        raise InputError(f"--tail {text[:40]} is not one of auto, blocks:K, stage, adapter, adapter:WIDTH.")


def warn(sentence: str) -> None:
    """One sentence on standard error."""
    from rowssl.core.text import printable  # a name in it may be anything, and is shown on a terminal

    print(f"rowssl: {printable(sentence)}", file=sys.stderr)
