"""A number that is none in the middle of the real command: it stops within a step, says where, and harms nothing."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from faults.forked import Forked
from faults.trainings import fit_command, weights
from rowssl.core.files import read_directory
from rowssl.data.feed import ArraySource
from rowssl.methods import METHODS

SHORT = ("dts",)  # tests/training/test_loop.py poisons all methods inside the loop
STEP = 40  # the third epoch of 15 steps
Tally = Callable[[str, int, int], None]


def poisoned(value: str, *command: str) -> None:
    """`rowssl COMMAND`, with a bad number in all views of row 7 from step 40 on (a step asks for two views and two to mix with)."""
    from rowssl.cli import app

    plain, asked = ArraySource.view, [0]

    def view(self: ArraySource, rows: np.ndarray, views: np.ndarray, epoch: int) -> object:
        result = plain(self, rows, views, epoch)
        if epoch >= 0 and len(rows) == 16:
            asked[0] += 1
            if asked[0] > 4 * STEP:
                result[rows == 7] = float(value)
        return result

    ArraySource.view = view  # type: ignore[method-assign, assignment]
    sys.argv = ["rowssl", *command]
    app.main()


@pytest.mark.parametrize("value", ["nan", "inf"])
@pytest.mark.parametrize("method", [name for name in METHODS if METHODS[name].trains])
def test_training_stops_before_harm(
    method: str, value: str, forked: Forked, embeddings: Path, tmp_path: Path, full: bool, tally: Tally
) -> None:
    if not full and (method not in SHORT or value != "nan"):
        pytest.skip("only with the full counts: make faults")
    out = tmp_path / "run"
    command = fit_command(embeddings, method, out, 6)
    ended = forked.call("faults.test_nonfinite:poisoned", value, *command)
    assert ended.code == 3, ended.err
    sentence = ended.err.strip().splitlines()[-1]
    assert sentence.startswith("rowssl: The ")
    assert "Traceback" not in ended.err
    dump = json.loads((out / "non-finite.json").read_text())
    assert 7 in dump["rows"]
    assert len(dump["rows"]) == 16
    assert f"at step {dump['step']}:" in sentence
    assert dump["step"] >= STEP
    assert dump["step"] // 15 == dump["epoch"]
    assert dump["terms"]
    assert all(isinstance(value, str) or math.isfinite(value) for value in dump["terms"].values())
    last = sorted((out / "checkpoints").iterdir())[-1]
    tensors, facts = read_directory(last)
    assert dump["step"] // 15 * 15 <= facts["step"] <= dump["step"]  # of its epoch's start, or of a step within it
    assert all(bool(tensor.isfinite().all()) for group in tensors.values() for tensor in group.values())
    # Without the bad number the same command goes on to the weights that it would have had.
    assert forked.rowssl(*command).code == 0
    assert forked.rowssl(*fit_command(embeddings, method, tmp_path / "whole", 6)).code == 0
    same = weights(out) == weights(tmp_path / "whole")
    tally(f"{value} in one row: {method} stops within the step, and the last checkpoint goes on", int(same), 1)
