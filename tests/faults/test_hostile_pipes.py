"""Files of a run that are none: pipes nobody writes to, devices without an end, links, files as large as a disk."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hostile import refused

from finished import Finished
from rowssl.api import fit
from rowssl.config import build_config
from rowssl.core.errors import InputError
from rowssl.core.files import LARGEST, read_directory, read_json, read_plain, require_plain, write_directory
from rowssl.runs.classifier import Classifier
from rowssl.runs.edits import Edits
from rowssl.runs.run import Run

pytestmark = pytest.mark.usefixtures("no_waiting")
Command = Callable[..., tuple[int, str, str]]
READ = ("edits.json", "metrics.json", "config.json", "metrics.jsonl", "answers/manifest.json", "model/manifest.json")


def put(kind: str, path: Path) -> None:
    """Another thing in the place of a file."""
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "link":
        path.with_name("elsewhere").write_text("{}")
        path.symlink_to("elsewhere")
    elif kind == "folder":
        path.mkdir()
    else:
        with path.open("wb") as file:
            file.truncate(2**40)  # a sparse file takes no room


KINDS = ("pipe", "device", "link", "folder", "huge")


@pytest.fixture
def unsealed(own_run: Path) -> Path:
    """A run without hashes of its files, as an earlier version or a stranger writes it."""
    tensors, facts = read_directory(own_run / "answers")
    facts.pop("files", None)
    write_directory(own_run / "answers", tensors, facts)
    return own_run


@pytest.mark.parametrize("kind", KINDS)
def test_the_readers_of_plain_files(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x.json"
    put(kind, path)
    for read in (read_json, read_plain, require_plain):
        with refused("x.json", megabytes=16):
            read(path)


def test_what_is_no_json(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    with refused("x.json cannot be read: No such file"):
        read_json(path)
    require_plain(path)
    for text in (b"", b"\xff", b"{", b"[" * 100_000, b"9" * 10_000):
        path.write_bytes(text)
        with refused("x.json cannot be read: it is not JSON"):
            read_json(path)
    path.write_text("[1]")
    assert read_json(path) == [1]
    assert read_json(path, largest=3) == [1]
    with refused("too large"):
        read_json(path, largest=2)
    assert LARGEST >= 50 * 10**6


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", READ)
def test_files_of_a_run_that_are_none(unsealed: Path, finished: Finished, run: Command, kind: str, name: str) -> None:
    put(kind, unsealed / name)
    with refused(seconds=30):
        Run.load(unsealed)
    code, _, said = run("edit", unsealed, "rename", "a", "zero", "--no-report")
    assert code == 2
    assert said.count("\n") == 1
    if name in ("edits.json", "model/manifest.json"):  # what a prediction reads
        code, _, said = run("predict", unsealed, finished.pictures / "000.png")
        assert code == 2
        assert said.count("\n") == 1
    if not (name == "model/manifest.json" and kind != "huge"):
        assert Path(name).name in said


@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_locks_that_are_none(own_run: Path, kind: str) -> None:
    for name in (".edits.lock", ".lock"):
        put(kind, own_run / name)
    with refused("cannot be written"):
        Run.load(own_run).rename("a", "zero")
    with refused("cannot be written"):
        fit(build_config(json.loads((own_run / "config.json").read_text())), own_run)


def test_a_history_of_any_depth(own_run: Path, run: Command) -> None:
    model = Edits.load(own_run).model
    for depth in range(850, 1000, 2):
        deep = "[" * depth + "]" * depth
        for key in ("name", "do"):
            edit = {"do": "rename", "class": "a", "name": "b", key: "DEEP"}
            text = json.dumps({"format": 1, "model": model, "history": [edit]})
            (own_run / "edits.json").write_text(text.replace('"DEEP"', deep))
            with pytest.raises(InputError, match=r"edits\.json"):
                Classifier.load(own_run)
    code, _, said = run("edit", own_run, "history")
    assert (code, said.count("\n")) == (2, 1)


@pytest.mark.parametrize("name", ["checkpoints", "tensorboard"])
def test_a_run_does_not_leave_its_folder(own_run: Path, tmp_path: Path, name: str, run: Command) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    shutil.rmtree(own_run / name, ignore_errors=True)
    (own_run / name).symlink_to(outside)
    config = build_config(json.loads((own_run / "config.json").read_text()))
    before = sorted(path.name for path in own_run.iterdir())
    with refused(f"{name} is a link"):
        fit(config, own_run)
    code, _, said = run("fit", config.data.source, "--encoder", "pixels", "--out", own_run)
    assert (code, said.count("\n")) == (2, 1)
    assert not list(outside.iterdir())
    assert sorted(path.name for path in own_run.iterdir()) == before


@pytest.mark.parametrize("name", ["metrics.jsonl", "checkpoints/step-00000008/manifest.json"])
def test_a_run_that_is_continued_waits_for_no_pipe(own_run: Path, name: str) -> None:
    (own_run / name).parent.mkdir(parents=True, exist_ok=True)
    put("pipe", own_run / name)
    with refused("no plain file"):
        fit(build_config(json.loads((own_run / "config.json").read_text())), own_run)
