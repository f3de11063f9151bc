"""The commands of docs/walkthrough.md, run in order as they stand on the page; what they leave is what the page says."""

from __future__ import annotations

import csv
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "walkthrough.md"
INSTALL = ("make ", "pip ", ".venv/bin/pip ", ". .venv/")  # what the environment of this test has behind it


def commands(page: Path) -> Iterator[str]:
    """Lines of the page's `sh` blocks; comments and empty ones left out."""
    for block in re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL):
        for line in block.splitlines():
            if line.strip() and not line.startswith(("#", *INSTALL)):
                yield line.split("  # ")[0].strip()


def test_the_readme_shows_commands_of_the_page() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    block = re.search(r"## A first real example\n.*?```sh\n(.*?)```", text, flags=re.DOTALL)
    assert block is not None
    here = [line.split("  # ")[0].strip() for line in block[1].splitlines() if line.strip()]
    on_page = list(commands(PAGE))
    assert here
    assert [line for line in here if not line.startswith(INSTALL) and line not in on_page] == []


class Walk:
    """A stranger at the prompt: `rowssl` runs in this process, which saves the start; the rest in a shell."""

    def __init__(self, call: Callable[..., tuple[int, str, str]], folder: Path) -> None:
        self.call, self.folder = call, folder
        self.said: dict[str, str] = {}

    def go(self, command: str) -> None:
        if command.startswith("rowssl serve"):
            self.serve(command)
            return
        if command.startswith("rowssl "):
            code, out, err = self.call(*shlex.split(command)[1:])
        else:
            path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
            done = subprocess.run(
                ["bash", "-ec", command],
                cwd=self.folder,
                env={**os.environ, "PATH": path},
                capture_output=True,
                text=True,
            )
            code, out, err = done.returncode, done.stdout, done.stderr
        assert code == 0, f"{command}\n{err}"
        self.said[command] = out + err

    def serve(self, command: str) -> None:
        """The server as a process of its own, with one question to it, until it is interrupted."""
        words = [sys.executable, "-m", *shlex.split(command), "--port", "0"]
        with subprocess.Popen(
            words, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as server:
            try:
                assert server.stdout is not None
                address = server.stdout.readline().strip()
                answer = httpx.post(
                    f"{address}predict", files={"image": (self.folder / "digits/new/six.png").read_bytes()}, timeout=30
                )
                self.said[command] = answer.text
                assert answer.json()["name"] == "six"
                assert "<title>rowssl</title>" in httpx.get(address).text
            finally:
                server.send_signal(signal.SIGINT)
                _, err = server.communicate(timeout=60)
        assert server.returncode == 0, err


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_commands_do_what_the_page_says(
    run: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime", reason="the page exports to ONNX")
    pytest.importorskip("fastapi", reason="the page serves a run")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    walk, digits = Walk(run, tmp_path), tmp_path / "digits"
    todo = list(commands(PAGE))
    assert len(todo) > 15
    for command in todo:
        walk.go(command)

    assert "encoder gradients (pictures of 8 pixels" in " ".join(walk.said.values())
    first, second = (rows_of(digits / name / "classes.csv") for name in ("run", "run2"))
    digits_found = {"zero", "one", "two", "three", "six", "four", "seven", "five", "eight", "nine"}
    assert {row["name"] for row in first} == digits_found
    assert {row["name"] for row in second} == digits_found
    suggested = next(said for command, said in walk.said.items() if command.startswith("rowssl suggest"))
    assert "rowssl edit digits/run split novel-05" in suggested  # which the page then does
    far = {Path(row["file"]).stem: row["far"] for row in rows_of(digits / "new.csv")}
    assert far["noise"] == "yes"
    assert sum(flag == "yes" for flag in far.values()) <= 2
    truth = {row["file"]: row["label"] for row in rows_of(digits / "truth.csv")}
    found = {row["file"]: row["name"] for row in rows_of(digits / "run2" / "predictions.csv")}
    assert sum(found[file] == label for file, label in truth.items()) > 0.9 * len(truth)  # the page has 98 %
    for name in ("run/report.html", "run2/report.html", "search.html", "model.onnx"):
        assert (digits / name).stat().st_size > 10_000
