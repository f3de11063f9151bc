"""metrics.jsonl: one line per epoch, in step with the checkpoints whatever moment a run is killed at.

Where TensorBoard is installed the same numbers go to `tensorboard/` beside it; metrics.jsonl is the record, that a picture of it.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rowssl.checkpoint import Checkpoints, write_text


class EpochLog:
    """Lines by epoch, continued from the file if there is one; without a path they are kept in memory alone."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.board: Any = None
        self.lines: dict[int, dict[str, Any]] = {}
        if path is not None and path.exists():
            self.lines = {row["epoch"]: row for row in map(json.loads, path.read_text().splitlines())}

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
            write_text(self.path, "".join(json.dumps(row) + "\n" for row in self.rows()))

    def _draw(self, row: dict[str, Any]) -> None:
        """One epoch's numbers for TensorBoard; points of later epochs, from before a kill, are purged."""
        if self.path is None or find_spec("tensorboard") is None:
            return
        if self.board is None:
            from torch.utils.tensorboard import SummaryWriter

            self.board = SummaryWriter(str(self.path.parent / "tensorboard"), purge_step=row["epoch"])
        for group, values in (("loss", row["loss"]), ("phi", row.get("phi") or {}), ("", {"lr": row["lr"]})):
            for name, value in values.items():
                self.board.add_scalar(f"{group}/{name}" if group else name, value, row["epoch"])

    def close(self) -> None:
        """Hand over what TensorBoard has not written yet."""
        if self.board is not None:
            self.board.close()
