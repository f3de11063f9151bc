"""kill -9 at random moments of the real command: the same command again ends in the same weights, bit for bit."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from faults.forked import Forked
from faults.runs import fit_command, log_of, metrics_of, strays, weights
from rowssl.methods import METHODS

SHORT = ("dts",)  # tests/test_train.py kills all of them inside the loop
Tally = Callable[[str, int, int], None]


@pytest.mark.parametrize("method", METHODS)
def test_a_killed_run_ends_in_the_same_weights(
    method: str, forked: Forked, embeddings: Path, tmp_path: Path, full: bool, tally: Tally
) -> None:
    if not full and method not in SHORT:
        pytest.skip("only with the full counts: make faults")
    kills, epochs = (20, 20) if full else (1, 6)
    moment = random.Random(method)
    whole = tmp_path / "whole"
    ended = forked.rowssl(*fit_command(embeddings, method, whole, epochs))
    assert ended.code == 0, ended.err
    hit = same = 0
    while hit < kills:
        out = tmp_path / f"killed-{hit}"
        command = fit_command(embeddings, method, out, epochs)
        if full:  # any moment of the run, also before the first checkpoint and while the files are written
            first = forked.rowssl(*command, kill=moment.uniform(0.02, 0.98) * ended.seconds)
        else:
            first = forked.rowssl(*command, kill=moment.uniform(0, 0.2), once=f"{out}/checkpoints/step-*")
        if first.killed:
            hit += 1
            again = forked.rowssl(*command)
            assert again.code == 0, again.err
            assert log_of(out) == log_of(whole)
            assert metrics_of(out) == metrics_of(whole)
            assert strays(out) == []
            same += weights(out) == weights(whole)
        shutil.rmtree(out)
    tally(f"exact resume: {method}, `kill -9` at a random moment of `rowssl fit`", same, kills)


def fill_cache(folder: str, seconds: str) -> None:
    """What is killed: a trunk cache of 48 pictures in shards of four."""
    from nn.test_trunk import run_alone

    run_alone(folder, seconds)


def test_a_killed_trunk_cache_has_the_same_bytes(forked: Forked, tmp_path: Path, full: bool, tally: Tally) -> None:
    kills, moment = 20 if full else 2, random.Random(2)
    ended = forked.call("faults.test_resume:fill_cache", tmp_path / "whole", 0.01)
    assert ended.code == 0, ended.err
    (whole,) = (tmp_path / "whole").glob("*/trunk.f16")
    hit = same = 0
    while hit < kills:
        folder = tmp_path / f"killed-{hit}"
        first = forked.call(
            "faults.test_resume:fill_cache", folder, 0.01, kill=moment.uniform(0.1, 0.9) * ended.seconds
        )
        if first.killed:
            hit += 1
            again = forked.call("faults.test_resume:fill_cache", folder, 0)
            assert again.code == 0, again.err
            assert strays(folder) == []
            (data,) = folder.glob("*/trunk.f16")
            same += data.read_bytes() == whole.read_bytes()
        shutil.rmtree(folder, ignore_errors=True)
    tally("exact resume: the trunk cache, `kill -9` while it is computed", same, kills)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_killed_grid_has_the_same_cells(
    workers: int, forked: Forked, embeddings: Path, tmp_path: Path, full: bool, tally: Tally
) -> None:
    if not full:
        pytest.skip("only with the full counts: make faults (tests/bench kills a grid once)")

    def command(out: Path) -> list[object]:
        options = ["--methods", "kmeans,simgcd,dts", "--seeds", "0,1", "--classes", 8, "--epochs", 6, "--reports"]
        sets = ["--set", "train.save_seconds=0", "--set", "train.batch_size=16"]
        return ["bench", "--data", embeddings, *options, *sets, "--workers", workers, "--out", out]

    kills, moment = 10, random.Random(workers)
    ended = forked.rowssl(*command(tmp_path / "whole"))
    assert ended.code == 0, ended.err
    hit = same = 0
    while hit < kills:
        out = tmp_path / f"killed-{hit}"
        if forked.rowssl(*command(out), kill=moment.uniform(0.05, 0.95) * ended.seconds).killed:
            hit += 1
            again = forked.rowssl(*command(out))
            assert again.code == 0, again.err
            assert strays(out) == []
            same += weights(out / "runs") == weights(tmp_path / "whole" / "runs")
        shutil.rmtree(out, ignore_errors=True)
    where = f"{workers} processes" if workers else "its own process"
    tally(f"exact resume: a grid of six cells in {where}, `kill -9` of the grid", same, kills)


def processes_below(parent: int) -> list[int]:
    """Children of a process."""
    files = Path(f"/proc/{parent}/task").glob("*/children")
    return [int(child) for file in files for child in file.read_text().split()]


def test_a_killed_torchrun_ends_in_the_same_weights(embeddings: Path, tmp_path: Path, full: bool, tally: Tally) -> None:
    """One of the two processes is killed, or both and torchrun with them."""
    if not full:
        pytest.skip("only with the full counts: make faults (tests/test_distributed.py resumes two processes once)")
    kills, moment = 20, random.Random(3)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "rowssl"]

    def start(out: Path) -> subprocess.Popen[str]:
        command = [*launcher, *map(str, fit_command(embeddings, "dts", out, 20))]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            command, env=environment, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )  # fmt: skip

    process = start(tmp_path / "whole")
    _, said = process.communicate(timeout=600)
    assert process.returncode == 0, said
    hit = same = 0
    while hit < kills:
        out = tmp_path / f"killed-{hit}"
        process = start(out)
        until = time.monotonic() + 120
        while not list(out.glob("checkpoints/step-*")) and process.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(moment.uniform(0, 1))
        group, workers = os.getpgid(process.pid), processes_below(process.pid)
        if process.poll() is None and len(workers) == 2:
            victim = moment.randrange(3)
            if victim == 2:
                for pid in (process.pid, *workers):
                    os.kill(pid, signal.SIGKILL)
            else:
                os.kill(workers[victim], signal.SIGKILL)
            hit += 1
        process.communicate(timeout=600)
        assert group == process.pid
        again = start(out)
        _, said = again.communicate(timeout=600)
        assert again.returncode == 0, said
        assert strays(out) == []
        same += weights(out) == weights(tmp_path / "whole")
        shutil.rmtree(out)
    tally("exact resume: torchrun with two processes, `kill -9` of one or all", same, kills)
