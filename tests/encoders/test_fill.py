"""A trunk cache that several processes fill: the bytes of one process, whoever is killed and whatever is damaged."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from encoders.test_trunk import RECIPE, make_encoder, make_table
from rowssl.bench.grid import Cell
from rowssl.bench.runners import LocalRunner
from rowssl.config import DataConfig, EncoderConfig, MethodConfig, RunConfig, build_config
from rowssl.core.errors import InputError
from rowssl.data.problem import load_problem
from rowssl.data.table import Table
from rowssl.encoders import cache as trunk_cache
from rowssl.encoders.fill import Parts, fill, help_out
from rowssl.encoders.trunk import FreshSource, open_store, open_trunk_cache
from rowssl.training.cache_workers import Crew, open_crew, work
from rowssl.training.features import open_features, trunk_sources

SIDE = 500  # pixels: a picture takes a moment to decode, so that a process can be killed half way
PICTURES = 25


def make_pictures(folder: Path) -> Path:
    """A folder of pictures, one of them damaged."""
    for number in range(PICTURES):
        noise = np.random.default_rng([7, number]).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
        Image.fromarray(noise).save(folder / f"{number:03d}.png", compress_level=0)
    (folder / "020.png").write_bytes(b"no picture")
    return folder


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pictures(tmp_path_factory.mktemp("pictures"))


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trunk_cache, "SHARD_ROWS", 2)


def config_of(cache: Path, workers: int = 1) -> EncoderConfig:
    return EncoderConfig(name="pixels", image_size=16, views=2, cache=str(cache), cache_workers=workers)


def files_of(cache: Path) -> dict[str, bytes]:
    """Everything in the caches, by name."""
    return {str(path.relative_to(cache)): path.read_bytes() for path in cache.rglob("*") if path.is_file()}


def open_tiny(rows: int = 12) -> FreshSource:
    return FreshSource(make_table(rows), make_encoder(), RECIPE, 0, fixed_views=2)


def fill_tiny(folder: Path, progress: bool = False) -> bytes:
    source = open_trunk_cache(
        make_table(12), make_encoder(), recipe=RECIPE, n_views=2, seed=0, folder=folder, progress=progress
    )
    return (source.folder / "trunk.f16").read_bytes()


def kill_half_way(crew: Crew, parts: Path, hit: list[subprocess.Popen[bytes]]) -> None:
    """Kill -9 all processes of a crew while one of them is at a part."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        for lock in parts.glob("*.lock"):
            assert isinstance(crew.runner, LocalRunner)
            processes = list(crew.runner.running.values())
            for process in processes:
                process.send_signal(signal.SIGSTOP)
            half_way = lock.exists() and not lock.with_suffix(".f16").exists()
            for process in processes:
                process.send_signal(signal.SIGKILL if half_way else signal.SIGCONT)
            if half_way and processes:
                hit += processes
                return
        time.sleep(0.002)


def test_killed_processes_are_replaced_and_the_bytes_are_those_of_one(
    pictures: Path, tmp_path: Path, small_shards: None, capfd: pytest.CaptureFixture[str]
) -> None:
    problem = load_problem(DataConfig(source=str(pictures)))
    assert len(problem.table) == PICTURES - 1
    open_features(problem, RunConfig(encoder=config_of(tmp_path / "one"), method=MethodConfig(name="dts")))
    capfd.readouterr()

    config = config_of(tmp_path / "two", workers=2)
    crew = open_crew(problem, config, 0, "local")
    assert crew is not None
    (source,) = trunk_sources(problem, config, 0)
    store, hit = open_store(source, tmp_path / "two"), list[subprocess.Popen[bytes]]()
    killer = threading.Thread(target=kill_half_way, args=(crew, store.folder / "parts", hit))
    killer.start()
    open_trunk_cache(
        source.table, source.encoder, recipe=source.recipe, n_views=2, seed=0, folder=tmp_path / "two", crew=crew
    )
    killer.join()
    said = capfd.readouterr().err
    killed = [process for process in hit if process.returncode == -signal.SIGKILL]
    assert crew.replaced == len(killed) >= 1
    assert said.count("killed by SIGKILL (often a lack of memory): another takes its place") == len(killed)
    assert files_of(tmp_path / "two") == files_of(tmp_path / "one")  # the manifest too, and nothing else is left


def test_who_cannot_read_the_data_leaves_the_work_to_the_others(
    pictures: Path, tmp_path: Path, small_shards: None
) -> None:
    """A process of the crew that finds other pictures computes nothing."""
    problem = load_problem(DataConfig(source=str(pictures)))
    config = config_of(tmp_path)
    (source,) = trunk_sources(problem, config, 0)
    store = open_store(source, tmp_path)
    crew = open_crew(problem, config_of(tmp_path, 2), 0, "local")
    assert crew is not None
    parts = Parts(store)
    parts.announce(store.plan(source.rows), {**crew.job, "skipped": []})
    with pytest.raises(InputError, match=r"not those that .*plan\.json is about"):
        work(parts.plan)
    parts.announce(store.plan(source.rows)[:3], crew.job)
    assert work(parts.plan) == 3
    assert work(parts.plan) == 0
    parts.clear()
    assert work(parts.plan) == 0


