"""A real Ray cluster of one node: the same numbers and the same cache as of one's own processes, and failures told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from encoders.test_fill import config_of, files_of, make_pictures
from rowssl.config import DataConfig, MethodConfig, RunConfig
from rowssl.data.problem import load_problem
from rowssl.encoders import trunk
from rowssl.training.features import open_features

pytest.importorskip("ray", reason="ray is not installed")

GRID = """
import json, sys
from pathlib import Path
from rowssl.bench import engine
from rowssl.bench.grid import grid
out = Path(sys.argv[1])
base = {"data": {"name": "digits"}, "encoder": {"name": "pixels", "views": 2, "cache": sys.argv[2]}, "train": {"epochs": 1}}
cells = grid(base, methods=["kmeans", "simgcd"], gammas=[10.0], seeds=[0])
bad = grid({**base, "train": {"epochs": 1, "lr": 1e30}}, methods=["simgcd"], gammas=[10.0], seeds=[1])
failures = engine.run_cells([*cells, *bad], out, on=sys.argv[3], workers=2).failures
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
    ray = run(tmp_path, "ray?cpus=1")
    assert ray == run(tmp_path, "local")
    assert len(ray["failed"]) == 1  # type: ignore[arg-type]


FILL = """
import os, signal, sys, threading, time
from pathlib import Path
from rowssl.bench import engine
from rowssl.bench.grid import grid
from rowssl.encoders import trunk
trunk.SHARD_ROWS = 2
pictures, cache = sys.argv[1:]

def kill():
    # One process of the cluster, once the first shards are there.
    while not list(Path(cache).glob("*/trunk.f16")):
        time.sleep(0.002)
    while not killed:
        for number in filter(str.isdecimal, os.listdir("/proc")):
            try:
                command = Path(f"/proc/{number}/cmdline").read_bytes()
                if command.startswith(b"ray::shard_values"):
                    os.kill(int(number), signal.SIGKILL)
                    killed.append(number)
                    return
            except OSError:
                pass

killed = []
threading.Thread(target=kill, daemon=True).start()
base = {"data": {"source": pictures}, "encoder": {"name": "pixels", "image_size": 16, "views": 2, "cache": cache}}
engine.prepare(grid(base, methods=["kmeans"]), [], Path(cache), on="ray?cpus=1")
print("killed:", len(killed))
"""


def test_the_trunk_cache_is_filled_by_ray_whoever_is_killed(tmp_path, monkeypatch):
    pictures, one, ray = tmp_path / "pictures", tmp_path / "one", tmp_path / "ray"
    pictures.mkdir()
    make_pictures(pictures)
    monkeypatch.setattr(trunk, "SHARD_ROWS", 2)
    open_features(
        load_problem(DataConfig(source=str(pictures))),
        RunConfig(encoder=config_of(one), method=MethodConfig(name="dts")),
    )

    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled"}
    command = [sys.executable, "-c", FILL, str(pictures), str(ray)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "goes on alone" not in done.stderr
    assert files_of(ray) == files_of(one)
