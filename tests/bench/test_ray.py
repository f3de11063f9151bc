"""A grid on a real Ray cluster of one node: the same numbers as on one's own processes, and failures told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="ray is not installed")

GRID = """
import json, sys
from pathlib import Path
from rowssl.bench import engine, pool
from rowssl.bench.cells import grid
out = Path(sys.argv[1])
base = {"data": {"name": "digits"}, "encoder": {"name": "pixels", "views": 2, "cache": sys.argv[2]}, "train": {"epochs": 1}}
cells = grid(base, methods=["kmeans", "simgcd"], gammas=[10.0], seeds=[0])
bad = grid({**base, "train": {"epochs": 1, "lr": 1e30}}, methods=["simgcd"], gammas=[10.0], seeds=[1])
folders = {cell.folder(out): cell for cell in [*cells, *bad]}
for folder in folders:
    folder.mkdir(parents=True)
runner = pool.open_runner(sys.argv[3], 2)
failures = engine.run_queue(folders, out, runner, retries=0)
runner.stop()
print(json.dumps({"failed": [f.cell.name for f in failures], "names": [c.name for c in cells]}))
"""


def run(tmp_path: Path, on: str) -> dict[str, object]:
    command = [sys.executable, "-c", GRID, str(tmp_path / on), str(tmp_path / "cache"), on]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    metrics = [json.loads((tmp_path / on / name / "metrics.json").read_text()) for name in found["names"]]
    return {"failed": found["failed"], "in_bacc": [m["in_bacc"] for m in metrics]}


def test_ray_does_what_local_processes_do(tmp_path):
    ray = run(tmp_path, "ray")
    assert ray == run(tmp_path, "local")
    assert len(ray["failed"]) == 1  # type: ignore[arg-type]
