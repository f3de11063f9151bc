"""One cell as a process of its own: what it says of its source, and how it ends."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from rowssl import __version__
from rowssl.bench import cell


def test_the_source_has_a_name_outside_of_a_repository(monkeypatch, tmp_path):
    def without_git(*_, **__):
        raise FileNotFoundError("git")

    monkeypatch.setattr(cell.subprocess, "run", without_git)
    version, plus, digest = cell.commit().partition("+")
    assert (version, plus, len(digest)) == (f"v{__version__}", "+", 12)
    assert cell.commit().endswith(digest)
    shutil.copytree(Path(cell.__file__).parents[1], tmp_path / "rowssl", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(cell, "__file__", str(tmp_path / "rowssl" / "bench" / "cell.py"))
    assert cell.commit().endswith(digest)  # wherever it lies
    with (tmp_path / "rowssl" / "config.py").open("a") as file:
        file.write("#")
    assert not cell.commit().endswith(digest)


def test_exit_codes_of_a_cell(tmp_path, monkeypatch, capsys):
    (tmp_path / "config.json").write_text('{"method": {"name": "magic"}, "data": {"name": "digits"}}')
    monkeypatch.setattr(sys, "argv", ["cell", str(tmp_path / "config.json"), str(tmp_path)])
    with pytest.raises(SystemExit) as stop:
        cell.main()
    assert stop.value.code == cell.REFUSED
    assert "magic" in capsys.readouterr().err
