"""The checkpoints of a run: the newest whole one counts, and a damaged one is passed over for the one before it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from rowssl.core.errors import InputError
from rowssl.core.files import (
    FormatError,
    NoRoomError,
    read_directory,
    tidy,
    write_directory,
)

Tensors = dict[str, dict[str, Tensor]]
Facts = dict[str, Any]
Saved = tuple[Tensors, Facts]


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