@pytest.mark.parametrize("how", ["whole", "flip", "shorten"])
def test_parts_of_others_are_verified_and_taken_over(
    how: str, tmp_path: Path, small_shards: None, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = fill_tiny(tmp_path / "one")
    source = open_tiny()
    store = open_store(source, tmp_path / "two")
    shards, parts = store.plan(source.rows), Parts(store)
    parts.announce([shards[0], *shards[3:5]], {})
    assert help_out(store, source) == 3
    assert help_out(store, source) == 0
    files = sorted(parts.folder.glob("*.f16"))
    content = bytearray(files[1].read_bytes())
    if how == "flip":
        content[len(content) // 3] ^= 4
    if how != "whole":
        files[1].write_bytes(content if how == "flip" else content[:-7])
    capfd.readouterr()
    rows: list[int] = []
    plain = Table.image
    monkeypatch.setattr(Table, "image", lambda table, row: rows.append(row) or plain(table, row))
    store.folder.mkdir(exist_ok=True)
    fill(store, source, progress=True)
    assert (store.folder / "trunk.f16").read_bytes() == expected
    assert files_of(tmp_path / "two").keys() == {
        f"{store.folder.name}/{name}" for name in ("trunk.f16", "manifest.json")
    }
    said = capfd.readouterr().err
    assert (f"{files[1]} is damaged: it is computed again" in said.replace("\n", "")) == (how != "whole")
    computed = {2, 3, 4, 5, 10, 11} | (set() if how == "whole" else {6, 7})
    assert sorted(rows) == sorted(computed)  # each once, and nothing that was there


def test_a_part_is_taken_by_one_process_at_a_time(tmp_path: Path, small_shards: None) -> None:
    source = open_tiny()
    store = open_store(source, tmp_path)
    first, second = Parts(store), Parts(store)
    shards = store.plan(source.rows)
    first.announce(shards, {})
    mine = next(first.claimed(first.announced()))
    others = [shard.first for shard in second.claimed(second.announced())]
    assert [mine.first, *others] == [shard.first for shard in shards]
    first.release(mine)  # as when its process dies
    assert [shard.first for shard in second.claimed(second.announced())] == [mine.first]
    store.write(mine, np.zeros((2, *store.shape)))
    second.release(mine)
    assert [shard.first for shard in first.claimed(first.announced())] == []  # it is in the cache


TORCHRUN = """
import json, sys
from pathlib import Path

from encoders.test_trunk import RECIPE, make_encoder, make_table
from rowssl.core import distributed
from rowssl.data.table import Table
from rowssl.encoders import cache as trunk_cache
from rowssl.encoders.trunk import open_trunk_cache

distributed.start()
trunk_cache.SHARD_ROWS = 2
rows, plain, folder = [], Table.image, Path(sys.argv[1])
Table.image = lambda table, row: (rows.append(row), plain(table, row))[1]
options = {"recipe": RECIPE, "n_views": 2, "seed": 0, "folder": folder}
distributed.barrier()
source = open_trunk_cache(make_table(12, seconds=0.2), make_encoder(), **options)
(folder / f"rows-{distributed.rank()}.json").write_text(json.dumps([rows, len(source)]))
distributed.barrier()
"""


def test_the_processes_of_torchrun_share_the_work(tmp_path: Path, small_shards: None) -> None:
    expected = fill_tiny(tmp_path / "one")
    program, two = tmp_path / "program.py", tmp_path / "two"
    program.write_text(TORCHRUN)
    paths = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(program), str(two)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    (data,) = two.glob("*/trunk.f16")
    assert data.read_bytes() == expected
    assert not list(two.glob("*/parts"))
    facts = [json.loads((two / f"rows-{rank}.json").read_text()) for rank in (0, 1)]
    assert [length for _, length in facts] == [12, 12]
    assert all(rows for rows, _ in facts)  # both worked
    assert sorted(row for rows, _ in facts for row in rows) == list(range(12))  # on different parts
    assert done.stderr.count("trunk cache: 12 images") == 1


def test_the_number_of_processes_is_no_part_of_a_run() -> None:
    plain, many = (build_config({"encoder": {"name": "pixels", "cache_workers": n}}) for n in (1, 7))
    assert plain.identity("a") == many.identity("a")
    assert plain.identity("a", version=1) == many.identity("a", version=1)
    assert Cell(plain).hash == Cell(many).hash
    with pytest.raises(InputError, match=r"encoder\.cache_workers"):
        build_config({"encoder": {"cache_workers": 0}})
