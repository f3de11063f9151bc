"""Arguments that nobody can mean, and machines that refuse: one sentence and exit code 2, never a traceback."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hostile import one_sentence

from finished import Finished
from rowssl.cli import app
from rowssl.core.errors import InputError, in_a_sentence
from rowssl.runs.predict import csv_file

Command = Callable[..., tuple[int, str, str]]
DIGITS = "9" * 5000


def refused(result: tuple[int, str, str], *words: str) -> None:
    """The last line on standard error is a refusal of bearable length that holds these words; exit code 2."""
    code, _, said = result
    assert code == 2, said
    last = one_sentence(said.strip().splitlines()[-1])
    assert last.startswith("rowssl: ")
    assert len(last) < 1200
    assert "Traceback" not in said
    for word in words:
        assert word in last, last


@pytest.fixture
def embeddings(tmp_path: Path) -> Path:
    path = tmp_path / "rows.npy"
    np.save(path, np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32))
    return path


@pytest.mark.parametrize("length", [300, 5000])
def test_names_that_no_file_can_have(
    run: Command, finished: Finished, embeddings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    monkeypatch.chdir(tmp_path)
    name, picture = "x" * length, finished.pictures / "000.png"
    refused(run("predict", name, picture), "no folder")
    refused(run("predict", finished.run, name), "None of the images")
    refused(run("predict", finished.run, picture, "--out", name), "--out xxx")
    refused(run("serve", name, "--port", 0), "no folder")
    refused(run("edit", name, "rename", "a", "b"), "no folder")
    refused(run("split", "--data", name, "--out", "s.json"), "--data xxx")
    refused(run("split", "--data", "digits", "--out", name), "--out xxx")
    refused(run("split", "--data", "cifar10", "--data-root", name, "--out", "s.json"), "too long")
    refused(run("check", embeddings, "--bars", name), "--bars xxx")
    refused(run("check", embeddings, "--bars", f"{name}/x.svg"), "too long")
    refused(run("bench", "--data", name, "--out", "grid"), "--data xxx")
    refused(run("fit", finished.pictures, "--encoder", name, "--out", "run"), "xxx")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.npy"]


@pytest.mark.parametrize("folder", ["/", ".", ".."])
def test_a_folder_where_a_file_is_to_be_written(
    run: Command, finished: Finished, embeddings: Path, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(run("predict", finished.run, finished.pictures / "000.png", "--out", folder), "--out", "folder")
    refused(run("split", "--data", "digits", "--out", folder), "--out", "folder")
    refused(run("check", embeddings, "--bars", folder), "--bars", "folder")
    refused(run("export", finished.run, "--onnx", folder), "--onnx", "folder")
    with pytest.raises(InputError, match="folder"), csv_file(Path("/"), ["file"]):
        pass


def test_bars_in_a_folder_that_is_not_there_yet(run: Command, embeddings: Path, tmp_path: Path) -> None:
    code, _, said = run("check", embeddings, "--bars", tmp_path / "new" / "bars.svg")
    assert code == 0, said
    assert (tmp_path / "new" / "bars.svg").read_text().startswith("<svg")
    refused(run("check", embeddings, "--bars", embeddings / "bars.svg"), "rows.npy", "Not a directory")


def test_numbers_without_an_end(run: Command, embeddings: Path, tmp_path: Path) -> None:
    common = (embeddings, "--out", tmp_path / "run")
    for classes in (DIGITS, "9" * 12, "-1", "1e3", "³"):
        refused(run("fit", *common, "--classes", classes), "--classes takes a number")
        refused(run("bench", "--data", embeddings, "--out", tmp_path / "grid", "--classes", classes), "--classes takes")
    refused(run("fit", *common, "--tail", f"adapter:{DIGITS}"), "--tail adapter:999")
    refused(run("fit", *common, "--set", f"encoder.tail=adapter:{DIGITS}"), "--tail adapter:999")
    refused(run("bench", "--data", embeddings, "--out", tmp_path / "grid", "--tail", f"adapter:{DIGITS}"), "--tail")
    refused(run("split", "--data", "digits", "--known", DIGITS, "--out", tmp_path / "s.json"), "--known")
    refused(run("bench", "--data", embeddings, "--out", tmp_path / "grid", "--seeds", DIGITS), "--seeds")
    assert not (tmp_path / "grid").exists()


FAILURES: list[tuple[BaseException, str]] = [
    (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/some/file"), "/some/file"),
    (PermissionError(errno.EACCES, os.strerror(errno.EACCES), "a\nb"), "a\\nb"),
    (OSError("odd"), "odd"),
    (OSError(), "OSError"),
    (MemoryError(), "memory"),
    (MemoryError("Unable to allocate 5 GiB"), "5 GiB"),
    (RecursionError("maximum recursion depth exceeded"), "nested"),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "memory"),
]


@pytest.mark.parametrize(("failure", "word"), FAILURES, ids=lambda value: type(value).__name__)
def test_what_nobody_caught_is_one_sentence(
    run: Command, monkeypatch: pytest.MonkeyPatch, failure: BaseException, word: str
) -> None:
    def fail() -> None:
        raise failure

    monkeypatch.setattr(app, "build", lambda: fail)
    refused(run(), word)


@pytest.mark.parametrize("bug", [TypeError, KeyError, AssertionError, RuntimeError, ValueError])
def test_a_bug_is_shown(run: Command, monkeypatch: pytest.MonkeyPatch, bug: type[Exception]) -> None:
    def fail() -> Any:
        raise bug("of ours")

    monkeypatch.setattr(app, "build", lambda: fail)
    with pytest.raises(bug):
        run()


def test_a_long_name_is_shortened() -> None:
    said = in_a_sentence(OSError(errno.ENAMETOOLONG, "File name too long", "b" + "x" * 5000 + "e"))
    assert len(said) < 300
    assert said.startswith("bxx")
    assert "xe cannot be" in said
