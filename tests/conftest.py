"""Fixtures shared by all tests."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from finished import Finished

# Before torch is imported anywhere: small tensors on two threads spend their time waiting, and two test processes more so.
os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of real data beside the project; tests that need it skip on a machine without it."""
    folder = ROOT.parent / "shared"
    if not (folder / "data" / "cifar100" / "train.parquet").exists():
        pytest.skip(f"real data are not at {folder}")
    return folder


@pytest.fixture(scope="session", autouse=True)
def private_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tests never read or write the user's cache."""
    os.environ["ROWSSL_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A finished run on real pictures; whoever changes it copies it first."""
    from finished import make_finished

    return make_finished(tmp_path_factory.mktemp("finished"))


@pytest.fixture
def own_run(finished: Finished, tmp_path: Path) -> Path:
    """A copy of the finished run that may be changed."""
    return Path(shutil.copytree(finished.run, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints")))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of six megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("a small file system cannot be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Call the command line in this process: (exit code, standard output, standard error)."""
    from command import rowssl

    def call(*arguments: object) -> tuple[int, str, str]:
        code, captured = rowssl(*arguments), capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def no_waiting() -> Iterator[None]:
    """A reader that waits is a failure, not a test that never ends."""

    def stop(*_: object) -> None:
        raise AssertionError("somebody waits for a pipe")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
