"""The checkpoints of a run: the newest whole one counts, and a damaged one is passed over for the one before it.

A run is known by its identity, a hash of everything that decides its result; a checkpoint of another identity is not continued.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from rowssl.config import RunConfig
from rowssl.core.errors import InputError
from rowssl.core.files import FormatError, NoRoomError, read_directory, read_json, tidy, write_directory
from rowssl.data.feed import Feed
from rowssl.methods import method_options

Tensors = dict[str, dict[str, Tensor]]
Facts = dict[str, Any]
Saved = tuple[Tensors, Facts]


def run_identity(config: RunConfig, feed: Feed, views: int | None, *facts: str) -> str:
    """The identity of a run; facts are fingerprints of its input, `views` how many of each image are cached, None without images.

    What the defaults come to is part of it: another version may choose otherwise for the same configuration and data.
    """
    options = method_options(config.method.name, config.method.options)
    feeding = {
        "batch_size": feed.batch_size, "epochs": feed.epochs, "augmentation": asdict(feed.augmentation), "views": views,
    }  # fmt: skip
    return config.identity(*facts, json.dumps({"method": options, "feed": feeding}, sort_keys=True, default=str))


def refuse_another(out: Path | None, identity: str) -> None:
    """An InputError if another finished run is there: a method without checkpoints would lay itself over it."""
    try:
        finished = {} if out is None else read_json(out / "metrics.json")
    except InputError:
        return  # none, or damaged: it is written again
    found = finished.get("identity") if isinstance(finished, dict) else None
    if out is not None and isinstance(found, str) and found != identity:
        raise other_options(out)


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

    def latest(self, identity: str, misfit: Callable[[Tensors, Facts], str] | None = None) -> Saved | None:
        """The newest checkpoint that is whole; InputError if it belongs to a run with other options.

        `misfit` says what of a whole checkpoint cannot be used, if anything: it may be untrusted input.
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
            if facts.get("identity") != identity:
                raise other_options(self.folder.parent)
            if misfit and (why := misfit(tensors, facts)):
                self.problems.append(f"{path} does not belong to this run: {why}.")
                self.passed_over.add(path)
                continue
            self.restored = facts
            return tensors, facts
        return None
