"""Processes: retries, reasons, locks, and a cluster that is not there. The cells here are tiny programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from rowssl.bench import engine, runners
from rowssl.bench.cell import write_sealed
from rowssl.bench.grid import Cell, Variant, grid, read_result
from rowssl.core.cluster import Cluster
from rowssl.core.errors import InputError
from rowssl.core.files import lock

BASE = {"data": {"name": "digits"}, "encoder": {"name": "pixels"}}
# Fails as often as `fail` says, then puts the result in place that lies ready.
PROGRAM = """
import os, pathlib, signal, sys
folder = pathlib.Path(sys.argv[1])
print("noise on the way", "threads", os.environ["OMP_NUM_THREADS"])
left = int((folder / "fail").read_text())
(folder / "fail").write_text(str(left - 1))
if left == 99:
    os.kill(os.getpid(), signal.SIGKILL)
if left > 0:
    print("the reason it failed", file=sys.stderr)
    sys.exit(2 if left > 50 else 1)
for name in ("metrics.json", "cell.json"):
    (folder / name).write_text((folder / ("ready-" + name)).read_text())
"""


class Programs(runners.LocalRunner):
    def command(self, folder: Path) -> list[str]:
        return [sys.executable, "-c", PROGRAM, str(folder)]


def ready(cell: Cell, runs: Path, fail: int) -> Path:
    """A folder whose program fails so often and then finishes."""
    folder = cell.folder(runs)
    folder.mkdir(parents=True)
    (folder / "fail").write_text(str(fail))
    identity = cell.config.identity("t", "e", "10")
    metrics = {"identity": identity, "classes": {"heads": 10, "estimated": 9}, "seconds": 1.0, "peak_memory_mb": 1.0}
    (folder / "ready-metrics.json").write_text(json.dumps(metrics))
    config = cell.config.model_dump(mode="json")
    facts = {
        "identity": identity,
        "cell": cell.hash,
        "config": config,
        "table": "t",
        "encoder": {"name": "e", "sha256": "e"},
        "sha256": {},
    }
    write_sealed(folder / "ready-cell.json", facts)
    return folder


def test_failures_are_tried_once_more_and_told(tmp_path):
    cells = grid(BASE, methods=["kmeans"], seeds=range(5))
    fails = [0, 1, 2, 51, 99]  # at once; at the second attempt; never; refused; killed
    folders = [ready(cell, tmp_path, fail) for cell, fail in zip(cells, fails, strict=True)]
    failures = engine.run_queue(dict(zip(folders, cells, strict=True)), tmp_path, Programs(2), retries=1)
    assert {failure.cell.config.seed: failure.reason for failure in failures} == {
        2: "the reason it failed",
        3: "the reason it failed",
        4: "the reason it failed",
    }
    assert [read_result(cell, tmp_path) is not None for cell in cells] == [True, True, False, False, False]
    # One attempt for what was refused, two for the others that failed; of the killed one the second was refused.
    assert [int((folder / "fail").read_text()) for folder in folders] == [-1, -1, 0, 50, 97]
    said = (folders[0] / "log.txt").read_text()
    assert f"threads {min(max(1, runners.cores() // 2), int(os.environ['OMP_NUM_THREADS']))}" in said


def test_reasons(tmp_path):
    assert engine.reason(tmp_path, -9) == "killed by SIGKILL (often a lack of memory)"
    assert engine.reason(tmp_path, -15) == "killed by SIGTERM"
    assert engine.reason(tmp_path, 7) == "exit code 7, and it said nothing"
    (tmp_path / "log.txt").write_text("Traceback\n  ...\nValueError: no\n\n")
    assert engine.reason(tmp_path, 1) == "ValueError: no"


def test_stopping_ends_all_processes(tmp_path):
    class Sleepers(runners.LocalRunner):
        def command(self, folder: Path) -> list[str]:
            return [sys.executable, "-c", "import time; time.sleep(60)"]

        def wait(self) -> list[runners.Ended]:
            raise KeyboardInterrupt

    cells = grid(BASE, methods=["kmeans"], seeds=range(2))
    runner, started = Sleepers(2), list[subprocess.Popen[bytes]]()
    submit = runner.submit
    runner.submit = lambda folder: (submit(folder), started.append(runner.running[folder]))[0]  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        engine.run_queue({cell.folder(tmp_path): cell for cell in cells}, tmp_path, runner, retries=1)
    assert len(started) == 2
    assert all(process.returncode is not None for process in started)


def test_one_grid_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "PATIENCE", 0.3)
    cells = grid(BASE, methods=["kmeans"])
    with lock(tmp_path / ".lock", busy=""), pytest.raises(InputError, match="another command is at work"):
        engine.run_cells(cells, tmp_path, workers=0)


def test_places_to_run():
    with pytest.raises(InputError, match="local, ray"):
        runners.open_runner("moon", None)
    assert runners.open_runner("local", None).slots == runners.cores()
    assert isinstance(runners.open_runner("local", 0), runners.InlineRunner)
    if find_spec("ray") is None:
        with pytest.raises(InputError, match="pip install"):
            runners.open_runner("ray", None)
    with pytest.raises(InputError, match="--workers 0"):
        runners.open_runner("ray", 0)


def test_processes_are_spread_over_gpus(tmp_path, monkeypatch):
    class Say(runners.LocalRunner):
        def command(self, folder):
            return [sys.executable, "-c", "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"]

    monkeypatch.setattr(runners, "gpus", lambda: ["3", "5"])
    assert runners.open_runner("local", None).slots == 2
    runner, folders = Say(4), [tmp_path / str(number) for number in range(4)]
    for folder in folders:
        folder.mkdir()
        runner.submit(folder)
    while runner.busy:
        runner.wait()
    assert [(folder / "log.txt").read_text().strip() for folder in folders] == ["3", "5", "3", "5"]


def test_gpus_are_those_that_are_allowed(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert runners.gpus() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,GPU-1f2e")
    assert runners.gpus() == ["6", "GPU-1f2e"]
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert runners.gpus() == []


@pytest.mark.parametrize(
    ("on", "place"),
    [
        ("local", None),
        ("rayon", None),
        ("ray", Cluster(None)),
        ("ray://head:10001", Cluster("ray://head:10001")),
        ("ray?gpus=0.25", Cluster(None, gpus=0.25)),
        ("ray://head:10001?cpus=4&gpus=1", Cluster("ray://head:10001", 4, 1.0)),
    ],
)
def test_a_cluster_and_what_a_task_asks_of_it(on, place):
    assert Cluster.read(on) == place


@pytest.mark.parametrize("wishes", ["gpus", "gpus=many", "cpus=0", "cpus=1.5", "gpus=-1", "gpus=nan", "tpus=1"])
def test_wishes_that_mean_nothing_are_one_sentence(wishes):
    with pytest.raises(InputError, match="cpus=N and gpus=N"):
        Cluster.read(f"ray?{wishes}")


def test_a_cell_is_named_by_what_decides_it(tmp_path, monkeypatch):
    plain, again = grid(BASE, methods=["dts"])[0], grid(BASE, methods=["dts"], table="components")[0]
    assert plain.name == again.name  # tables share runs
    varied = grid(BASE, methods=["dts"], variants=[Variant("x", {"method.options.tau_max": 0.5})])[0]
    assert varied.name.startswith("digits-dts-tau_max=0.5-s0-")
    assert varied.hash != plain.hash
    quick = grid({**BASE, "train": {"save_seconds": 1.0}}, methods=["dts"])[0]
    assert quick.hash == plain.hash  # how often is saved decides nothing
    assert grid({**BASE, "train": {"momentum": 0.9}}, methods=["dts"])[0].hash == plain.hash  # as it is by default
    assert grid({**BASE, "train": {"momentum": 0.8}}, methods=["dts"])[0].hash != plain.hash
    (tmp_path / "e").mkdir()
    monkeypatch.chdir(tmp_path)
    assert grid({**BASE, "encoder": {"name": "e"}}, methods=["dts"])[0].config.encoder.name == str(tmp_path / "e")
    order = [
        (c.config.seed, c.config.data.prior)
        for c in grid(BASE, methods=["dts"], priors=["match", "mismatch"], seeds=[0, 1])
    ]
    assert order == [(0, "match"), (0, "mismatch"), (1, "match"), (1, "mismatch")]
