"""A run may come from a stranger: its files are read only where they are plain files, not through links, and not without an end."""

from __future__ import annotations

import json
import os
import stat
from errno import ELOOP
from pathlib import Path
from typing import Any, BinaryIO

from rowssl.errors import InputError
from rowssl.memory import available_memory

LARGEST = 2**27  # bytes: one edit may name every row of a large run
LARGEST_MANIFEST = 2**29  # bytes: that of answers/ holds the name and the path of every row
LARGEST_CONFIG = 2**23  # bytes: that of an encoder may name 20,000 classes, twice
PARSED = 26  # bytes of memory that a byte of JSON can take, as `[],` over and over does
UNASKED = 2**22  # bytes that are parsed anyway: a container counts what it has read of files as memory that is taken


class NoRoomError(InputError):
    """A file, whole as it may be, that there is no memory for."""


def open_plain(path: Path, largest: int = LARGEST, *, links: bool = False) -> BinaryIO:
    """The file itself, to be read: no link, no pipe that would be waited for, no device that never ends, nothing huge.

    With `links` also what a link leads to: Hugging Face's cache is made of links.
    """
    # Without O_NONBLOCK it is the opening of a pipe that waits.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    if not links:
        flags |= getattr(os, "O_NOFOLLOW", 0)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        reason = "it is a link" if error.errno == ELOOP and not links else error.strerror or str(error)
        raise InputError(f"{path} cannot be read: {reason}.") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size > largest:
        os.close(descriptor)
        raise InputError(f"{path} {_why_not(status, largest)}.")
    return os.fdopen(descriptor, "rb")


def _why_not(status: os.stat_result, largest: int) -> str:
    if not stat.S_ISREG(status.st_mode):
        return "cannot be read: it is no plain file"
    return f"is too large for such a file: {status.st_size:,} bytes, of at most {largest:,}"


def read_plain(path: Path, largest: int = LARGEST, *, links: bool = False) -> bytes:
    """The content of a file of a run; InputError names it."""
    try:
        with open_plain(path, largest, links=links) as stream:
            return stream.read(largest)  # it may grow meanwhile
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from error


def read_json(path: Path, largest: int = LARGEST, *, links: bool = False) -> Any:
    """The value in a JSON file of a run; InputError names the file that cannot be read or holds none."""
    content = read_plain(path, largest, links=links)
    needed = PARSED * len(content)
    if len(content) > UNASKED and 0 < available_memory() < needed:
        raise NoRoomError(f"{path} may need {needed / 1e9:.1f} GB to be read, more than the memory that is free.")
    try:
        return json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read: it is not JSON, or damaged.") from error


def require_plain(path: Path, largest: int = LARGEST) -> None:
    """An InputError if a file that is read elsewhere is none to be opened; a missing one is left to its reader to name."""
    if os.path.lexists(path):
        open_plain(path, largest).close()
