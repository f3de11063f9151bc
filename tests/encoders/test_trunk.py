"""The trunk cache: the same values as the trunk itself, once for all, whatever is killed, damaged or shared."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from rowssl.core.errors import InputError
from rowssl.data.feed import Feed
from rowssl.data.table import Table, read_table
from rowssl.data.views import view_recipe
from rowssl.encoders import trunk
from rowssl.encoders.base import Encoder, build_encoder
from rowssl.encoders.tails import Frozen
from rowssl.encoders.trunk import FreshSource, open_trunk_cache

RECIPE = view_recipe("standard", 16)
SHAPE = (6, 8, 8)
ROWS = 48


class SlowColumn:
    """Pictures that take a moment to come, so that a process can be killed half way."""

    def __init__(self, images: np.ndarray, seconds: float) -> None:
        self.images, self.seconds = images, seconds

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> np.ndarray:
        time.sleep(self.seconds)
        return self.images[index]


def make_table(rows: int = ROWS, seconds: float = 0.0) -> Table:
    images = np.random.default_rng(1).integers(0, 256, (rows, 20, 24, 3), dtype=np.uint8)
    return Table(np.full(rows, -1), (), [f"row {i}" for i in range(rows)], images=SlowColumn(images, seconds))


def make_encoder(scale: float = 1.0) -> Encoder:
    convolution = nn.Conv2d(3, SHAPE[0], 3, stride=2, padding=1)
    generator = torch.Generator().manual_seed(0)
    for parameter in convolution.parameters():
        nn.init.normal_(parameter, std=0.3 * scale, generator=generator)
    trunk = Frozen(nn.Sequential(convolution, nn.GELU()))
    zeros, ones = (0.0,) * 3, (1.0,) * 3
    return Encoder("tiny", trunk, nn.Identity(), SHAPE, 4, 16, 18, zeros, ones, 1 / 255, f"fingerprint {scale}")


def run_alone(folder: str, seconds: str) -> None:
    """What a child process does: fill the cache in shards of four rows."""
    trunk.SHARD_ROWS = 4
    open_trunk_cache(
        make_table(seconds=float(seconds)), make_encoder(), recipe=RECIPE, n_views=3, seed=5, folder=Path(folder)
    )


def start(folder: Path, seconds: float) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, str(folder), str(seconds)]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def finished(folder: Path) -> int:
    """Shards in the manifest, 0 before there is one."""
    manifests = list(folder.glob("*/manifest.json"))
    return len(json.loads(manifests[0].read_text())["shards"]) if manifests else 0


def wait_for(folder: Path, shards: int, process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + 120
    while finished(folder) < shards:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < until
        time.sleep(0.01)


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def data_of(folder: Path) -> bytes:
    (file,) = folder.glob("*/trunk.f16")
    return file.read_bytes()


def open_small(folder: Path, **options: object) -> trunk.CachedSource:
    given = {"recipe": RECIPE, "n_views": 2, "seed": 0, "folder": folder, "progress": False, **options}
    return open_trunk_cache(make_table(12), make_encoder(), **given)  # type: ignore[arg-type]


def test_killed_process_resumes_to_identical_bytes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    process = start(whole, 0)
    _, said = process.communicate()
    assert process.returncode == 0, said
    assert "48 images, the clean and 3 augmented views of each, 147 kB in" in said
    assert str(whole) in said.replace("\n", "")

    process = start(broken, 0.05)
    wait_for(broken, 3, process)
    kill(process)
    done = finished(broken)
    assert 3 <= done < 12
    with open(next(broken.glob("*/trunk.f16")), "ab") as stream:
        stream.write(b"half a shard")  # what a write that was cut short leaves
    process = start(broken, 0)
    _, said = process.communicate()
    assert process.returncode == 0, said
    assert f"{48 - 4 * done} images ({4 * done} more are there)" in said
    assert data_of(broken) == data_of(whole)
    capfd.readouterr()
    open_trunk_cache(make_table(), make_encoder(), recipe=RECIPE, n_views=3, seed=5, folder=broken)
    assert capfd.readouterr().err == ""  # nothing is left to do or to say


def test_second_process_waits_and_takes_over_when_the_first_dies(tmp_path: Path) -> None:
    first = start(tmp_path, 0.05)
    wait_for(tmp_path, 1, first)
    first.send_signal(signal.SIGSTOP)  # it holds the lock and does nothing
    left = finished(tmp_path)
    others = [start(tmp_path, 0), start(tmp_path, 0)]
    for process in others:
        assert process.stderr is not None
        assert "waiting for another process" in process.stderr.readline()
    assert finished(tmp_path) == left < 12
    kill(first)
    said = [process.communicate()[1] for process in others]
    assert [process.returncode for process in others] == [0, 0], said
    assert sum(f"trunk cache: {48 - 4 * left} images" in text for text in said) == 1  # only one of the two computed
    assert sum("trunk cache:" in text for text in said) == 1
    source = open_trunk_cache(
        make_table(), make_encoder(), recipe=RECIPE, n_views=3, seed=5, folder=tmp_path, verify=True, progress=False
    )
    fresh = FreshSource(make_table(), make_encoder(), RECIPE, 5, fixed_views=3)
    torch.testing.assert_close(source.clean(np.arange(48)), fresh.clean(np.arange(48)), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("in_memory", [False, True])
def test_cached_and_fresh_agree_for_the_same_keys(tmp_path: Path, in_memory: bool) -> None:
    rows = np.array([7, 2, 11, 5])
    source = open_small(tmp_path, rows=rows, in_memory=in_memory)
    fresh = FreshSource(make_table(12), make_encoder(), RECIPE, 0, rows=rows, fixed_views=2, batch_size=3)
    assert (len(source), source.shape, source.n_views) == (4, SHAPE, 2) == (len(fresh), fresh.shape, fresh.n_views)
    asked, views = np.array([3, 0, 0, 2, 1, 3]), np.array([0, 1, 0, 1, 1, 1])
    for epoch in (0, 9):
        cached, exact = (s.view(asked, views, epoch) for s in (source, fresh))
        assert cached.dtype == torch.float32
        torch.testing.assert_close(cached, exact, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(source.clean(asked), fresh.clean(asked), rtol=1e-3, atol=1e-4)
    assert not torch.equal(source.view(asked, 1 - views, 0), source.view(asked, views, 0))
    assert not torch.equal(source.view(asked, views, 0), source.clean(asked))


def test_fresh_views_change_with_the_epoch_and_the_number() -> None:
    fresh = FreshSource(make_table(6), make_encoder(), RECIPE, 3)
    rows = np.arange(6)
    assert fresh.n_views == 2
    first, second = (fresh.view(rows, np.full(6, number), 0) for number in (0, 1))
    assert not torch.equal(first, second)
    assert not torch.equal(first, fresh.view(rows, np.zeros(6, int), 1))
    assert torch.equal(first, fresh.view(rows, np.zeros(6, int), 0))
    feed = Feed(fresh, np.full(6, -1), batch_size=4, epochs=2, seed=0)
    left, right = feed.batch(0).views
    assert not torch.equal(left, right)
    tail = nn.Linear(8, 1)
    tail(left).sum().backward()  # a fresh view may be part of a graph
    assert tail.weight.grad is not None


@pytest.mark.parametrize("how", ["flip", "shorten", "remove", "manifest"])
def test_damage_is_found_and_computed_again(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trunk, "SHARD_ROWS", 5)
    folder = open_small(tmp_path).folder
    file, manifest = folder / "trunk.f16", folder / "manifest.json"
    before = file.read_bytes()
    damaged = bytearray(before)
    damaged[len(before) // 2] ^= 1
    if how == "manifest":
        manifest.write_text(manifest.read_text()[:-20])
    elif how == "remove":
        file.unlink()
    else:
        file.write_bytes(damaged if how == "flip" else before[: len(before) // 2])
    source = open_small(tmp_path, verify=how == "flip", in_memory=False, progress=True)
    said = capfd.readouterr().err
    again = {"flip": 5, "shorten": 7, "remove": 12, "manifest": 12}[how]
    assert f"trunk cache: {again} images" in said
    assert file.read_bytes() == before
    fresh = FreshSource(make_table(12), make_encoder(), RECIPE, 0, fixed_views=2)
    rows, views = np.arange(12), np.ones(12, int)
    torch.testing.assert_close(source.view(rows, views, 0), fresh.view(rows, views, 0), rtol=1e-3, atol=1e-4)


def test_one_cache_serves_all_labels_and_rows_and_nothing_else(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = open_small(tmp_path, rows=np.arange(0, 12, 2)).folder
    one = open_small(tmp_path, rows=np.arange(6), progress=True)  # rows 0, 2, 4 are there
    assert one.folder == folder
    assert "trunk cache: 3 images (3 more are there)" in capfd.readouterr().err
    labelled = replace(make_table(12), labels=np.arange(12) % 2, class_names=("a", "b"))
    options = {"recipe": RECIPE, "n_views": 2, "seed": 0, "folder": tmp_path}
    assert open_trunk_cache(labelled, make_encoder(), **options).folder == folder  # type: ignore[arg-type]
    others = [
        open_small(tmp_path, seed=1),
        open_small(tmp_path, n_views=3),
        open_small(tmp_path, recipe=view_recipe("standard", 16, flip=0.0)),
        open_trunk_cache(make_table(11), make_encoder(), **options),  # type: ignore[arg-type]
        open_trunk_cache(make_table(12), make_encoder(1.1), **options),  # type: ignore[arg-type]
    ]
    assert len({folder, *(other.folder for other in others)}) == 6
    clean = [
        open_small(tmp_path, n_views=0, seed=s, recipe=view_recipe(k, 16)) for s, k in ((0, "standard"), (1, "strong"))
    ]
    assert clean[0].folder == clean[1].folder  # without augmented views neither seed nor augmentation counts
    rows = np.arange(12)
    assert torch.equal(clean[0].view(rows, rows, 0), clean[0].clean(rows))
    assert len(open_small(tmp_path, rows=rows[:0])) == 0


def test_user_errors_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("RGB", (20, 20)).save(tmp_path / "a.png")
    Image.new("RGB", (20, 20), "red").save(tmp_path / "b.png")
    table = read_table(tmp_path)
    encoder = make_encoder()
    options = {"recipe": RECIPE, "n_views": 1, "seed": 0, "folder": tmp_path / "cache", "progress": False}
    (tmp_path / "b.png").write_bytes(b"no picture")
    with pytest.raises(InputError, match=r"b\.png"):
        open_trunk_cache(table, encoder, **options)  # type: ignore[arg-type]
    (tmp_path / "b.png").unlink()
    with pytest.raises(InputError, match=r"b\.png"):
        open_trunk_cache(table, encoder, **options)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"encoder tiny gives .* for image row 0, which a cache of float16"):
        open_trunk_cache(make_table(3), make_encoder(1e6), **options)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="takes 16 px"):
        FreshSource(table, encoder, view_recipe("standard", 14), 0)
    with pytest.raises(InputError, match="no images"):
        FreshSource(Table(np.full(2, -1), (), ["a", "b"], embeddings=np.zeros((2, 3))), encoder, RECIPE, 0)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(trunk.shutil, "disk_usage", lambda path: usage._replace(free=10_000))
    with pytest.raises(InputError, match=r"needs 28 kB more and .*cache.* has 10 kB free"):
        open_small(tmp_path / "cache")
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        open_small(blocked)
    monkeypatch.setenv("ROWSSL_CACHE", "/some/where")
    assert trunk.cache_folder() == Path("/some/where/trunk")


@pytest.mark.shared
def test_real_encoder_on_real_pictures(tmp_path: Path, shared_dir: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("pyarrow")
    table = read_table(shared_dir / "data" / "cifar100" / "test.parquet", check_images=False)
    encoder = build_encoder(str(shared_dir / "encoders" / "resnet50-imagenet"), image_size=96)
    recipe = view_recipe("standard", 96, encoder.resize)
    rows = np.arange(0, 10_000, 313)
    source = open_trunk_cache(table, encoder, recipe=recipe, n_views=2, seed=0, rows=rows, folder=tmp_path)
    fresh = FreshSource(table, encoder, recipe, 0, rows=rows, fixed_views=2)
    assert (len(source), source.shape) == (32, (2048,))
    everything, views = np.arange(32), np.arange(32) % 2
    for cached, exact in (
        (source.clean(everything), fresh.clean(everything)),
        (source.view(everything, views, 4), fresh.view(everything, views, 4)),
    ):
        assert float((cached - exact).norm(dim=1).div(exact.norm(dim=1)).max()) < 1e-3
    both = [nn.functional.normalize(x) for x in (source.clean(everything), source.view(everything, views, 0))]
    nearest = (both[0] @ both[1].T).argmax(dim=0)
    assert int((nearest == torch.arange(32)).sum()) >= 31  # an augmented view is closest to its own picture


if __name__ == "__main__":
    run_alone(*sys.argv[1:])
