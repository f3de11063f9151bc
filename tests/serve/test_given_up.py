"""An edit that was answered with 504 does not happen, and one that happens is not answered with 504."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from rowssl.runs.edits import Edits
from rowssl.runs.run import Run
from rowssl.serve.app import Limits, create_app
from rowssl.serve.session import Served

fcntl = pytest.importorskip("fcntl")  # without it there are no locks, and no edits


def client(run: Path, seconds: float) -> TestClient:
    app = create_app(Served(run, device="cpu"), limits=Limits(seconds=seconds))
    return TestClient(app, base_url="http://127.0.0.1:8000")


def test_another_process_that_does_not_end_is_said_in_time(own_run: Path) -> None:
    Run.load(own_run).rename("a", "one")
    Run.load(own_run).rename("b", "two")
    with client(own_run, 2) as here:
        with (own_run / ".edits.lock").open("ab") as theirs:
            fcntl.flock(theirs, fcntl.LOCK_EX)
            answer = here.post("/undo")
            assert answer.status_code == 503
            assert "Another process is editing" in answer.json()["detail"]
        assert here.post("/undo").status_code == 200
    assert [one["do"] for one in Edits.load(own_run).history] == ["rename", "rename", "undo"]
    assert Edits.load(own_run).names["a"] == "one"


def held_up(work: Callable[..., Any], free: threading.Event) -> Callable[..., Any]:
    def later(*given: Any) -> Any:
        free.wait(60)
        return work(*given)

    return later


def test_an_edit_that_was_given_up_does_not_happen(own_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = threading.Event()
    monkeypatch.setattr(Edits, "rename", held_up(Edits.rename, free))
    with client(own_run, 0.3) as here:
        for name in ("begun", "waiting"):
            answer = here.patch("/classes/a", json={"name": name})
            assert answer.status_code == 504
            assert "given up" in answer.json()["detail"]
        free.set()
    assert Edits.load(own_run).history == ()  # the end of the server waits for its threads


def test_an_edit_that_is_being_saved_is_waited_for(own_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free, save = threading.Event(), Edits.save
    with client(own_run, 1) as here:
        monkeypatch.setattr(Edits, "save", held_up(save, free))
        timer = threading.Timer(2.5, free.set)
        timer.start()
        answer = here.patch("/classes/a", json={"name": "slow"})
        timer.join()
        assert answer.status_code == 200, answer.text
        assert answer.json()["last_edit"] == "a renamed to slow"
    assert Edits.load(own_run).names["a"] == "slow"
