"""Files that are whole or not there at all, and files that may come from somebody else.

Writing: under a temporary name, synced, then renamed once, so that `kill -9` at any moment leaves the previous file or directory
whole. A directory of tensors is safetensors and a manifest with the sha256 of every file, so a flipped byte is found by name. No
pickle, in or out. Reading: a run may be untrusted input, so its files are read only where they are plain files, not through links,
and not without an end.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from errno import EINVAL, ELOOP, ENOLCK, ENOSYS, EOPNOTSUPP
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from rowssl.core.errors import InputError
from rowssl.core.memory import available_memory

if TYPE_CHECKING:
    from torch import Tensor

LARGEST = 2**27  # bytes: one edit may name every row of a large run
LARGEST_MANIFEST = 2**29  # bytes: that of answers/ holds the name and the path of every row
LARGEST_CONFIG = 2**23  # bytes: that of an encoder may name 20,000 classes, twice
PARSED = 26  # bytes of memory that a byte of JSON can take, as `[],` over and over does
UNASKED = 2**22  # bytes that are parsed anyway: a container counts what it has read of files as memory that is taken
FORMAT = 1
TEMPORARY = re.compile(r"\.(?P<name>.+)\.(?P<process>\d+)(?P<old>\.old)?\.tmp")


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
    return parse_json(read_plain(path, largest, links=links), path)


def parse_json(content: bytes, path: Path) -> Any:
    """The value in the content of a file; InputError names the file."""
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


class FormatError(InputError):
    """A whole directory, written by another version of rowssl."""


def sha256_of(path: Path) -> str:
    """Hash of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _beside(path: Path, old: str = "") -> Path:
    """A temporary name in the same folder, which `tidy` knows."""
    return path.with_name(f".{path.name}.{os.getpid()}{old}.tmp")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary name to write a file to; where the block ends well, the file is synced and takes the place of `path`.

    An OSError of the block is one of writing: an InputError names `path`, and what was there before stays.
    """
    if not path.name:  # the root, or "."
        raise InputError(f"{path} cannot be written: it is a folder.")
    temporary = _beside(path)
    try:
        if not path.parent.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)  # never through a link that somebody put there
        yield temporary
        sync(temporary)
        os.replace(temporary, path)
        sync(path.parent)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}.") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_directory(path: Path, tensors: Mapping[str, Mapping[str, Tensor]], facts: Mapping[str, Any]) -> None:
    """Write `NAME.safetensors` for each group of tensors, and `manifest.json` with facts and hashes, all or nothing.

    An existing directory of that name is replaced only after the new one is complete, in one step where the system can.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    temporary, old = _beside(path), _beside(path, ".old")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        hashes = {}
        for name, group in tensors.items():
            file = temporary / f"{name}.safetensors"
            save_file({key: value.detach().cpu().contiguous() for key, value in group.items()}, file)
            sync(file)
            hashes[file.name] = sha256_of(file)
        manifest = temporary / "manifest.json"
        content = {"format": FORMAT, **facts, "sha256": hashes}
        manifest.write_text(json.dumps({**content, "self": own_hash(content)}, indent=1), encoding="utf-8")
        sync(manifest)
        for name in hashes:  # safetensors writes private files; a model is made to be shared like the rest
            (temporary / name).chmod(manifest.stat().st_mode & 0o777)
        sync(temporary)
        if not path.exists():
            os.replace(temporary, path)
        elif not exchange(temporary, path):
            # A kill between these two leaves no directory of that name: `tidy` puts the old one back.
            os.replace(path, old)
            os.replace(temporary, path)
        sync(path.parent)
        for replaced in (temporary, old):
            remove(replaced)
    except (OSError, SafetensorError) as error:
        remove(temporary)
        raise InputError(f"{path} cannot be written: {getattr(error, 'strerror', None) or error}.") from error


class Busy(InputError):
    """Another process holds a lock, for longer than could be waited."""


