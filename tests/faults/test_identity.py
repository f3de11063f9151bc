"""What a run is known by: it changes with whatever decides the result, and with nothing else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from faults.trainings import weights
from rowssl import methods
from rowssl.api import fit
from rowssl.config import IDENTITY, DataConfig, EncoderConfig, RunConfig, TrainConfig, build_config
from rowssl.core.errors import InputError
from rowssl.core.files import read_manifest
from rowssl.methods import METHODS, dts, method_options
from rowssl.runs.edits import Edits
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
        RunConfig().identity("facts", version=1),
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
    known = {2: "56cfa6cd5952", 3: "f65787211b72", 4: "f9d67370f148"}
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


def half(
    content: dict[str, Any], out: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[..., str] | None = None
) -> None:
    """Two of four epochs."""

    def stopped(*arguments: Any, **options: Any) -> Any:
        for epoch in train(*arguments, **options):
            yield epoch
            if epoch.number == 2:
                raise StopError

    with monkeypatch.context() as patch:
        patch.setattr("rowssl.runs.fit.train", stopped)
        if change is not None:
            patch.setattr(RunConfig, "identity", change)
        with pytest.raises(StopError):
            fit(build_config(content), out)


def earlier(version: int, views: int = 8) -> Callable[..., str]:
    """`RunConfig.identity` of that version, for so many views."""
    plain = RunConfig.identity

    def identity(self: RunConfig, *facts: str, **_: Any) -> str:
        number = None if version == 2 and views == 8 else views  # eight were the default, which version 2 left out
        encoder = self.encoder.model_copy(update={"views": number})
        came_to = json.loads(facts[-1]) if len(facts) > 3 else {"feed": {}}
        came_to["feed"].pop("views", None)
        more = [json.dumps(came_to, sort_keys=True)] if version == 2 else []  # version 1: not what the defaults came to
        return plain(self.model_copy(update={"encoder": encoder}), *facts[:3], *more, version=version)

    return identity


@pytest.mark.parametrize("asked", [{}, {"views": 4}, {"views": 8}])
@pytest.mark.parametrize("version", [1, 2])
def test_a_run_that_a_version_before_began_goes_on(
    version: int, asked: dict[str, int], embeddings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**content(embeddings), "encoder": asked}
    half(options, tmp_path / "old", monkeypatch, earlier(version, **asked))
    begun = sorted((tmp_path / "old" / "checkpoints").iterdir())[-1]
    assert read_manifest(begun)["epoch"]["epoch"] == 2
    run = fit(build_config(options), tmp_path / "old")
    assert [row["epoch"] for row in run.curves] == [1, 2, 3, 4]
    fit(build_config(options), tmp_path / "whole")
    assert weights(tmp_path / "old") == weights(tmp_path / "whole")


def test_edits_of_a_run_that_a_version_before_finished_stay(
    embeddings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, config = tmp_path / "run", build_config(content(embeddings))
    with monkeypatch.context() as patch:
        patch.setattr(RunConfig, "identity", earlier(2))
        run = fit(config, out)
    Edits.load(out).rename(run.names.ids[-1], "a name").save(out)
    fit(config, out)
    assert [path.name for path in out.glob("edits*")] == ["edits.json"]
    assert "a name" in (out / "classes.csv").read_text()


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
