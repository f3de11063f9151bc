"""A trunk cache that others compute: the bytes of one process, whatever they leave out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from encoders.test_trunk import RECIPE, make_encoder, make_table
from rowssl.config import DataConfig, EncoderConfig, build_config
from rowssl.core.errors import InputError
from rowssl.data.problem import load_problem
from rowssl.data.table import Table
from rowssl.encoders import trunk
from rowssl.encoders.trunk import FreshSource, Shard, computed, open_store, open_trunk_cache
from rowssl.training.cluster import shard_values
from rowssl.training.features import trunk_sources

PICTURES = 25


def make_pictures(folder: Path) -> Path:
    """A folder of pictures, one of them damaged."""
    for number in range(PICTURES):
        noise = np.random.default_rng([7, number]).integers(0, 256, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(noise).save(folder / f"{number:03d}.png", compress_level=0)
    (folder / "020.png").write_bytes(b"no picture")
    return folder


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trunk, "SHARD_ROWS", 2)


def config_of(cache: Path) -> EncoderConfig:
    return EncoderConfig(name="pixels", image_size=16, views=2, cache=str(cache))


def files_of(cache: Path) -> dict[str, bytes]:
    """Everything in the caches, by name."""
    return {str(path.relative_to(cache)): path.read_bytes() for path in cache.rglob("*") if path.is_file()}


def fill_tiny(folder: Path, **options: object) -> Path:
    source = open_trunk_cache(
        make_table(12),
        make_encoder(),
        recipe=RECIPE,
        n_views=2,
        seed=0,
        folder=folder,
        progress=False,
        **options,  # type: ignore[arg-type]
    )
    return source.folder


def test_shards_of_others_come_in_any_order_and_what_they_leave_out_is_computed_here(
    tmp_path: Path, small_shards: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_tiny(tmp_path / "one")
    source = FreshSource(make_table(12), make_encoder(), RECIPE, 0, fixed_views=2)

    def elsewhere(key: str, shards: Sequence[Shard]) -> Iterator[tuple[Shard, np.ndarray]]:
        assert key == open_store(source, tmp_path).key
        for number in (4, 1):
            yield list(computed([shards[number]], source, (3, *source.shape)))[-1]

    here: list[int] = []
    plain = Table.image
    monkeypatch.setattr(Table, "image", lambda table, row: here.append(row) or plain(table, row))
    fill_tiny(tmp_path / "two", elsewhere=elsewhere)
    assert files_of(tmp_path / "two") == files_of(tmp_path / "one")
    assert sorted(here) == list(range(12))  # each once, there or here


def test_a_stop_keeps_the_shards_of_others(tmp_path: Path, small_shards: None) -> None:
    source = FreshSource(make_table(12), make_encoder(), RECIPE, 0, fixed_views=2)

    def stopped(key: str, shards: Sequence[Shard]) -> Iterator[tuple[Shard, np.ndarray]]:
        yield list(computed([shards[3]], source, (3, *source.shape)))[-1]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fill_tiny(tmp_path / "two", elsewhere=stopped)
    store = open_store(source, tmp_path / "two")
    store.read()
    assert np.flatnonzero(store.slots(np.arange(12)) >= 0).tolist() == [6, 7]
    fill_tiny(tmp_path / "one")
    fill_tiny(tmp_path / "two")
    assert files_of(tmp_path / "two") == files_of(tmp_path / "one")


def test_a_node_computes_what_this_process_would_or_nothing(tmp_path: Path) -> None:
    problem = load_problem(DataConfig(source=str(make_pictures(tmp_path))))
    assert len(problem.table) == PICTURES - 1
    config = config_of(tmp_path / "cache")
    (source,) = trunk_sources(problem, config, 0)
    job = {"data": problem.data.model_dump(mode="json"), "encoder": config.model_dump(mode="json"), "seed": 0}  # type: ignore[union-attr]
    rows, key = np.array([3, 4, 9]), open_store(source, tmp_path).key
    values = shard_values(json.dumps({**job, "skipped": ["020.png"]}), key, rows)
    expected = list(computed([Shard(0, rows)], source, (3, *source.shape)))[-1][1]
    assert np.array_equal(values, expected)
    (tmp_path / "000.png").unlink()
    with pytest.raises(InputError, match="the data or the encoder of a node are not those of this process"):
        shard_values(json.dumps({**job, "skipped": ["020.png"], "again": 1}), key, rows)


TORCHRUN = """
import json, sys
from pathlib import Path

from encoders.test_trunk import RECIPE, make_encoder, make_table
from rowssl.core import distributed
from rowssl.data.table import Table
from rowssl.encoders import trunk
from rowssl.encoders.trunk import open_trunk_cache

distributed.start()
trunk.SHARD_ROWS = 2
rows, plain, folder = [], Table.image, Path(sys.argv[1])
Table.image = lambda table, row: (rows.append(row), plain(table, row))[1]
options = {"recipe": RECIPE, "n_views": 2, "seed": 0, "folder": folder}
distributed.barrier()
source = open_trunk_cache(make_table(12, seconds=0.2), make_encoder(), **options)
(folder / f"rows-{distributed.rank()}.json").write_text(json.dumps([rows, len(source)]))
distributed.barrier()
"""


def test_one_process_of_torchrun_fills_the_cache_and_the_others_wait(tmp_path: Path, small_shards: None) -> None:
    expected = (fill_tiny(tmp_path / "one") / "trunk.f16").read_bytes()
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
    facts = [json.loads((two / f"rows-{rank}.json").read_text()) for rank in (0, 1)]
    assert [length for _, length in facts] == [12, 12]
    assert sorted(row for rows, _ in facts for row in rows) == list(range(12))  # each by one of them
    assert done.stderr.count("trunk cache: 12 images") == 1


def test_a_configuration_that_names_the_processes_of_the_cache_is_read() -> None:
    """Runs of tests/kept do; there is no such option any more, and it never decided anything."""
    assert build_config({"encoder": {"name": "pixels", "cache_workers": 4}}) == build_config(
        {"encoder": {"name": "pixels"}}
    )
