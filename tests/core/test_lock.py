"""Locks: one holder at a time, in threads and processes; a deadline; the end of a holder; file systems that have none."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import filelock
import pytest

from rowssl.core.errors import InputError
from rowssl.core.files import Busy, lock

HOLD = """
import sys, time
from pathlib import Path
from rowssl.core.files import lock
with lock(Path(sys.argv[1]), busy=""):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_deadline(tmp_path: Path) -> None:
    with lock(tmp_path / "lock", busy="x"):
        for seconds in (0.0, 0.2):
            began = time.monotonic()
            with (
                pytest.raises(Busy, match="held by another"),
                lock(tmp_path / "lock", busy="held by another", seconds=seconds),
            ):
                raise AssertionError
            assert seconds <= time.monotonic() - began < 10
    with lock(tmp_path / "lock", busy="x"):
        pass


def test_a_killed_holder_frees_it_for_who_waits(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / "lock")], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    with pytest.raises(Busy), lock(tmp_path / "lock", busy="x"):
        pass
    threading.Timer(0.3, process.send_signal, [signal.SIGKILL]).start()
    with lock(tmp_path / "lock", busy="x", seconds=None, waiting="waiting for another"):
        assert process.wait() == -signal.SIGKILL
    assert capfd.readouterr().err == "waiting for another\n"


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK])
def test_a_file_system_without_locks(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(filelock.FileLock, "acquire", refused)
    with pytest.raises(InputError, match="no locks here"), lock(tmp_path / "lock", busy="x", without="no locks here"):
        raise AssertionError
    done = []
    with lock(tmp_path / "lock", busy="x"):
        done.append(1)
    assert done


@pytest.mark.parametrize("kind", ["pipe", "link", "folder", "under a file"])
def test_a_lock_that_is_no_file(kind: str, tmp_path: Path) -> None:
    place, other = tmp_path / "lock", tmp_path / "other"
    other.touch()
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "link":
        place.symlink_to(other)
    elif kind == "folder":
        place.mkdir()
    else:
        place = other / "lock"
    with pytest.raises(InputError, match="cannot be written"), lock(place, busy="x", without="no locks"):
        raise AssertionError
