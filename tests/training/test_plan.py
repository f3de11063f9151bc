"""What is chosen where nothing is asked: batch, epochs, cached views."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rowssl.config import RunConfig, build_config
from rowssl.data.problem import load_problem
from rowssl.encoders.base import Encoder, build_encoder
from rowssl.training.features import open_features
from rowssl.training.plan import cached_views, learning_rate, schedule


@pytest.mark.parametrize(
    ("rows", "from_scratch", "expected"),
    [(10, False, (64, 50)), (600, False, (64, 100)), (2047, False, (64, 200)), (2048, False, (128, 200)),
     (50_000, False, (128, 44)), (200_000, False, (128, 11)), (10**6, False, (128, 5)), (300, True, (64, 200))],
)  # fmt: skip
def test_batch_and_epochs_by_size(rows, from_scratch, expected):
    paper = build_config({"method": {"name": "dts", "options": {"preset": "paper"}}})
    assert schedule(paper, rows, from_scratch=from_scratch) == expected
    asked = build_config({"train": {"batch_size": 16, "epochs": 3}})
    assert schedule(asked, rows, from_scratch=from_scratch) == (16, 3)


@pytest.mark.parametrize("method", ["dts", "simgcd"])
@pytest.mark.parametrize(
    ("rows", "steps", "epochs"),
    [(10, 300, 300), (600, 297, 33), (2047, 310, 10), (2048, 304, 19), (11_000, 1105, 13), (50_000, 3120, 8), (10**6, 39060, 5)],
)  # fmt: skip
def test_a_start_from_an_answer_is_trained_for_steps(method: str, rows: int, steps: int, epochs: int) -> None:
    config = build_config({"method": {"name": method}})
    batch_size, found = schedule(config, rows)
    assert (found, found * max(1, rows // batch_size)) == (epochs, steps)
    assert schedule(config, rows, from_scratch=True)[1] > epochs / 2
    assert schedule(build_config({"train": {"epochs": 7}, "method": {"name": method}}), rows)[1] == 7


def test_the_rate_by_where_training_begins() -> None:
    paper = {"method": {"name": "dts", "options": {"preset": "paper"}}}
    usual = {"method": {"name": "dts"}}
    assert learning_rate(build_config(paper)) == 0.1
    assert (
        learning_rate(build_config(usual)) == learning_rate(build_config({"method": {"name": "simgcd"}})) == 0.1 * 0.1
    )
    assert learning_rate(build_config({**paper, "start": "/run"})) == 0.1 * 0.2
    assert learning_rate(build_config({**usual, "start": "/run"})) == 0.1 * 0.1
    assert learning_rate(build_config(usual), from_scratch=True) == 0.01
    assert learning_rate(build_config({"train": {"lr": 0.3}})) == 0.3


def with_epochs(epochs: int, **encoder: object) -> RunConfig:
    return build_config({"train": {"epochs": epochs}, "encoder": encoder, "method": {"name": "dts"}})


@pytest.fixture(scope="module")
def pixels() -> Encoder:
    return build_encoder("pixels", image_size=16)


@pytest.mark.parametrize(("epochs", "views"), [(1, 1), (5, 1), (20, 1), (24, 2), (50, 5), (72, 8), (200, 8)])
def test_views_by_epochs(epochs: int, views: int, pixels: Encoder) -> None:
    assert cached_views(with_epochs(epochs), 2000, pixels) == views
    on_the_fly, cached = 2 * epochs, 1 + views
    assert epochs < 16 or on_the_fly >= 16 * cached


def test_views_that_are_asked_for_stay(pixels: Encoder) -> None:
    for asked in (0, 1, 16):
        assert cached_views(with_epochs(20, views=asked), 2000, pixels) == asked


def test_what_gets_no_noise_has_two_views_at_the_least(pixels: Encoder) -> None:
    assert (
        cached_views(build_config({"train": {"epochs": 5, "noise": 0.0}, "method": {"name": "dts"}}), 2000, pixels) == 2
    )
    scratch = build_encoder("convnet", image_size=16)
    assert len(scratch.trunk_shape) > 1
    assert cached_views(with_epochs(1), 2000, scratch) == 2


def test_a_method_may_need_more(pixels: Encoder) -> None:
    config = build_config({"train": {"epochs": 5}, "method": {"name": "trssl"}})
    assert cached_views(config, 2000, pixels) == 2


def test_features_have_them(tmp_path: Path) -> None:
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for number in range(6):
        noise = np.random.default_rng(number).integers(0, 256, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(noise).save(pictures / f"{number}.png")
    config = with_epochs(24, name="pixels", image_size=16, cache=str(tmp_path / "cache"))
    config = config.model_copy(update={"data": config.data.model_copy(update={"source": str(pictures)})})
    features = open_features(load_problem(config.data), config)
    assert features.views == features.train.n_views == 2
    rows = np.arange(2)
    assert features.train.view(rows, np.ones(2, dtype=int), 0).shape == features.train.clean(rows).shape
