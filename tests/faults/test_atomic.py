"""Files are whole or not there at all: under kill -9, on a full disk, in a read-only folder, and for two at a time."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from faults.forked import Forked
from faults.trainings import fit_command, strays, weights
from rowssl.core import files
from rowssl.core.errors import InputError
from rowssl.core.files import read_directory, tidy, write_directory
from rowssl.runs.folder import alone
from rowssl.training.checkpoints import Checkpoints

VALUES = [torch.full((50_000,), float(value)) for value in range(5)]
Tally = Callable[[str, int, int], None]


def killed(work: Callable[[], None], seconds: float) -> None:
    """Run something in a child process and kill it."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(1)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_a_kill_while_saving_leaves_the_latest_checkpoint_whole(tmp_path: Path, full: bool, tally: Tally) -> None:
    kills, folder, moment, step = 200 if full else 5, tmp_path / "checkpoints", random.Random(1), 0
    Checkpoints(folder).save(step, {"method": {"weight": VALUES[0]}}, {"identity": "me"})

    def save_on() -> None:
        for number in range(step + 1, step + 10_000):
            Checkpoints(folder).save(number, {"method": {"weight": VALUES[number % 5]}}, {"identity": "me"})

    whole = 0
    for _ in range(kills):
        killed(save_on, moment.uniform(0.005, 0.1))
        checkpoints = Checkpoints(folder)
        checkpoints.clean()
        found = checkpoints.latest("me")
        assert found is not None
        good = not checkpoints.problems and found[1]["step"] >= step and not strays(tmp_path)
        step = int(found[1]["step"])
        whole += good and torch.equal(found[0]["method"]["weight"], VALUES[step % 5])
    assert step > 0
    tally(
        "atomic files: `kill -9` while checkpoints are saved, the latest loads and no temporary is left", whole, kills
    )


def replace_on(path: Path) -> None:
    """Write a directory over itself for ever; both of its files always hold the same number."""
    for number in range(1, 10_000):
        content = {"value": VALUES[number % 5]}
        write_directory(path, {"one": content, "two": content}, {"number": number})


