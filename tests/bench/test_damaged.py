"""Damaged files of finished cells: named, and mended by the same command."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from command import rowssl
from rowssl.bench import cell as cells
from rowssl.bench import engine, runners
from rowssl.bench.cell import DamagedError
from rowssl.bench.cost import plan
from rowssl.bench.grid import Cell, grid, open_result, read_result
from rowssl.core.files import NoRoomError
from rowssl.paper.run import _no_features

BASE = {"data": {"name": "digits"}, "encoder": {"name": "pixels", "views": 2}, "train": {"epochs": 2}}
COMMAND = ("bench", "--data", "digits", "--gamma", 10, "--encoder", "pixels", "--views", 2, "--methods", "simgcd",
           "--epochs", 2, "--workers", 0)  # fmt: skip
PLACES = {
    "cell.json": 0.4, "config.json": 0.0, "metrics.json": 0.3, "metrics.jsonl": 0.6, "sample/manifest.json": 0.999,
    "sample/test.safetensors": 0.8,
}  # fmt: skip


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A grid of one cell, without reports; whoever damages it has it mended."""
    folder = tmp_path_factory.mktemp("damaged")
    assert rowssl(*COMMAND, "--out", folder) == 0
    return folder


def the_cell() -> Cell:
    (cell,) = grid(BASE, methods=["simgcd"], gammas=[10.0])
    return cell


def folder_of(out: Path) -> Path:
    return the_cell().folder(out / "runs")


def flip(file: Path, position: int, bit: int = 0) -> None:
    content = bytearray(file.read_bytes())
    content[position] ^= 1 << bit
    file.write_bytes(content)


def numbers(out: Path) -> list[tuple[str, str, str]]:
    with (out / "results.csv").open(newline="") as file:
        return [(row["metric"], row["group"], row["value"]) for row in csv.DictReader(file)]


@pytest.mark.parametrize(("name", "place"), PLACES.items())
def test_the_same_command_names_the_file_and_mends_it(name: str, place: float, out: Path, capsys) -> None:
    file, before = folder_of(out) / name, numbers(out)
    flip(file, int(place * file.stat().st_size))
    capsys.readouterr()
    assert rowssl(*COMMAND, "--out", out) == 0
    said = capsys.readouterr().err.splitlines()
    assert [line for line in said if "run again" in line and f"{file} is damaged: " in line]
    assert "1 cells: 0 finished, 1 to run, 1 at a time" in said
    assert numbers(out) == before
    assert open_result(the_cell(), out / "runs") is not None


def test_a_number_that_was_changed_is_in_no_table(out: Path) -> None:
    file, before = folder_of(out) / "metrics.json", numbers(out)
    position = file.read_bytes().index(b'"all": ') + len('"all": ')
    flip(file, position)
    assert json.loads(file.read_text())  # JSON as before, with another number
    assert rowssl(*COMMAND, "--out", out) == 0
    assert numbers(out) == before


@pytest.mark.parametrize("key", ["self", "sha256"])
def test_no_flipped_bit_takes_the_hashes_away(key: str, out: Path) -> None:
    file = folder_of(out) / "cell.json"
    whole = file.read_bytes()
    start = whole.rindex(f'"{key}"'.encode())
    for position in range(start, start + len(key) + 2):
        for bit in range(8):
            flip(file, position, bit)
            with pytest.raises(DamagedError, match=r"cell\.json is damaged"):
                open_result(the_cell(), out / "runs")
            file.write_bytes(whole)


def test_a_missing_file_is_named_in_the_list_too(out: Path, tmp_path: Path) -> None:
    cell, file = the_cell(), folder_of(out) / "sample" / "test.safetensors"
    file.rename(tmp_path / "kept")
    try:
        (planned,) = plan([cell], out / "runs", {})
        assert planned.state == "to run, sample/test.safetensors is damaged"
        assert read_result(cell, out / "runs") is None
    finally:
        (tmp_path / "kept").rename(file)
    assert [one.state for one in plan([cell], out / "runs", {})] == ["finished"]


def test_a_cell_that_stands_for_two_is_named_once_and_not_finished_until_it_is_run_again(
    out: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever ends the second run, the damaged numbers of the first are gone."""
    cell, runs = the_cell(), out / "runs"
    flip(folder_of(out) / "metrics.json", 40)

    def killed(*_: object, **__: object) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as context:
        context.setattr(runners, "run_cell", killed)
        outcome = engine.run_cells([cell, cell], runs, workers=0, retries=0)
    assert (len(outcome.results), len(outcome.failures)) == (0, 1)
    assert capsys.readouterr().err.count("metrics.json is damaged") == 1
    assert open_result(cell, runs) is None
    assert not engine.run_cells([cell], runs, workers=0).failures
    assert open_result(cell, runs) is not None


def test_an_unfinished_cell_with_a_damaged_log_is_listed(out: Path, tmp_path: Path) -> None:
    folder = the_cell().folder(tmp_path)
    folder.mkdir()
    (folder / "metrics.jsonl").write_bytes((folder_of(out) / "metrics.jsonl").read_bytes())
    assert [one.state for one in plan([the_cell()], tmp_path, {})] == ["2 epochs done"]
    flip(folder / "metrics.jsonl", 30)
    assert [one.state for one in plan([the_cell()], tmp_path, {})] == ["to run, metrics.jsonl is damaged"]


def test_damaged_features_of_a_cell_are_named_where_a_picture_needs_them(out: Path, tmp_path: Path, capsys) -> None:
    one = SimpleNamespace(folder=tmp_path)
    assert _no_features(one)  # type: ignore[arg-type]
    assert capsys.readouterr().err == ""
    shutil.copytree(folder_of(out) / "sample", tmp_path / "sample")
    assert not _no_features(one)  # type: ignore[arg-type]
    flip(tmp_path / "sample" / "test.safetensors", 200)
    assert _no_features(one)  # type: ignore[arg-type]
    assert f"{tmp_path / 'sample' / 'test.safetensors'} is missing or damaged" in capsys.readouterr().err


def test_a_file_that_finds_no_room_is_not_called_damaged(tmp_path, monkeypatch):
    def no_room(path):
        raise NoRoomError("too large")

    monkeypatch.setattr(cells, "read_json", no_room)
    with pytest.raises(NoRoomError):
        cells.read_object(tmp_path / "cell.json")
