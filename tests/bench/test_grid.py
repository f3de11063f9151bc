"""Real grids on the bundled digits: complete, resumed, interrupted, failed."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from command import rowssl
from rowssl.bench import engine
from rowssl.bench.cell import read_sample
from rowssl.bench.cost import plan
from rowssl.bench.grid import Cell, grid, read_result, read_results
from rowssl.bench.results import COLUMNS
from rowssl.core.errors import InputError
from rowssl.methods.simgcd import SimGCD

QUICK = ("--data", "digits", "--gamma", "10", "--encoder", "pixels", "--views", "2")
BASE = {"data": {"name": "digits"}, "encoder": {"name": "pixels", "views": 2}, "train": {"epochs": 2}}


def bench(*arguments: object) -> int:
    """The command in this process; its exit code."""
    return rowssl("bench", *QUICK, *arguments)


WHOLE = ("--methods", "kmeans,simgcd", "--prior", "match,mismatch", "--seeds", "0,1", "--epochs", 2, "--workers", 0)


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> Path:
    """A grid of eight cells."""
    out = tmp_path_factory.mktemp("grid")
    assert bench(*WHOLE, "--out", out) == 0
    return out


def cells(**changes) -> list[Cell]:
    axes = {
        "methods": ["kmeans", "simgcd"],
        "priors": ["match", "mismatch"],
        "gammas": [10.0],
        "seeds": [0, 1],
        **changes,
    }
    return grid(BASE, **axes)


def state(out: Path) -> dict[str, tuple[int, bytes]]:
    """Content and time of everything a grid wrote."""
    return {str(p): (p.stat().st_mtime_ns, p.read_bytes()) for p in sorted((out / "runs").rglob("*")) if p.is_file()}


def test_results_are_complete(done):
    with (done / "results.csv").open(newline="") as file:
        reader = csv.DictReader(file)
        assert tuple(reader.fieldnames or ()) == COLUMNS
        rows = list(reader)
    assert len({row["config"] for row in rows}) == 8
    per_cell = {(row["method"], row["prior"], row["seed"]): 0 for row in rows}
    assert len(per_cell) == 8
    for row in rows:
        assert 0 <= float(row["value"]) <= 100
        assert row["dataset"] == "digits"
        assert (row["gamma"], row["protocol"], row["encoder"]) == ("10", "rowssl", "pixels 8 px")
        assert float(row["seconds"]) > 0
        assert float(row["peak_memory_mb"]) > 50
        assert row["commit"]
    one = [row for row in rows if (row["method"], row["prior"], row["seed"]) == ("SimGCD", "mismatch", "1")]
    numbers = {(row["metric"], row["group"]): float(row["value"]) for row in one}
    assert len(numbers) == len(one)  # every number once
    metrics = read_result(cells()[-1], done / "runs").metrics
    assert (metrics["method"], metrics["seed"]) == ("simgcd", 1)
    assert numbers["In-bACC", "New"] == pytest.approx(metrics["in_bacc"]["new"], abs=1e-4)
    assert numbers["Tr-ACC", "All"] == pytest.approx(metrics["tr_acc"]["all"], abs=1e-4)
    assert numbers["In-bACC", "UFew"] == pytest.approx(metrics["in_bacc_groups"]["total"]["novel"]["few"], abs=1e-4)
    assert numbers["C_hat", ""] == metrics["classes"]["estimated"]


def test_files_for_people(done):
    page = (done / "results.md").read_text()
    assert page.count("## digits, imbalance ratio 10, prior") == 2
    assert "| k-means |" in page
    assert "**" in page
    assert "±" in page
    pictures = sorted(path.name for path in done.glob("*.svg"))
    assert len(pictures) == 6
    assert all(f"]({name})" in page for name in pictures)
    assert (done / "results.tex").read_text().count(r"\begin{table}") == 4
    for folder in (done / "runs").iterdir():
        if folder.is_dir():
            names = {path.name for path in folder.iterdir()}
            assert {"cell.json", "metrics.json", "config.json", "predictions.csv"} <= names
            assert not {"report.html", "model", "checkpoints"} & names


def test_a_second_run_runs_nothing(done, capsys):
    before, table = state(done), (done / "results.csv").read_bytes()
    assert bench(*WHOLE, "--out", done) == 0
    assert state(done) == before
    assert (done / "results.csv").read_bytes() == table
    assert "to run" not in capsys.readouterr().err


def test_list_shows_what_is_finished_and_what_the_rest_costs(done, capsys):
    before = state(done)
    assert bench(*WHOLE, "--out", done, "--list", "--seeds", "0,1,2") == 0
    text = capsys.readouterr().out
    assert "12 cells, 8 finished" in text
    assert state(done) == before
    more = cells(seeds=[1, 2])
    plans = plan(more, done / "runs", {})
    assert [one.state for one in plans] == ["finished"] * 4 + ["to run"] * 4
    assert all(one.seconds and one.seconds < 60 for one in plans[4:])  # from the seeds that are there
    unknown = plan(cells(methods=["dts"]), done / "runs", {})
    assert unknown[0].seconds is None
    rows = {one.config.data.model_dump_json(): 536 for one in more}
    assert plan(cells(methods=["dts"]), done / "runs", rows)[0].seconds > 1
    # Other options of a method are priced by what it took with these, as far as there is anything to go by.
    finished = read_results(cells(), done / "runs")
    slow = [replace(result, seconds=100 * result.seconds) for result in finished]
    other = grid({**BASE, "method": {"options": {"tau_s": 0.2}}}, methods=["simgcd"], priors=["match"], gammas=[10.0])
    keys = {other[0].config.data.model_dump_json(): 536}
    fast, slowly = (plan(other, done / "runs", keys, some)[0].seconds for some in (finished, slow))
    assert slowly == pytest.approx(100 * fast)


def test_every_cell_keeps_a_few_features(done):
    for one in cells():
        kept = read_sample(one.folder(done / "runs"))
        assert set(kept) == {"test", "unlabelled"}
        for part in kept.values():
            assert part.n_old == 5
            assert set(part.truth) == set(range(10))
            assert abs((part.feature**2).sum(1) - 1).max() < 0.01


def test_a_result_of_other_options_or_other_data_does_not_count(done, tmp_path):
    runs = done / "runs"
    finished = read_results(cells(), runs)
    assert len(finished) == 8
    one = finished[0]
    other = Cell(one.cell.config.model_copy(update={"seed": 5}))
    other.folder(tmp_path).mkdir(parents=True)
    for name in ("metrics.json", "cell.json"):
        (other.folder(tmp_path) / name).write_bytes((one.cell.folder(runs) / name).read_bytes())
    assert read_result(other, tmp_path) is None
    stale = replace(one, facts={**one.facts, "table": "something else"})
    with pytest.raises(InputError, match="other data"):
        engine.prepare([one.cell], [stale], runs)
    engine.prepare([one.cell], [one], runs)


def test_another_default_is_another_run_and_a_default_that_is_given_is_not(done, monkeypatch):
    runs, axes = done / "runs", {"methods": ["simgcd"], "priors": ["match"], "gammas": [10.0]}
    (usual,) = grid(BASE, **axes)
    (given,) = grid({**BASE, "method": {"options": {"tau_s": SimGCD.Options().tau_s}}}, **axes)
    assert given.name == usual.name
    assert read_result(given, runs) is not None
    before = usual.hash

    class Options(SimGCD.Options):
        tau_s: float = 0.2

    monkeypatch.setattr(SimGCD, "Options", Options)
    assert usual.hash != before
    assert read_result(usual, runs) is None
    other = usual.folder(runs)  # even where the old result lies in its place
    other.mkdir()
    for name in ("metrics.json", "cell.json"):
        (other / name).write_bytes(
            (given.folder(runs).parent / usual.name.replace(usual.hash, before) / name).read_bytes()
        )
    assert read_result(usual, runs) is None
    shutil.rmtree(other)


def test_a_failing_cell_is_reported_and_the_others_stand(tmp_path, capsys):
    broken = ("--methods", "kmeans,simgcd", "--epochs", 2, "--set", "train.lr=1e30", "--workers", 0)
    assert bench(*broken, "--out", tmp_path) == 1
    err = " ".join(capsys.readouterr().err.split())
    assert "failed: digits-g10-simgcd-s0-" in err
    assert "is not finite" in err
    assert "missing: 1 cell;" in err
    table = (tmp_path / "results.csv").read_text()
    assert ",k-means," in table
    assert ",SimGCD," not in table
    page = (tmp_path / "results.md").read_text()
    assert "**Missing:**" in page
    assert "is not finite" in page


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--methods", "magic"), "magic"),
        (("--methods", "simgcd", "--vary", "method.options.nothing=1,2"), "nothing"),
        (("--seeds", "a"), "--seeds"),
        (("--data", "nowhere.npz"), "nowhere.npz"),
        (("--on", "moon", "--methods", "kmeans"), "moon"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path, capsys, arguments, word):
    assert bench(*arguments, "--epochs", 2, "--out", tmp_path) == 2
    err = capsys.readouterr().err.strip()
    assert word in err.splitlines()[-1]
    assert "Traceback" not in err


def test_ablations_are_named(tmp_path, capsys):
    vary = ("--vary", "method.options.tau_s=0.1,0.2", "--vary", "train.lr=0.1")
    assert bench("--methods", "simgcd", *vary, "--out", tmp_path, "--list") == 0
    assert "2 cells" in capsys.readouterr().out


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def until(condition, seconds: float = 300.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError("it did not happen in time")


def lines(out: Path) -> list[str]:
    logs = list(out.glob("runs/*/metrics.jsonl"))
    return logs[0].read_text().splitlines() if logs else []


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_kill_the_grid_then_a_cell_and_go_on_to_the_same_numbers(tmp_path):
    options = ("--methods", "simgcd", "--epochs", "20", "--set", "train.save_seconds=0")
    assert bench(*options, "--workers", 0, "--out", tmp_path / "whole") == 0
    command = [
        sys.executable,
        "-m",
        "rowssl",
        "bench",
        *QUICK,
        *options,
        "--workers",
        "1",
        "--out",
        str(tmp_path / "cut"),
    ]

    first = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    until(lambda: len(lines(tmp_path / "cut")) >= 3)
    (child,) = children(first.pid)
    first.kill()
    first.wait()
    until(lambda: not Path(f"/proc/{child}").exists() or "(zombie)" in Path(f"/proc/{child}/status").read_text(), 10)
    before = lines(tmp_path / "cut")
    assert len(before) < 20

    second = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    until(lambda: len(lines(tmp_path / "cut")) > len(before) + 2 or second.poll() is not None)
    for victim in children(second.pid):
        os.kill(victim, signal.SIGKILL)
    _, err = second.communicate(timeout=300)
    assert second.returncode == 0, err
    assert "killed by SIGKILL" in err
    assert lines(tmp_path / "cut")[:2] == before[:2]  # continued, with the old seconds of the first epochs

    def metrics(out: Path) -> dict:
        (path,) = out.glob("runs/*/metrics.json")
        content = json.loads(path.read_text())
        return {key: value for key, value in content.items() if key not in ("seconds", "peak_memory_mb")}

    assert metrics(tmp_path / "cut") == metrics(tmp_path / "whole")