@pytest.mark.parametrize("swap", [True, False], ids=["swapped in one step", "renamed twice"])
def test_a_kill_while_a_directory_is_replaced_leaves_the_old_or_the_new(
    tmp_path: Path, full: bool, tally: Tally, swap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills, path, moment = 200 if full else 5, tmp_path / "model", random.Random(2)
    if not swap:
        monkeypatch.setattr(files, "exchange", lambda one, two: False)
    elif not can_swap(tmp_path):
        pytest.skip("this system cannot swap two directories in one step")
    write_directory(path, {"one": {"value": VALUES[0]}, "two": {"value": VALUES[0]}}, {"number": 0})
    whole = 0
    for _ in range(kills):
        killed(lambda: replace_on(path), moment.uniform(0.005, 0.06))
        there = path.exists()
        assert there or not swap  # never a moment without a directory of that name
        tidy(tmp_path)
        tensors, facts = read_directory(path)
        right = VALUES[facts["number"] % 5]
        whole += all(torch.equal(tensors[name]["value"], right) for name in ("one", "two")) and not strays(tmp_path)
    how = "in one step" if swap else "where the system cannot swap"
    tally(f"atomic files: `kill -9` while a model folder is replaced {how}, it is whole", whole, kills)


def can_swap(folder: Path) -> bool:
    for name in ("left", "right"):
        (folder / name).mkdir()
    (folder / "left" / "mark").touch()
    swapped = files.exchange(folder / "left", folder / "right")
    assert (folder / "right" / "mark").exists() == swapped
    for name in ("left", "right"):
        files.remove(folder / name)
    return swapped


def test_a_kill_between_two_renames_is_mended_at_the_next_start(tmp_path: Path) -> None:
    """The one moment in which neither name is there, on systems that cannot swap names: hit on purpose."""
    path = tmp_path / "model"
    write_directory(path, {"one": {"value": VALUES[1]}}, {"number": 1})

    def die_between() -> None:
        files.exchange = lambda one, two: False  # type: ignore[assignment]
        plain, renames = os.replace, []

        def replace(source: object, target: object) -> None:
            if renames:
                os.kill(os.getpid(), signal.SIGKILL)
            renames.append(target)
            plain(source, target)  # type: ignore[arg-type]

        os.replace = replace  # type: ignore[assignment]
        write_directory(path, {"one": {"value": VALUES[2]}}, {"number": 2})

    killed(die_between, 0.5)
    assert not path.exists()
    with alone(tmp_path):
        pass
    tensors, facts = read_directory(path)
    assert facts["number"] == 1
    assert torch.equal(tensors["one"]["value"], VALUES[1])
    assert strays(tmp_path) == []


def test_what_another_process_is_writing_is_left_alone(tmp_path: Path) -> None:
    mine, its = tmp_path / f".model.{os.getpid()}.tmp", tmp_path / ".edits.json.1.tmp"  # process 1 always lives
    mine.mkdir()
    its.touch()
    tidy(tmp_path)
    assert sorted(tmp_path.iterdir()) == [its]


def test_a_killed_writer_whose_number_another_process_got_is_no_excuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers of processes come back, soon in a container: one that started after the file was left did not begin it."""
    left = tmp_path / ".edits.json.1.tmp"  # process 1 lives, and may be somebody else's
    left.touch()
    tidy(tmp_path)
    assert left.exists()
    monkeypatch.setattr(files, "_started", lambda process: left.stat().st_ctime + 60)
    tidy(tmp_path)
    assert not left.exists()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux says when a process started")
def test_when_a_process_started(tmp_path: Path) -> None:
    before = time.time()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert before - 1 < files._started(child.pid) < time.time() + 1
    child.communicate(b"\n")


@pytest.mark.parametrize("fault", ["full", "read-only"])
def test_a_disk_that_takes_no_more(
    fault: str, small_disk: Path, forked: Forked, embeddings: Path, tmp_path: Path
) -> None:
    """The command says one sentence and fails; what was saved stays, and with room again it goes on to the same weights."""
    out = small_disk / "run"
    command = fit_command(embeddings, "simgcd", out, 6)
    assert forked.rowssl(*command, kill=0.0, once=f"{out}/checkpoints/step-00000030").killed
    before = checkpoints_in(out)
    if fault == "full":
        with (small_disk / "ballast").open("wb", buffering=0) as ballast, suppress(OSError):
            while True:
                ballast.write(bytes(4096))
    else:
        subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    ended = forked.rowssl(*command)
    last = ended.err.strip().splitlines()[-1]
    assert ended.code == 2, ended.err
    assert last.startswith("rowssl: ")
    assert str(out) in last
    assert "cannot be written" in last
    assert "Traceback" not in ended.err
    assert checkpoints_in(out) == before
    if fault == "full":
        (small_disk / "ballast").unlink()
    else:
        subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    assert forked.rowssl(*command).code == 0
    assert forked.rowssl(*fit_command(embeddings, "simgcd", tmp_path / "whole", 6)).code == 0
    assert weights(out) == weights(tmp_path / "whole")
    assert strays(out) == []


def checkpoints_in(out: Path) -> dict[str, dict[str, str]]:
    """The hashes of every checkpoint, all of them whole but for one that a kill met while it was removed."""
    manifests = sorted(out.glob("checkpoints/step-*/manifest.json"))
    return {path.parent.name: read_directory(path.parent)[1]["sha256"] for path in manifests}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_folder_that_somebody_else_may_not_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write everywhere, so the child becomes nobody; relative paths, since it may not enter the folders above."""
    monkeypatch.chdir(tmp_path)
    tmp_path.chmod(0o755)
    Checkpoints(Path("run/checkpoints")).save(1, {"method": {"weight": VALUES[1]}}, {"identity": "me"})
    child = os.fork()
    if child == 0:
        try:
            os.setuid(65534)
            Checkpoints(Path("run/checkpoints")).save(2, {"method": {"weight": VALUES[2]}}, {"identity": "me"})
        except InputError as error:
            os._exit(0 if "step-00000002 cannot be written: Permission denied" in str(error) else 3)
        finally:
            os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    found = Checkpoints(Path("run/checkpoints")).latest("me")
    assert found is not None
    assert found[1]["step"] == 1


def test_a_second_process_in_the_same_folder_is_refused(forked: Forked, embeddings: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with alone(out):
        (out / "something").touch()
        for method in ("simgcd", "kmeans"):
            ended = forked.rowssl(*fit_command(embeddings, method, out, 2))
            assert ended.code == 2
            assert ended.err == f"rowssl: another process is at work in {out}: wait for it, or choose another --out.\n"
    assert sorted(file.name for file in out.iterdir()) == [".lock", "something"]
    with alone(out), pytest.raises(InputError, match="another process is at work"), alone(out):
        pass


def test_a_refused_command_leaves_no_folder(forked: Forked, tmp_path: Path) -> None:
    ended = forked.rowssl("fit", tmp_path / "nothing.npz", "--out", tmp_path / "run")
    assert ended.code == 2
    assert list(tmp_path.iterdir()) == []
