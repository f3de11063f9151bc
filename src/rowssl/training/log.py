"""metrics.jsonl: one line per epoch, in step with the checkpoints whatever moment a run is killed at.

Every line ends with a checksum of the rest of it, so that a damaged line is named and left out.
Where TensorBoard is installed the same numbers go to `tensorboard/` beside it; metrics.jsonl is the record, that a picture of it.
"""

from __future__ import annotations

import json
import zlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rowssl.core.console import err
from rowssl.core.files import write_text
from rowssl.training.checkpoints import Checkpoints

CHECK = "check"  # the key of a line's checksum


class EpochLog:
    """Lines by epoch, continued from the file if there is one; without a path they are kept in memory alone."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.board: Any = None
        self.draws = path is not None and find_spec("tensorboard") is not None
        self.lines: dict[int, dict[str, Any]] = {}
        if path is not None and path.exists():
            rows, damaged = read_lines(path)
            self.lines = {row["epoch"]: row for row in rows}
            if damaged:
                which = ", ".join(map(str, damaged))
                err.print(f"{path} is damaged: what line {which} said is left out", markup=False, soft_wrap=True)

    def add(self, row: dict[str, Any]) -> None:
        """Write the line of an epoch; lines of later epochs are from before a kill, and will be written again."""
        self.lines = {epoch: line for epoch, line in self.lines.items() if epoch < row["epoch"]}
        self.lines[row["epoch"]] = row
        self._write()
        self._draw(row)

    def recover(self, checkpoints: Checkpoints | None) -> None:
        """The line of a checkpoint's epoch, if a kill came between the checkpoint and the line."""
        row = checkpoints.restored.get("epoch") if checkpoints else None
        if row is not None and row["epoch"] not in self.lines:
            self.lines[row["epoch"]] = row
            self._write()

    def rows(self) -> list[dict[str, Any]]:
        """All lines in order."""
        return [self.lines[epoch] for epoch in sorted(self.lines)]

    def _write(self) -> None:
        if self.path is not None:
            write_text(self.path, log_text(self.rows()))

    def _draw(self, row: dict[str, Any]) -> None:
        """One epoch's numbers for TensorBoard; points of later epochs, from before a kill, are purged."""
        if self.path is None or not self.draws:
            return
        try:
            if self.board is None:
                from torch.utils.tensorboard import SummaryWriter

                self.board = SummaryWriter(str(self.path.parent / "tensorboard"), purge_step=row["epoch"])
            for group, values in (("loss", row["loss"]), ("phi", row.get("phi") or {}), ("", {"lr": row["lr"]})):
                for name, value in values.items():
                    self.board.add_scalar(f"{group}/{name}" if group else name, value, row["epoch"])
        except OSError as error:
            self._no_board(error)

    def _no_board(self, error: OSError) -> None:
        """A full disk and the like: the numbers are in metrics.jsonl, so no run ends for want of their picture."""
        err.print(f"TensorBoard's files cannot be written: {error.strerror or error}", markup=False, soft_wrap=True)
        self.draws, self.board = False, None

    def close(self) -> None:
        """Hand over what TensorBoard has not written yet."""
        if self.board is not None:
            try:
                self.board.close()
            except OSError as error:
                self._no_board(error)


def checksum(row: dict[str, Any]) -> str:
    """Of everything a line says."""
    return f"{zlib.crc32(json.dumps(row, sort_keys=True).encode()):08x}"


def log_text(rows: list[dict[str, Any]]) -> str:
    """The content of a metrics.jsonl."""
    return "".join(json.dumps({**row, CHECK: checksum(row)}) + "\n" for row in rows)


def read_lines(path: Path) -> tuple[list[dict[str, Any]], list[int]]:
    """As `parse_lines`, of a file."""
    return parse_lines(path.read_bytes())


def parse_lines(content: bytes) -> tuple[list[dict[str, Any]], list[int]]:
    """The lines that are whole, without their checksums, and the numbers of those that are not."""
    rows, damaged = list[dict[str, Any]](), list[int]()
    for number, line in enumerate(content.splitlines(), start=1):
        try:
            row = json.loads(line)
            said = row.pop(CHECK, None)
            whole = isinstance(row["epoch"], int) and said == checksum(row)
        except (ValueError, KeyError, TypeError, AttributeError):
            whole = False
        if whole:
            rows.append(row)
        else:
            damaged.append(number)
    return rows, damaged
