"""What a run from a stranger says of its training rows, and what becomes of it in the report."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hostile import refused, within

from rowssl.api import load
from rowssl.core.errors import InputError
from rowssl.core.files import read_directory, write_directory
from rowssl.runs import run as run_module
from rowssl.runs.edits import Edits
from rowssl.runs.run import Run

Command = Callable[..., tuple[int, str, str]]
NASTY = "</script><script>document.title = 'hit'</script><img src=x onerror=\"document.title = 'hit'\">"
ANSWERS: dict[str, Callable[[dict[str, Any], dict[str, Any]], Any]] = {
    "row of no class": lambda facts, rows: rows["head"].__setitem__(0, 99),
    "row below all": lambda facts, rows: rows["second"].__setitem__(0, -1),
    "label of no class": lambda facts, rows: rows["target"].__setitem__(0, 99),
    "not finite": lambda facts, rows: rows["confidence"].__setitem__(0, float("nan")),
    "endless feature": lambda facts, rows: rows["feature"].__setitem__((0, 0), float("inf")),
    "no feature": lambda facts, rows: rows.pop("feature"),
    "flat feature": lambda facts, rows: rows.update(feature=rows["confidence"].clone()),
    "too few": lambda facts, rows: rows.update(head=rows["head"][:9]),
    "one name less": lambda facts, rows: facts["names"].pop(),
    "one path more": lambda facts, rows: facts["paths"].append("x"),
    "a name that is none": lambda facts, rows: facts["names"].__setitem__(0, 7),
    "a name with an escape": lambda facts, rows: facts["names"].__setitem__(0, "\x1b[31m"),
    "names that are none": lambda facts, rows: facts.update(names=None),
    "a path that is none": lambda facts, rows: facts["paths"].__setitem__(0, 7),
    "no reason": lambda facts, rows: facts.update(skipped=[["x"]]),
    "skipped nothing": lambda facts, rows: facts.update(skipped=None),
    "no data": lambda facts, rows: facts.pop("data"),
    "data that are none": lambda facts, rows: facts.update(data={"x": 1}),
    "facts that are none": lambda facts, rows: facts.update(facts=[1]),
    "files elsewhere": lambda facts, rows: facts.update(files={"../../../../dev/zero": "0"}),
    "known beyond": lambda facts, rows: facts.update(n_old=10**9),
    "no seconds": lambda facts, rows: facts.update(seconds="x"),
    "another model": lambda facts, rows: facts.update(identity="x"),
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_of_a_stranger(own_run: Path, name: str) -> None:
    tensors, facts = read_directory(own_run / "answers")
    ANSWERS[name](facts, tensors["rows"])
    write_directory(own_run / "answers", tensors, facts)
    with refused(seconds=30):
        Run.load(own_run)


def test_any_text_of_a_stranger_is_text_in_the_report(own_run: Path) -> None:
    tensors, facts = read_directory(own_run / "answers")
    facts["names"] = [f"{NASTY}{i}" for i in range(len(facts["names"]))]
    facts |= {"source": NASTY, "skipped": [[NASTY, NASTY]], "facts": {NASTY: NASTY, "n": 1}}
    facts["class_names"] = [f"{i}{NASTY}" for i in range(len(facts["class_names"]))]
    write_directory(own_run / "answers", tensors, facts)
    Run.load(own_run).rename("a", NASTY[:200])
    with within(megabytes=400):
        load(own_run).report(own_run / "report.html")
    text = (own_run / "report.html").read_text()
    assert NASTY not in text
    assert "<script>document" not in text
    assert "onload=" not in text


def test_numbers_of_a_stranger_in_the_report(own_run: Path) -> None:
    """metrics.json and config.json may say anything that is JSON."""
    tensors, facts = read_directory(own_run / "answers")
    facts.pop("files", None)
    write_directory(own_run / "answers", tensors, facts)
    for text in ("[]", '"x"', "7", "[" * 100_000, "{", '{"classes": 3}', '{"tr_acc": {"all": "x"}}'):
        (own_run / "metrics.json").write_text(text)
        try:
            load(own_run).report(own_run / "report.html")
        except InputError:
            continue
    (own_run / "metrics.json").write_text("{}")
    for text in ("[]", "7", "[" * 100_000, "{", '{"seed": -1}', '{"data": {"source": "\\u001b"}, "x": 1}'):
        (own_run / "config.json").write_text(text)
        with refused():
            load(own_run).report(own_run / "report.html")


@pytest.mark.parametrize("place", ["/", "/dev/zero", "pipe"])
@pytest.mark.parametrize("what", ["source", "labels", "split"])
def test_data_of_a_stranger_are_not_looked_for_everywhere(
    own_run: Path, place: str, what: str, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A manifest that says that its pictures are in the whole disk, or behind a pipe, starts no search and no waiting."""

    def no_walk(*_: object, **__: object) -> None:
        raise AssertionError("the data are read again")

    if place == "pipe":
        place = str(own_run / "pipe")
        os.mkfifo(place)
    tensors, facts = read_directory(own_run / "answers")
    data = {"name": "digits"} if what == "split" else {"source": str(own_run / "config.json")}
    facts |= {"paths": None, "images": True, "data": {**data, what: place}}
    write_directory(own_run / "answers", tensors, facts)
    monkeypatch.setattr(run_module, "load_problem", no_walk)
    with refused("manifest.json says that its rows are from"):
        Run.load(own_run)
    code, _, said = run("serve", own_run, "--port", 0)
    assert code == 2
    assert f"rows are from {place}" in said


