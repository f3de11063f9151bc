"""A stop at any time keeps what was computed of a trunk cache: Ctrl-C, a signal that raises, a picture that is gone, kill -9."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from encoders.test_trunk import RECIPE, data_of, kill, make_encoder, make_table
from rowssl.data.table import Table
from rowssl.encoders import trunk
from rowssl.encoders.trunk import open_trunk_cache

ROWS, VIEWS = 40, 3
OPTIONS = {
    "recipe": RECIPE,
    "n_views": VIEWS,
    "seed": 5,
    "batch_size": 2 * (1 + VIEWS),  # two rows at a time
    "workers": 1,
}


def entries(folder: Path) -> list[tuple[int, bool]]:
    """How many rows each shard of the manifest has, and whether it is whole."""
    manifests = list(folder.glob("*/manifest.json"))
    shards = json.loads(manifests[0].read_text())["shards"] if manifests else []
    return [(sum(end - begin for begin, end in one["rows"]), one["sha256"] is not None) for one in shards]


def compute(folder: Path, seconds: float = 0.0, progress: bool = False) -> None:
    open_trunk_cache(make_table(ROWS, seconds), make_encoder(), folder=folder, progress=progress, **OPTIONS)  # type: ignore[arg-type]


def run_alone(folder: str, how: str) -> None:
    """What a child process does: say every row it asks for, which takes a moment each."""
    plain = Table.image

    def image(table: Table, row: int) -> object:
        (Path(folder) / "asked").write_text(str(row))
        return plain(table, row)

    def stop(*_: object) -> None:
        sys.exit(3)

    Table.image = image  # type: ignore[method-assign, assignment]
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets what runs in the background ignore it
    trunk.SAVE_SECONDS = 0.2 if how == "SIGKILL" else 1e9
    compute(Path(folder), 0.05)


@pytest.mark.parametrize("how", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_a_stop_keeps_what_was_computed(how: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    compute(whole)
    assert entries(whole) == [(ROWS, True)]
    broken.mkdir()
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path]),
    }
    process = subprocess.Popen([sys.executable, __file__, str(broken), how], env=environment, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 120
    asked = broken / "asked"
    while not asked.is_file() or int(asked.read_text() or 0) < ROWS // 2:
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.01)
    if how == "SIGKILL":
        kill(process)  # type: ignore[arg-type]
    else:
        process.send_signal(getattr(signal, how))
        assert process.wait(60) == {"SIGINT": -signal.SIGINT, "SIGTERM": 3}[how]
    (done, first), (left, second) = entries(broken)  # of one shard the rows that are there, and the rest
    assert (first, second, done + left) == (True, False, ROWS)
    lost = {"SIGKILL": 10}.get(how, 6)  # a row takes 0.05 s; a few more are read ahead of the trunk
    assert ROWS // 2 - lost <= done < ROWS
    compute(broken, progress=True)
    assert f"trunk cache: {left} images ({done} more are there)" in capfd.readouterr().err
    assert data_of(broken) == data_of(whole)
    assert entries(broken) == [(done, True), (left, True)]


def test_an_error_keeps_what_was_computed_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compute(tmp_path / "whole")
    plain = Table.image

    def image(table: Table, row: int) -> object:
        if row == 30:
            raise RuntimeError("gone")
        return plain(table, row)

    monkeypatch.setattr(Table, "image", image)
    with pytest.raises(RuntimeError, match="gone"):
        compute(tmp_path / "broken")
    assert entries(tmp_path / "broken") == [(30, True), (10, False)]
    with pytest.raises(RuntimeError, match="gone"):  # a second time: the rest is no further
        compute(tmp_path / "broken")
    assert entries(tmp_path / "broken") == [(30, True), (10, False)]
    monkeypatch.undo()
    compute(tmp_path / "broken")
    assert data_of(tmp_path / "broken") == data_of(tmp_path / "whole")


def test_what_is_kept_now_and_then_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that was stored in many steps is one entry in the end, with the bytes and the hash of one step."""
    compute(tmp_path / "whole")
    monkeypatch.setattr(trunk, "SAVE_SECONDS", 0.0)
    written: list[list[int]] = []
    plain = trunk.TrunkStore.write

    def write(store: trunk.TrunkStore, shard: trunk.Shard, values: np.ndarray) -> None:
        plain(store, shard, values)
        written.append([len(one.rows) for one in store.shards])

    monkeypatch.setattr(trunk.TrunkStore, "write", write)
    compute(tmp_path / "steps")
    assert written == [[done, ROWS - done] for done in range(2, ROWS, 2)] + [[ROWS]]
    one, other = (next((tmp_path / name).iterdir()) for name in ("whole", "steps"))
    for name in ("trunk.f16", "manifest.json"):
        assert (one / name).read_bytes() == (other / name).read_bytes()


if __name__ == "__main__":
    run_alone(*sys.argv[1:])
