"""Whole paths through the program: cached against fresh views, two processes of the real command, TensorBoard's files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from rowssl.data.benchmarks import load_benchmark
from rowssl.data.feed import Feed
from rowssl.data.views import view_recipe
from rowssl.encoders.base import Encoder, build_encoder
from rowssl.encoders.trunk import FreshSource, open_trunk_cache
from rowssl.encoders.vit import Architecture, ViT
from rowssl.methods import build_method
from rowssl.training.log import EpochLog
from rowssl.training.loop import Optimisation, train


@pytest.fixture
def transformer(tmp_path: Path) -> Encoder:
    """A small ViT with weights on disk, its last block trainable."""
    from safetensors.torch import save_file

    torch.manual_seed(0)
    vit = ViT(Architecture(patch=4, dim=64, depth=3, heads=1, hidden=128, grid=4))
    save_file(vit.state_dict(), tmp_path / "vit.safetensors")
    return build_encoder(str(tmp_path / "vit.safetensors"), tail="blocks:1", image_size=16)


@pytest.mark.parametrize("method", ["dts", "simgcd"])
def test_cached_and_uncached_training_have_the_same_losses(tmp_path: Path, transformer: Encoder, method: str) -> None:
    table, _ = load_benchmark("digits", None)
    table = table.take(np.arange(128))
    targets = np.where((table.labels < 5) & (np.arange(128) % 2 == 0), table.labels, -1)
    recipe = view_recipe("small", 16)
    sources = (
        open_trunk_cache(table, transformer, recipe=recipe, n_views=3, seed=4, folder=tmp_path, progress=False),
        FreshSource(table, transformer, recipe, 4, fixed_views=3),
    )
    losses = []
    for source in sources:
        tail = build_encoder(str(tmp_path / "vit.safetensors"), tail="blocks:1", image_size=16).tail
        feed = Feed(
            source, targets, batch_size=32, epochs=3, seed=0
        )  # 12 steps: an argmax that flips later is no fault
        # Where training begins at clusters, a row between two of them may fall to either by the rounding alone.
        model = build_method(method, tail, {"classifier_init": "random"}, n_old=5, n_classes=10, n_rows=128, seed=0)
        losses.append([epoch.losses for epoch in train(model, feed, Optimisation(lr=0.01))])
    for cached, fresh in zip(*losses, strict=True):
        assert cached.keys() == fresh.keys()
        total, expected = sum(cached.values()), sum(fresh.values())
        assert total == pytest.approx(expected, rel=1e-3)
        assert cached != fresh  # float16 against float32: the two really came by different ways


@pytest.mark.parametrize("method", ["dts", "simgcd"])
def test_torchrun_of_the_real_command_trains_as_one_process(tmp_path: Path, method: str) -> None:
    options = ["--data", "digits", "--protocol", "longtail", "--known", "5", "--gamma", "10", "--prior", "match"]
    options += ["--encoder", "pixels", "--views", "2", "--epochs", "2", "--batch-size", "64", "--method", method]
    options += ["--cache", str(tmp_path / "cache")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    for launcher, name in (([sys.executable], "one"), (torchrun, "two")):
        command = [*launcher, "-m", "rowssl", "fit", *options, "--out", str(tmp_path / name)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("report.html") == 1  # one process speaks
    one, two = (load_file(tmp_path / name / "model" / "tail.safetensors") for name in ("one", "two"))
    for key in one:
        torch.testing.assert_close(two[key], one[key], rtol=1e-3, atol=1e-4)
    curves = [
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("one", "two")
    ]
    for left, right in zip(*curves, strict=True):
        assert sum(left["loss"].values()) == pytest.approx(sum(right["loss"].values()), rel=1e-4)


def test_tensorboard_gets_every_epoch_once(tmp_path: Path) -> None:
    event_file = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

    def row(epoch: int) -> dict[str, object]:
        return {"epoch": epoch, "lr": 0.1, "loss": {"entropy": 1.0 / epoch}, "phi": {"tail": 2.0}}

    first = EpochLog(tmp_path / "metrics.jsonl")
    for epoch in (1, 2, 3):
        first.add(row(epoch))
    first.close()
    again = EpochLog(tmp_path / "metrics.jsonl")  # killed after 3, resumed from the checkpoint of epoch 1
    for epoch in (2, 3, 4):
        again.add(row(epoch))
    again.close()
    board = event_file.EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    assert set(board.Tags()["scalars"]) == {"loss/entropy", "phi/tail", "lr"}
    assert [event.step for event in board.Scalars("loss/entropy")] == [1, 2, 3, 4]