def test_a_folder_whose_pictures_have_paths_is_not_walked(own_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "load_problem", lambda *_: pytest.fail("the data are read again"))
    assert Run.load(own_run).problem.table.has_images


@pytest.mark.parametrize("name", ["predictions.csv", "classes.csv", "report.html"])
def test_an_edit_counts_though_a_table_cannot_be_written(own_run: Path, name: str, run: Command) -> None:
    (own_run / name).unlink()
    (own_run / name).mkdir()
    code, out, said = run("edit", own_run, "rename", "a", "zero")
    assert code == 2
    assert "a is now called zero" in out
    assert said.count("\n") == 1
    assert "The edit is saved" in said
    assert f"{name} cannot be written: Is a directory" in said
    assert Edits.load(own_run).names["a"] == "zero"
    (own_run / name).rmdir()
    assert run("edit", own_run, "rename", "b", "one")[0] == 0
    assert (own_run / "predictions.csv").read_text().count("zero") > 0


def test_corrections_count_though_a_table_cannot_be_written(own_run: Path, run: Command, tmp_path: Path) -> None:
    (own_run / "classes.csv").unlink()
    (own_run / "classes.csv").mkdir()
    (tmp_path / "corrections.csv").write_text("file,label\n000.png,a\n")
    code, _, said = run("relabel", own_run, tmp_path / "corrections.csv", "--no-report")
    assert (code, said.count("\n")) == (2, 1)
    assert "The edit is saved" in said
    assert Edits.load(own_run).moves == {"000.png": "a"}


def test_the_server_answers_an_edit_whose_tables_cannot_be_written(own_run: Path) -> None:
    from fastapi.testclient import TestClient

    from rowssl.serve.app import create_app
    from rowssl.serve.session import Served

    with TestClient(create_app(Served(own_run, device="cpu")), base_url="http://127.0.0.1:8000") as client:
        (own_run / "classes.csv").unlink()
        os.mkfifo(own_run / "classes.csv")
        assert client.get("/classes.csv").status_code == 404
        (own_run / "classes.csv").unlink()
        (own_run / "classes.csv").mkdir()
        found = client.patch("/classes/a", json={"name": "zero"})
        assert found.status_code == 200, found.text
        assert "The edit is saved" in found.json()["problems"][0]
