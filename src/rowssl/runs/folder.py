"""Where things are in a run directory, and what the model in it says of itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rowssl.core.errors import InputError
from rowssl.core.files import check_format, lock, read_manifest, require_plain, tidy

LOCK = ".lock"
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

    if out is None or distributed.rank() != 0:
        yield
        return
    _refuse_strange(out)
    with lock(out / LOCK, busy=f"another process is at work in {out}: wait for it, or choose another --out."):
        tidy(out)
        try:
            yield
        finally:
            with suppress(OSError):
                if os.listdir(out) == [LOCK]:  # refused before anything was written: leave no trace
                    (out / LOCK).unlink()
                    out.rmdir()


def _refuse_strange(out: Path) -> None:
    """A run that is continued may be untrusted input: nothing is written outside its folder, no pipe is waited for."""
    for place in (out / name for name in GROWING):
        if os.path.islink(place):
            raise InputError(f"{place} is a link, and a run writes into its own folder alone: remove the link.")
    require_plain(out / "metrics.jsonl")
    for manifest in out.glob("checkpoints/step-*/manifest.json"):
        require_plain(manifest)


@contextmanager
def locked(run: Path, patience: float | None = None) -> Iterator[None]:
    """One editor at a time, process or thread, or Busy after so many seconds; without a number the lock is waited for."""
    with lock(
        run / ".edits.lock",
        busy=f"Another process is editing {run}: nothing was changed, try again later.",
        seconds=patience,
        waiting=f"waiting for another process that edits {run}" if patience is None else "",
        without=f"{run} is on a file system without locks: copy the run to another one to edit it.",
    ):
        yield
