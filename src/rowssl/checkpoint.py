"""Checkpoints: directories of safetensors and JSON, written under a temporary name, synced, then renamed once.

`kill -9` at any moment leaves the previous checkpoint whole. A manifest holds the sha256 of every file, so a flipped byte is
found by name and the previous checkpoint is used. No pickle, in or out.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from errno import EINVAL, ENOSYS, EOPNOTSUPP
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from rowssl.errors import InputError
from rowssl.plain_files import LARGEST_MANIFEST, NoRoomError, read_json

Tensors = dict[str, dict[str, Tensor]]
Facts = dict[str, Any]
Saved = tuple[Tensors, Facts]

FORMAT = 1
TEMPORARY = re.compile(r"\.(?P<name>.+)\.(?P<process>\d+)(?P<old>\.old)?\.tmp")


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


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)  # never through a link that somebody put there
        temporary.write_text(text, encoding="utf-8")
        sync(temporary)
        os.replace(temporary, path)
        sync(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise InputError(f"{path} cannot be written: {error.strerror or error}.") from error


def write_directory(path: Path, tensors: Mapping[str, Mapping[str, Tensor]], facts: Mapping[str, Any]) -> None:
    """Write `NAME.safetensors` for each group of tensors, and `manifest.json` with facts and hashes, all or nothing.

    An existing directory of that name is replaced only after the new one is complete, in one step where the system can.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
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
        old = path.with_name(f".{path.name}.{os.getpid()}.old.tmp")
        if not path.exists():
            os.replace(temporary, path)
        elif not exchange(temporary, path):
            os.replace(
                path, old
            )  # a kill between these two leaves no directory of that name: `tidy` puts the old one back
            os.replace(temporary, path)
        sync(path.parent)
        for replaced in (temporary, old):
            remove(replaced)
    except (OSError, SafetensorError) as error:
        remove(temporary)
        raise InputError(f"{path} cannot be written: {getattr(error, 'strerror', None) or error}.") from error


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


def other_options(run: Path) -> InputError:
    """What is said where a run of another identity stands."""
    return InputError(f"{run} holds a run with other options: choose another --out or remove it.")


class Checkpoints:
    """The checkpoints of a run: `step-00001234` directories in one folder, the newest whole one counts, two are kept."""

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder, self.keep = folder, keep
        self.problems: list[str] = []  # damaged checkpoints that were passed over
        self.passed_over: set[Path] = set()  # where those are
        self.restored: dict[str, Any] = {}  # facts of the checkpoint that `latest` gave

    def _listed(self) -> list[Path]:
        return sorted(self.folder.glob("step-*"))

    def clean(self) -> None:
        """Remove temporaries a killed process left."""
        for folder in (self.folder, self.folder.parent):
            tidy(folder)

    def save(self, step: int, tensors: Mapping[str, Mapping[str, Tensor]], facts: Mapping[str, Any]) -> None:
        """Write the checkpoint of a step, then remove all but it and the last good one (and later ones, which were damaged)."""
        path = self.folder / f"step-{step:08d}"
        write_directory(path, tensors, {**facts, "step": step})
        self.passed_over.discard(path)
        # One that `latest` could not use must not take the place of the one it gave.
        past = [other for other in self._listed() if other <= path and other not in self.passed_over]
        for other in self._listed():
            if other not in past[-self.keep :]:
                shutil.rmtree(other, ignore_errors=True)

    def latest(self, *identities: str, misfit: Callable[[Tensors, Facts], str] | None = None) -> Saved | None:
        """The newest checkpoint that is whole; InputError if it belongs to a run with other options.

        A run may have several identities: the one it is saved under, and those that earlier versions gave to the same options.
        `misfit` says what of a whole checkpoint cannot be used, if anything: somebody else may have written it.
        """
        for path in reversed(self._listed()):
            try:
                tensors, facts = read_directory(path)
            except (FormatError, NoRoomError):
                raise
            except InputError as error:
                self.problems.append(str(error))
                self.passed_over.add(path)
                continue
            if facts.get("identity") not in identities:
                raise other_options(self.folder.parent)
            if misfit and (why := misfit(tensors, facts)):
                self.problems.append(f"{path} does not belong to this run: {why}.")
                self.passed_over.add(path)
                continue
            self.restored = facts
            return tensors, facts
        return None
