"""Hashes of what a finished cell leaves, so that a flipped bit in it is named and never becomes a number of a table.

`cell.json` holds the sha256 of all files of its cell that are read back, and a hash of itself. Cells of earlier versions hold
neither and are taken as they are; but no flipped bit makes such a cell of one that has them, for its keys would be others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rowssl.bench.sample import FOLDER as SAMPLE
from rowssl.core.errors import InputError
from rowssl.core.files import NoRoomError, own_hash, read_json, sha256_of, write_text

FILE = "cell.json"
KEYS_WITHOUT_HASHES = frozenset(
    {"identity", "cell", "config", "table", "encoder", "recipe", "rows", "commit", "version"}
)


class DamagedError(InputError):
    """A file is not as it was written. What it belongs to can be made again."""

    def __init__(self, file: Path, why: str) -> None:
        super().__init__(f"{file} is damaged: {why}.")
        self.file = file


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file; DamagedError if there is none."""
    try:
        content = read_json(path)
    except NoRoomError:  # nothing is wrong with the file
        raise
    except InputError as error:
        raise DamagedError(path, "it cannot be read as JSON") from error
    if not isinstance(content, dict):
        raise DamagedError(path, "it holds something else")
    return content


def read_sealed(path: Path, is_earlier: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """What `write_sealed` wrote, without its hash; `is_earlier` tells whether content without one is of an earlier version."""
    content = read_object(path)
    whole = content["self"] == own_hash(content) if "self" in content else is_earlier(content)
    if not whole:
        raise DamagedError(path, "it is not what was written")
    return {key: value for key, value in content.items() if key != "self"}


def write_sealed(path: Path, content: Mapping[str, Any]) -> None:
    """A JSON file with a hash of itself."""
    write_text(path, json.dumps({**content, "self": own_hash(content)}, indent=1))


def write_facts(folder: Path, facts: Mapping[str, Any]) -> None:
    """`cell.json` of a cell all of whose other files are written."""
    from rowssl.runs.run import SEALED

    files = [*(folder / name for name in SEALED), *sorted((folder / SAMPLE).glob("*"))]
    hashes = {file.relative_to(folder).as_posix(): sha256_of(file) for file in files if file.is_file()}
    write_sealed(folder / FILE, {**facts, "sha256": hashes})


def read_facts(folder: Path) -> dict[str, Any] | None:
    """What `cell.json` says; None if there is none, that is if the cell is not finished."""
    path = folder / FILE
    return read_sealed(path, lambda content: content.keys() <= KEYS_WITHOUT_HASHES) if path.exists() else None


def check_files(folder: Path, facts: Mapping[str, Any]) -> None:
    """A DamagedError names the first file of a cell that is not the one its facts were written beside."""
    for name, expected in facts.get("sha256", {}).items():
        file = folder / name
        if not file.is_file():
            raise DamagedError(file, f"{FILE} names it, and it is missing")
        if sha256_of(file) != expected:
            raise DamagedError(file, f"its sha256 is not the one in {FILE}")
