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

from faults.forked import Forked, computed, processes_below
from faults.trainings import fit_command, log_of, metrics_of, strays, weights
from rowssl.methods import METHODS

SHORT = ("dts",)  # tests/training/test_loop.py kills all of them inside the loop
KILLS = 20
Tally = Callable[[str, int, int], None]


def survived(
    seed: str, tmp_path: Path, kills: int, kill_at: Callable[[Path, float], bool], same: Callable[[Path], bool]
) -> int:
    """How often `same` holds: `kill_at(folder, share)` kills after a random share of the run, one in every `kills`-th of it."""
    moment, held = random.Random(seed), 0
    for number in range(kills):
        folder, share = tmp_path / f"killed-{number}", (number + moment.random()) / kills
        while not kill_at(folder, share):  # it came to its end before
            shutil.rmtree(folder)
            share *= 0.98
        held += same(folder)
        shutil.rmtree(folder)
    return held


@pytest.mark.parametrize("method", METHODS)
def test_a_killed_run_ends_in_the_same_weights(
    method: str, forked: Forked, embeddings: Path, tmp_path: Path, full: bool, tally: Tally
) -> None:
    if not full and method not in SHORT:
        pytest.skip("only with the full counts: make faults")
    kills, epochs = (KILLS, 10) if full else (1, 6)
    whole = tmp_path / "whole"
    ended = forked.rowssl(*fit_command(embeddings, method, whole, epochs))
    assert ended.code == 0, ended.err
    reached: set[int] = set()

    def kill_at(out: Path, share: float) -> bool:
        command = fit_command(embeddings, method, out, epochs)
        if full:  # any moment of the run, also before the first checkpoint and while the files are written
            first = forked.rowssl(*command, spent=share * ended.spent)
        else:
            first = forked.rowssl(*command, kill=0.2 * share, once=f"{out}/checkpoints/step-*")
        log = out / "metrics.jsonl"
        reached.add(log.read_bytes().count(b"\n") if log.exists() else 0)
        return first.killed

    def same(out: Path) -> bool:
        again = forked.rowssl(*fit_command(embeddings, method, out, epochs))
        assert again.code == 0, again.err
        assert log_of(out) == log_of(whole)
        assert metrics_of(out) == metrics_of(whole)
        assert strays(out) == []
        return weights(out) == weights(whole)

    held = survived(method, tmp_path, kills, kill_at, same)
    assert not full or len(log_of(whole)) < epochs or len(reached) > epochs / 2, f"killed after epochs {reached} only"
    tally(f"exact resume: {method}, `kill -9` at a random moment of `rowssl fit`", held, kills)


def fill_cache(folder: str, seconds: str) -> None:
    """What is killed: a trunk cache of 48 pictures in shards of four."""
    from encoders.test_trunk import run_alone

    run_alone(folder, seconds)


def test_a_killed_trunk_cache_has_the_same_bytes(forked: Forked, tmp_path: Path, full: bool, tally: Tally) -> None:
    kills = KILLS if full else 2
    ended = forked.call("faults.test_resume:fill_cache", tmp_path / "whole", 0.01)
    assert ended.code == 0, ended.err
    (whole,) = (tmp_path / "whole").glob("*/trunk.f16")

    def kill_at(folder: Path, share: float) -> bool:
        folder.mkdir()
        return forked.call("faults.test_resume:fill_cache", folder, 0.01, spent=share * ended.spent).killed

    def same(folder: Path) -> bool:
        again = forked.call("faults.test_resume:fill_cache", folder, 0)
        assert again.code == 0, again.err
        assert strays(folder) == []
        (data,) = folder.glob("*/trunk.f16")
        return data.read_bytes() == whole.read_bytes()

    held = survived("cache", tmp_path, kills, kill_at, same)
    tally("exact resume: the trunk cache, `kill -9` while it is computed", held, kills)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_killed_grid_has_the_same_cells(
    workers: int, forked: Forked, embeddings: Path, tmp_path: Path, full: bool, tally: Tally
) -> None:
    """In its own process and in two others, and these two give the same bits."""
    if not full:
        pytest.skip("only with the full counts: make faults (tests/bench kills a grid once)")

    def command(out: Path, workers: int = workers) -> list[object]:
        options = ["--methods", "kmeans,dts", "--seeds", "0,1", "--classes", 8, "--epochs", 4]
        sets = ["--set", "train.save_seconds=0", "--set", "train.batch_size=16"]
        return ["bench", "--data", embeddings, *options, *sets, "--workers", workers, "--reports", "--out", out]

    for number in {0, workers}:
        ended = forked.rowssl(*command(tmp_path / f"whole-{number}", number))
        assert ended.code == 0, ended.err
    whole = weights(tmp_path / "whole-0" / "runs")
    assert len(whole) >= 8
    assert weights(tmp_path / f"whole-{workers}" / "runs") == whole

    def kill_at(out: Path, share: float) -> bool:
        out.mkdir()
        return forked.rowssl(*command(out), spent=share * ended.spent).killed

    def same(out: Path) -> bool:
        again = forked.rowssl(*command(out))
        assert again.code == 0, again.err
        assert strays(out) == []
        return weights(out / "runs") == whole

    held = survived(f"grid {workers}", tmp_path, KILLS, kill_at, same)
    where = f"{workers} processes" if workers else "its own process"
    tally(f"exact resume: a grid of four cells in {where}, `kill -9` of the grid", held, KILLS)


def test_a_killed_torchrun_ends_in_the_same_weights(embeddings: Path, tmp_path: Path, full: bool, tally: Tally) -> None:
    """One of the two processes is killed, or both and torchrun with them."""
    if not full:
        pytest.skip(
            "only with the full counts: make faults (tests/training/test_distributed.py resumes two processes once)"
        )
    victim = random.Random(3)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "rowssl"]

    def start(out: Path) -> subprocess.Popen[str]:
        command = [*launcher, *map(str, fit_command(embeddings, "dts", out, 20))]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            command, env=environment, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )  # fmt: skip

    process, first, last = start(tmp_path / "whole"), 0.0, 0.0
    while process.poll() is None:
        last = max(last, computed(process.pid))
        if not first and list(tmp_path.glob("whole/checkpoints/step-*")):
            first = last
        time.sleep(0.01)
    assert process.returncode == 0, process.communicate()[1]
    early = 0.9 * first  # from here to the end: most of what comes before is Python importing torch, three times

    def kill_at(out: Path, share: float) -> bool:
        out.mkdir()
        process = start(out)
        while process.poll() is None and computed(process.pid) < early + share * (last - early):
            time.sleep(0.005)
        workers = processes_below(process.pid)
        hit = process.poll() is None and len(workers) == 2
        if hit:
            who = victim.randrange(3)
            for pid in workers[who : who + 1] or [process.pid, *workers]:
                os.kill(pid, signal.SIGKILL)
        process.communicate(timeout=3600)
        return hit

    def same(out: Path) -> bool:
        again = start(out)
        _, said = again.communicate(timeout=3600)
        assert again.returncode == 0, said
        assert strays(out) == []
        return weights(out) == weights(tmp_path / "whole")

    held = survived("torchrun", tmp_path, KILLS, kill_at, same)
    tally("exact resume: torchrun with two processes, `kill -9` of one or all", held, KILLS)
