"""Where things are in a run directory, and what the model in it says of itself."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EINVAL
from pathlib import Path
from typing import Any, BinaryIO

from rowssl.core.errors import InputError
from rowssl.core.files import check_format, read_manifest, require_plain

LOCK = ".lock"
PAUSE = 0.05  # seconds between two looks at a lock
GROWING = ("checkpoints", "tensorboard")  # folders that a run writes into while it trains
NEEDED = {
    "classes": list, "n_known": int, "temperature": float, "method": str, "options": dict, "seed": int, "encoder": dict,
    "identity": str, "far": dict,
}  # fmt: skip


def model_folder(path: str | Path) -> Path:
    """The model's folder of a run directory, or the folder itself when it is one."""
    path = Path(path)
    for folder in (path / "model", path):
        if os.path.isfile(folder / "manifest.json"):  # unlike Path's own, also of a name that no file can have
            return folder
    if not os.path.isdir(path):
        raise InputError(f"{path} does not exist or is no folder: give the run directory of `rowssl fit`.")
    raise InputError(f"{path} holds no finished run: there is no model/manifest.json in it.")


def run_folder(path: str | Path) -> Path:
    """The run directory of a run directory or of the model folder in it."""
    folder = model_folder(path)
    return folder.parent if folder.name else folder.resolve().parent


def check_model_facts(facts: dict[str, Any], folder: Path) -> None:
    """An InputError unless these are the facts of a model that this version can use."""
    from rowssl.methods import METHODS
    from rowssl.runs.checks import check_facts

    if isinstance(facts.get("model_format"), int) and facts["model_format"] > 1:
        check_format(facts["model_format"], 1, folder)
    if facts.get("model_format") != 1:
        raise InputError(
            f"{folder} was written by another version of rowssl: run the same `rowssl fit` command again, it is quick."
            if "classes" in facts
            else f"{folder} holds no model of rowssl."
        )
    for name, kind in NEEDED.items():
        if not isinstance(facts.get(name), kind):
            raise InputError(f"{folder / 'manifest.json'} does not say what {name} is.")
    ids = facts["classes"]
    if (
        not all(isinstance(one, str) for one in ids)
        or len(set(ids)) < len(ids)
        or not 0 <= facts["n_known"] <= len(ids)
    ):
        raise InputError(f"{folder / 'manifest.json'} does not name every class once.")
    if facts["method"] not in METHODS:
        raise InputError(
            f"{folder} was trained by method {facts['method']!r}, which this version of rowssl does not have."
        )
    check_facts(facts, folder)


def read_model_facts(path: str | Path) -> dict[str, Any]:
    """Checked facts of a model, without its tensors."""
    folder = model_folder(path)
    facts = read_manifest(folder)
    check_model_facts(facts, folder)
    return facts


@contextmanager
def alone(out: Path | None) -> Iterator[None]:
    """A run directory for one training at a time, tidied of what a killed one left; a second training is refused at once."""
    from rowssl.core import distributed
    from rowssl.core.files import tidy

    if out is None or distributed.rank() != 0:
        yield
        return
    try:
        _refuse_strange(out)
        out.mkdir(parents=True, exist_ok=True)
        stream = _take(out / LOCK)
    except OSError as error:
        raise InputError(f"{out} cannot be written: {error.strerror or error}.") from error
    with stream:
        tidy(out)
        try:
            yield
        finally:
            with suppress(OSError):
                if os.listdir(out) == [LOCK]:  # refused before anything was written: leave no trace
                    (out / LOCK).unlink()
                    out.rmdir()


def _refuse_strange(out: Path) -> None:
    """A run that is continued may come from a stranger: nothing is written outside its folder, no pipe is waited for."""
    for place in (out / name for name in GROWING):
        if os.path.islink(place):
            raise InputError(f"{place} is a link, and a run writes into its own folder alone: remove the link.")
    require_plain(out / "metrics.jsonl")
    for manifest in out.glob("checkpoints/step-*/manifest.json"):
        require_plain(manifest)


def _take(path: Path) -> BinaryIO:
    """The lock file, locked; its holder may have removed it just before it was free, then there is another one to take."""
    while True:
        stream = open(path, "ab", opener=_no_link)  # noqa: SIM115 (closed by the caller, with the lock)
        try:
            import fcntl

            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stream.close()
            raise InputError(
                f"another process is at work in {path.parent}: wait for it, or choose another --out."
            ) from None
        except (ImportError, OSError):  # Windows, some network file systems: no locks, no promise
            return stream
        if path.exists() and os.path.samestat(os.fstat(stream.fileno()), path.stat()):
            return stream
        stream.close()


def _no_link(path: str, flags: int) -> int:
    """Open a file itself, never what a link of its name leads to, nor a pipe to wait for: a run may come from a stranger."""
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    descriptor = os.open(path, flags, 0o666)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(EINVAL, f"{Path(path).name} is no plain file", path)


class Busy(InputError):
    """Another process edits the run, for longer than could be waited."""


@contextmanager
def locked(run: Path, patience: float | None = None) -> Iterator[None]:
    """One process (and one thread) at a time, or Busy after so many seconds; the lock is free again when its holder dies."""
    try:
        stream = open(run / ".edits.lock", "ab", opener=_no_link)  # noqa: SIM115 (closed below, with the lock)
    except OSError as error:
        raise InputError(f"{run} cannot be written: {error.strerror or error}.") from error
    with stream:
        try:
            _wait_for(stream, run, patience)
        except (ImportError, OSError):  # Windows, some network file systems
            raise InputError(
                f"{run} is on a file system without locks: copy the run to another one to edit it."
            ) from None
        yield


def _wait_for(stream: BinaryIO, run: Path, patience: float | None) -> None:
    """Take the lock of a run when it is free; it cannot be waited for with a limit, only looked at."""
    import fcntl

    from rowssl.core.console import err

    began = time.monotonic()
    while True:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if patience is not None and time.monotonic() >= began + patience:
                raise Busy(f"Another process is editing {run}: nothing was changed, try again later.") from None
        if patience is None:
            err.print(f"waiting for another process that edits {run}", markup=False, soft_wrap=True)
            fcntl.flock(stream, fcntl.LOCK_EX)
            return
        time.sleep(PAUSE)