@contextmanager
def lock(
    path: Path, *, busy: str, seconds: float | None = 0.0, waiting: str = "", without: str | None = None
) -> Iterator[None]:
    """One process, and one thread, at a time; the lock is free again when its holder dies.

    Parameters
    ----------
    path
        The lock file. It stays: to remove it while others wait for it would give them locks of their own.
    busy, seconds
        What the Busy error says when another still has the lock after so many seconds; None waits for ever.
    waiting
        Said on standard error before waiting.
    without
        What the InputError says on a file system without locks (some network file systems); None goes on without one.
    """
    from filelock import FileLock, Timeout  # costs a tenth of a second

    from rowssl.core.console import err

    held = FileLock(path, fallback_to_soft=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(path) and not stat.S_ISREG(os.lstat(path).st_mode):  # a run may be untrusted input
            raise OSError(EINVAL, f"{path.name} is no plain file")
        try:
            held.acquire(blocking=False)
        except Timeout:
            if waiting:
                err.print(waiting, markup=False, soft_wrap=True)
            held.acquire(timeout=-1 if seconds is None else seconds)
    except Timeout:
        raise Busy(busy) from None
    except OSError as error:
        if error.errno not in (ENOSYS, ENOLCK, EOPNOTSUPP):
            raise InputError(f"{path.parent} cannot be written: {error.strerror or error}.") from error
        if without is not None:
            raise InputError(without) from None
    try:
        yield
    finally:
        held.release()


def exchange(one: Path, two: Path) -> bool:
    """Swap two names in one step (Linux's renameat2, which Python does not have); False where that cannot be done."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    here, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    if rename(here, os.fsencode(one), here, os.fsencode(two), swap) == 0:
        return True
    code = ctypes.get_errno()
    if code in (EINVAL, ENOSYS, EOPNOTSUPP):  # an old kernel, or a file system that cannot
        return False
    raise OSError(code, os.strerror(code), str(two))


def remove(path: Path) -> None:
    """A file or a directory, as far as it can be removed."""
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def tidy(folder: Path) -> None:
    """Remove what killed processes left half written in a folder; put back what one had moved aside to replace it."""
    for stray in folder.glob(".*.tmp"):
        made = TEMPORARY.fullmatch(stray.name)
        if made is None or _lives(int(made["process"]), stray):  # not ours, or not left behind
            continue
        if made["old"] and not (folder / made["name"]).exists():
            os.replace(stray, folder / made["name"])
        else:
            remove(stray)


def _lives(process: int, begun: Path) -> bool:
    """Whether another process, which may have begun this file, is there: it is not ours to remove."""
    try:
        with suppress(PermissionError):  # it is there, and somebody else's
            os.kill(process, 0)
        # One that started after the file was last touched or renamed only got the number of the one that was killed.
        later = _started(process) > begun.lstat().st_ctime + 1
    except (ProcessLookupError, FileNotFoundError):
        return False
    except OverflowError:
        return True
    return process != os.getpid() and not later


def _started(process: int) -> float:
    """When a process started, in seconds since 1970, where the system tells (Linux); else long ago."""
    try:
        ticks = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
        boot = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    except (OSError, IndexError, AttributeError):
        return 0.0
    return boot + int(ticks) / os.sysconf("SC_CLK_TCK")


def own_hash(content: Mapping[str, Any]) -> str:
    """What a manifest says of itself, so that a flipped bit in it is noticed like one in the files it names."""
    rest = {key: value for key, value in content.items() if key != "self"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def read_manifest(path: Path) -> dict[str, Any]:
    """Facts of a directory alone, checked against their own hash; the tensors are not looked at."""
    manifest = path / "manifest.json"
    try:
        facts = read_json(manifest, LARGEST_MANIFEST)
        whole = isinstance(facts, dict) and facts.get("self") == own_hash(facts)
    except NoRoomError:  # nothing is wrong with the file
        raise
    except (InputError, RecursionError) as error:
        raise InputError(f"{manifest} is missing or damaged.") from error
    if not isinstance(facts, dict) or not isinstance(facts.get("sha256"), dict):
        raise InputError(f"{manifest} is not a manifest of rowssl.")
    if not whole:
        raise InputError(f"{manifest} is damaged: it is not what was written.")
    check_format(facts.get("format"), FORMAT, path)
    return facts


def check_format(found: object, reads: int, where: Path) -> None:
    """A FormatError when the number is not the one that this version reads, which says so when it is a later one."""
    if found != reads:
        whose = ": a newer version of rowssl wrote it" if isinstance(found, int) and found > reads else ""
        raise FormatError(f"{where} has format {found}, this version of rowssl reads format {reads}{whose}.")


def read_directory(path: Path) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """Tensors and facts of a directory, every file checked against its hash; InputError names the file that is wrong."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    facts = read_manifest(path)
    tensors = {}
    for name, expected in facts["sha256"].items():
        file = path / name
        if Path(name).name != name or not name.endswith(".safetensors") or file.is_symlink():
            raise InputError(f"{path / 'manifest.json'} names the file {name!r}, which cannot belong to it.")
        if not file.is_file() or sha256_of(file) != expected:
            raise InputError(f"{file} is missing or damaged: its sha256 is not the one in manifest.json.")
        try:
            tensors[file.stem] = load_file(file)
        except (SafetensorError, OSError) as error:
            raise InputError(f"{file} cannot be read as safetensors: {str(error).splitlines()[0]}.") from error
    return tensors, facts
