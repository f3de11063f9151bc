"""One flipped bit in any file of a run or of a cache: found by name, and what is whole is used instead."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from encoders.test_trunk import RECIPE, make_encoder, make_table
from rowssl.api import fit
from rowssl.bench.cell import DamagedError
from rowssl.bench.engine import run_cells
from rowssl.bench.grid import Cell, grid, open_result
from rowssl.config import build_config
from rowssl.core.errors import InputError
from rowssl.core.files import read_directory, read_manifest
from rowssl.encoders import trunk
from rowssl.encoders.trunk import open_trunk_cache
from rowssl.paper import plan
from rowssl.runs.classifier import Classifier
from rowssl.runs.edits import Edits
from rowssl.runs.run import Run
from rowssl.training.checkpoints import Checkpoints
from rowssl.training.log import EpochLog

Tally = Callable[[str, int, int], None]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, embeddings: Path) -> Path:
    out = tmp_path_factory.mktemp("flipped") / "run"
    content = {
        "data": {"source": str(embeddings)}, "method": {"name": "simgcd"}, "classes": 8,
        "train": {"epochs": 3, "batch_size": 64, "save_seconds": 0},
    }  # fmt: skip
    fit(build_config(content), out)
    return out


@contextmanager
def flipped(file: Path, position: int, bit: int) -> Iterator[None]:
    """A file with one bit changed."""
    content = file.read_bytes()
    damaged = bytearray(content)
    damaged[position] ^= 1 << bit
    file.write_bytes(damaged)
    try:
        yield
    finally:
        file.write_bytes(content)


def positions(file: Path, full: bool) -> list[tuple[int, int]]:
    """Some bits of a file, the first and the last byte among them."""
    size, choose = file.stat().st_size, random.Random(file.name)
    return [(0, 0), (size - 1, 3), *((choose.randrange(size), choose.randrange(8)) for _ in range(60 if full else 8))]


def read_all(run: Path) -> object:
    """Everything that reads a finished run."""
    stored, model = Run.load(run), Classifier.load(run)
    facts = [read_manifest(run / name) for name in ("model", "answers")]
    return facts, stored.config, stored.metrics, stored.curves, model.facts


FINISHED = ["config.json", "metrics.json", "metrics.jsonl"] + [
    f"{folder}/{file}.safetensors"
    for folder, files in {"model": ("tail", "classifier", "far"), "answers": ("rows", "test")}.items()
    for file in files
]


@pytest.mark.parametrize("name", [*FINISHED, "model/manifest.json", "answers/manifest.json"])
def test_a_file_of_a_finished_run(name: str, run: Path, full: bool, tally: Tally) -> None:
    file, before = run / name, read_all(run)
    bits = positions(file, full)
    found = 0
    for position, bit in bits:
        with flipped(file, position, bit):
            try:
                found += repr(read_all(run)) == repr(before)  # a capital E of an exponent: nothing has changed
            except InputError as error:
                found += str(file) in str(error) and "\n" not in str(error)
    tally(f"one flipped bit in `{name}` of a run is found by name", found, len(bits))


def test_every_file_of_a_run_is_looked_after(run: Path) -> None:
    """Whoever adds a file says here how damage to it is found; tables and the report are written for people, not read back."""
    for_people = {"predictions.csv", "classes.csv", "report.html", ".lock", ".edits.lock"}  # edits.json: the next test
    looked_after = {*FINISHED, "model/manifest.json", "answers/manifest.json", *for_people}
    files = {str(file.relative_to(run)) for file in run.rglob("*") if file.is_file()}
    assert {file for file in files if not file.startswith(("checkpoints/", "tensorboard/"))} == looked_after


def test_the_history_of_edits(run: Path, full: bool, tally: Tally) -> None:
    file = run / "edits.json"
    ids = Edits.load(run).class_ids
    try:
        Edits.load(run).rename(ids[0], "first").merge(ids[0], ids[1]).save(run)
        before, bits, found = Edits.load(run), positions(file, full), 0
        for position, bit in bits:
            with flipped(file, position, bit):
                try:
                    found += Edits.load(run) == before  # in the name of the hash itself: nothing has changed
                except InputError as error:
                    found += str(file) in str(error) and "\n" not in str(error)
        tally("one flipped bit in `edits.json` of a run is found by name", found, len(bits))
    finally:
        file.unlink()


@pytest.mark.parametrize("name", ["method.safetensors", "optimiser.safetensors", "manifest.json"])
def test_a_file_of_the_last_checkpoint(name: str, run: Path, full: bool, tally: Tally) -> None:
    last, previous = sorted((run / "checkpoints").iterdir())[::-1]
    identity = read_manifest(last)["identity"]
    whole, step = read_directory(last), read_manifest(previous)["step"]
    bits = positions(last / name, full)
    found = 0
    for position, bit in bits:
        with flipped(last / name, position, bit):
            checkpoints = Checkpoints(run / "checkpoints")
            latest = checkpoints.latest(identity)
            assert latest is not None
            named = [str(last / name) in problem for problem in checkpoints.problems]
            found += (latest[1]["step"] == step and named == [True]) or repr(latest) == repr(whole)
    tally(f"one flipped bit in `{name}` of the last checkpoint: the one before is used", found, len(bits))


def test_a_damaged_line_of_the_log_of_an_unfinished_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = EpochLog(tmp_path / "metrics.jsonl")
    log.draws = False
    for epoch in (1, 2, 3):
        log.add({"epoch": epoch, "lr": 0.1, "loss": {"one": 1.25 / epoch}})
    capfd.readouterr()
    with flipped(log.path or tmp_path, (tmp_path / "metrics.jsonl").read_bytes().index(b"1.25"), 1):
        again = EpochLog(tmp_path / "metrics.jsonl")
    assert [row["epoch"] for row in again.rows()] == [2, 3]
    assert again.rows() == log.rows()[1:]
    assert f"{tmp_path / 'metrics.jsonl'} is damaged: what line 1 said" in capfd.readouterr().err.replace("\n", "")


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory, embeddings: Path) -> tuple[Cell, Path]:
    """A finished cell of a grid without reports, and the folder of its runs."""
    runs = tmp_path_factory.mktemp("cells")
    content = {"data": {"source": str(embeddings)}, "classes": 8, "train": {"epochs": 3, "batch_size": 64}}
    (one,) = grid(content, methods=["simgcd"])
    assert not run_cells([one], runs, workers=0).failures
    return one, runs


SEALED = ["config.json", "metrics.json", "metrics.jsonl"] + [
    f"sample/{file}" for file in ("manifest.json", "test.safetensors", "unlabelled.safetensors")
]


@pytest.mark.parametrize("name", ["cell.json", *SEALED])
def test_a_file_of_a_finished_cell(name: str, cell: tuple[Cell, Path], full: bool, tally: Tally) -> None:
    file, before = cell[0].folder(cell[1]) / name, open_result(*cell)
    bits = positions(file, full)
    found = 0
    for position, bit in bits:
        with flipped(file, position, bit):
            try:
                found += open_result(*cell) == before  # a capital E of an exponent: nothing has changed
            except DamagedError as error:
                found += error.file == file and str(file) in str(error) and "\n" not in str(error)
    assert before is not None
    tally(f"one flipped bit in `{name}` of a cell without reports is found by name", found, len(bits))


def test_every_file_of_a_cell_is_looked_after(cell: tuple[Cell, Path]) -> None:
    folder = cell[0].folder(cell[1])
    files = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    for_people = {"predictions.csv", "classes.csv", ".lock", ".edits.lock"}
    assert {file for file in files if not file.startswith("tensorboard/")} - for_people == {"cell.json", *SEALED}


def test_the_estimates_of_a_reproduction(
    tmp_path: Path, embeddings: Path, full: bool, tally: Tally, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "_search", lambda config, on: 50 + config.seed)
    for seed in (0, 1):
        plan.searched(build_config({"data": {"source": str(embeddings)}, "seed": seed}), tmp_path, estimate=True)
    file = tmp_path / "estimates.json"
    before, bits, found = plan.read_estimates(file), positions(file, full), 0
    for position, bit in bits:
        with flipped(file, position, bit):
            try:
                found += plan.read_estimates(file) == before
            except DamagedError as error:
                found += str(file) in str(error) and "\n" not in str(error)
    tally("one flipped bit in `estimates.json` of a reproduction is found by name", found, len(bits))


@pytest.mark.parametrize("name", ["trunk.f16", "manifest.json"])
@pytest.mark.parametrize("in_memory", [False, True])
def test_a_file_of_the_trunk_cache(
    name: str, in_memory: bool, tmp_path: Path, full: bool, tally: Tally,
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(trunk, "SHARD_ROWS", 5)

    def opened() -> trunk.CachedSource:
        options = {"recipe": RECIPE, "n_views": 2, "seed": 0, "folder": tmp_path, "in_memory": in_memory}
        return open_trunk_cache(make_table(12), make_encoder(), **options)  # type: ignore[arg-type]

    folder, rows = opened().folder, np.arange(12)
    file, data, whole = folder / name, (folder / "trunk.f16").read_bytes(), (folder / "manifest.json").read_bytes()
    values = opened().view(rows, rows % 2, 0)
    bits = positions(file, full)
    found = 0
    for position, bit in bits:
        damaged = bytearray(file.read_bytes())
        damaged[position] ^= 1 << bit
        file.write_bytes(damaged)
        capfd.readouterr()
        same = bool((opened().view(rows, rows % 2, 0) == values).all())
        said = capfd.readouterr().err.replace("\n", "")
        mended = (folder / "trunk.f16").read_bytes() == data and (folder / "manifest.json").read_bytes() == whole
        found += same and f"{file} is damaged" in said and mended
        (folder / "trunk.f16").write_bytes(data)
        (folder / "manifest.json").write_bytes(whole)
    where = "in memory" if in_memory else "on disk"
    tally(f"one flipped bit in `{name}` of a trunk cache read {where}: found and computed again", found, len(bits))


def test_the_name_of_the_hash_in_the_manifest_of_a_trunk_cache(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def opened() -> Path:
        return open_trunk_cache(make_table(4), make_encoder(), recipe=RECIPE, n_views=1, seed=0, folder=tmp_path).folder

    file = opened() / "manifest.json"
    whole = file.read_bytes()
    begin = whole.index(b'"self"')
    for position in range(begin, begin + len(b'"self"')):
        with flipped(file, position, 0):
            capfd.readouterr()
            opened()
            assert f"{file} is damaged" in capfd.readouterr().err.replace("\n", "")
            assert file.read_bytes() == whole
