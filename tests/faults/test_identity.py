"""What a run is known by: it changes with whatever decides the result, and with nothing else."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from faults.trainings import weights
from rowssl import methods
from rowssl.api import fit
from rowssl.config import IDENTITY, DataConfig, EncoderConfig, RunConfig, TrainConfig, build_config
from rowssl.core.errors import InputError
from rowssl.methods import METHODS, dts, method_options
from rowssl.training.loop import train


def content(data: Path, method: str = "simgcd", **train: Any) -> dict[str, Any]:
    return {
        "data": {"source": str(data)}, "method": {"name": method}, "classes": 8,
        "train": {"epochs": 4, "batch_size": 64, "save_seconds": 0, **train},
    }  # fmt: skip


def test_an_option_at_its_default_is_as_if_not_given() -> None:
    plain = RunConfig().identity("facts")
    written = build_config(
        {"train": {"momentum": 0.9}, "encoder": {"reduce": 256, "cache": "/x"}, "seed": 0, "start": "/y"}
    )
    assert written.identity("facts") == plain
    others = [
        RunConfig().identity("other facts"),
        *(build_config(change).identity("facts") for change in (
            {"seed": 1}, {"train": {"momentum": 0.8}}, {"encoder": {"views": 4}}, {"data": {"gamma": 10}},
            {"method": {"name": "simgcd"}}, {"method": {"options": {"tau_max": 0.5}}}, {"classes": 10},
        )),
    ]  # fmt: skip
    assert len({plain, *others}) == len(others) + 1


def test_whoever_changes_a_default_of_the_configuration_raises_its_number() -> None:
    """Options at their defaults are not part of the identity, so old runs must be told apart by the number."""
    groups = (DataConfig, EncoderConfig, TrainConfig, RunConfig)
    beside = {"save_seconds", "save_within_seconds", "evaluate_every", "cache"}  # decide nothing
    fields = {
        f"{group.__name__}.{name}": str(field.default)
        for group in groups
        for name, field in group.model_fields.items()
        if name not in {"data", "encoder", "method", "train", "start", *beside}
    }
    digest = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:12]
    known = {4: "ea124fe7fb70"}
    assert known.get(IDENTITY) == digest, (
        f"the defaults are {digest}: a new option is added to this test, a changed default raises config.IDENTITY too"
    )


@pytest.mark.parametrize("name", METHODS)
def test_every_option_of_a_method_counts_with_its_value(name: str) -> None:
    options = method_options(name, {})
    assert set(options).isdisjoint({"n_old", "n_classes", "n_rows", "seed", "tail", "self"})
    for option, value in options.items():
        if isinstance(value, float) and value == 0.5:
            assert method_options(name, {option: 0.25})[option] == 0.25
    assert json.dumps(options, sort_keys=True, default=str)


def test_a_changed_default_of_a_method_refuses_an_unfinished_run(
    embeddings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half(content(embeddings, "dts"), tmp_path / "run", monkeypatch)
    monkeypatch.setitem(dts.PRESETS, "tuned", {"epsilon": 2.0})
    assert methods.method_options("dts", {})["epsilon"] == 2.0
    with pytest.raises(InputError, match="other options"):
        fit(build_config(content(embeddings, "dts")), tmp_path / "run")


class StopError(Exception):
    """As if killed."""


def half(content: dict[str, Any], out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of four epochs."""

    def stopped(*arguments: Any, **options: Any) -> Any:
        for epoch in train(*arguments, **options):
            yield epoch
            if epoch.number == 2:
                raise StopError

    with monkeypatch.context() as patch:
        patch.setattr("rowssl.runs.fit.train", stopped)
        with pytest.raises(StopError):
            fit(build_config(content), out)


def test_a_method_without_checkpoints_does_not_replace_a_finished_run(embeddings: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    fit(build_config(content(embeddings, "simgcd", epochs=1)), run)
    before = weights(run)
    for other in (content(embeddings, "kmeans"), content(embeddings, "simgcd", epochs=2)):
        with pytest.raises(InputError, match="other options"):
            fit(build_config(other), run)
    assert weights(run) == before
    fit(build_config(content(embeddings, "kmeans")), tmp_path / "means")
    with pytest.raises(InputError, match="other options"):
        fit(build_config({**content(embeddings, "kmeans"), "seed": 1}), tmp_path / "means")
    fit(build_config(content(embeddings, "kmeans")), tmp_path / "means")  # the same is written again
