"""One run as data: strict keys, YAML in and out, `a.b=c` overrides."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from rowssl.core.errors import InputError
from rowssl.core.text import printable

LARGEST = 2**20  # bytes of a file of options
MOST_VALUES, DEEPEST = 10_000, 16
IDENTITY = 4  # raised when a default below, or a constant of the training, begins to mean something else


class Strict(BaseModel):
    """An unknown key is an error, not a surprise."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class DataConfig(Strict):
    """A table of the user's own (`source`), or a benchmark (`name`) cut by a protocol or a split file."""

    source: str | None = None
    labels: str | None = None
    image_column: str | None = None
    label_column: str | None = None
    name: str | None = None
    data_root: str | None = None
    variant: str | None = None
    split: str | None = None
    protocol: str = "rowssl"
    setting: str | None = None
    gamma: float | None = None
    prior: str | None = None
    known: int | float | list[int] | list[str] | None = None
    labelled_share: float = 0.5
    mismatch: str | None = None
    n_max: int | None = None
    split_seed: int | None = None
    max_bad: float = Field(default=0.05, ge=0, le=1)  # share of unreadable images above which nothing is started


class EncoderConfig(Strict):
    """What turns pictures into features."""

    name: str | None = None  # None: the best that is on the machine
    tail: str = "auto"
    image_size: int | None = Field(default=None, ge=8, le=1024)
    reduce: int = Field(default=256, ge=0)  # pooled features wider than this go through PCA; 0 = never
    # Cached augmented views per image; None: as many as the epochs pay for; 0: augment on the fly.
    views: int | None = Field(default=None, ge=0, le=256)
    viewed: Literal["all", "labelled"] = "all"  # which rows have augmented views
    view_recipe: str = "auto"  # standard, strong or small
    view_seed: int = Field(default=0, ge=0)  # of the cached views; runs of all seeds share them
    cache: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_cache_workers(cls, content: Any) -> Any:
        """Saved runs name the processes that filled the cache, an option that decided nothing and is gone."""
        return (
            {key: value for key, value in content.items() if key != "cache_workers"}
            if isinstance(content, dict)
            else content
        )

    def deciding(self) -> EncoderConfig:
        """As it is, but for what changes no result."""
        return self.model_copy(update={"cache": None})


class MethodConfig(Strict):
    """Which method, and its own options by their names."""

    name: str = "auto"
    options: dict[str, Any] = {}


class TrainConfig(Strict):
    """The loop; what is None is chosen by the size of the data."""

    epochs: int | None = Field(default=None, ge=1)
    batch_size: int | None = Field(default=None, ge=2)  # the paper's 128, less below 2,048 rows
    lr: float | None = Field(
        default=None, gt=0, allow_inf_nan=False
    )  # the paper's 0.1; 0.01 when a whole network is trained from scratch
    momentum: float = Field(default=0.9, ge=0, lt=1)
    weight_decay: float = Field(default=5e-5, ge=0, allow_inf_nan=False)
    # Augmentation of features on top of their views, see FeatureAugmentation: 1, 0 and 0.5 for pooled features, else 0.
    mix: float | None = Field(default=None, ge=0, le=1)
    dropout: float | None = Field(default=None, ge=0, lt=1)
    noise: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    # Share of the labels that is held back to judge the training as it goes; the last good state is kept. 0: none is.
    held: float = Field(default=0.0, ge=0, le=0.5)
    evaluate_every: int = Field(default=10, ge=1)
    save_seconds: float = Field(default=30.0, ge=0)
    save_within_seconds: float = Field(default=120.0, ge=0)
    device: str = "auto"
    time_limit: float | None = Field(
        default=None, gt=0, allow_inf_nan=False
    )  # seconds; what would end later is not begun


class RunConfig(Strict):
    """Everything that decides a result."""

    data: DataConfig = DataConfig()
    encoder: EncoderConfig = EncoderConfig()
    method: MethodConfig = MethodConfig()
    train: TrainConfig = TrainConfig()
    classes: int | Literal["auto", "oracle"] | None = None  # None: oracle for benchmarks, auto for a user's data
    seed: int = Field(default=0, ge=0, lt=2**63)
    start: str | None = None  # run directory to start from: its weights, its classes, and the corrections made in it

    def identity(self, *facts: str) -> str:
        """sha256 over the options that decide the result, and further facts (fingerprints of data and encoder).

        Options at their defaults are left out, so that a new one refuses no run that was begun before there was such an option;
        what the defaults come to for some data is one of the facts.
        """
        content = self.model_dump(mode="json", exclude_defaults=True)
        beside = (("train", "save_seconds"), ("train", "save_within_seconds"), ("train", "evaluate_every"), ("train", "time_limit"),
                  ("encoder", "cache"), ("data", "max_bad"))  # fmt: skip
        for group, name in beside:
            content.get(group, {}).pop(name, None)
        content.pop("start", None)  # its place decides nothing, its content is one of the facts
        content = {key: value for key, value in content.items() if value != {}}
        return hashlib.sha256(json.dumps([IDENTITY, content, *facts], sort_keys=True).encode()).hexdigest()


def build_config(content: dict[str, Any], where: str = "options") -> RunConfig:
    """A checked configuration; InputError names the first key that is wrong."""
    try:
        return RunConfig.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        key = printable(".".join(str(part) for part in first["loc"]))[:200]
        raise InputError(f"{where}: {key}: {first['msg'].lower()}.") from error


def load_config(paths: Sequence[Path] = (), overrides: Sequence[str] = ()) -> dict[str, Any]:
    """YAML files laid over each other in order, then `a.b=c` overrides; values are read as YAML."""
    content: dict[str, Any] = {}
    for path in paths:
        try:
            if path.stat().st_size > LARGEST:
                raise ValueError("it is too large for a file of options")
            layer = read_yaml(path.read_text(encoding="utf-8")) or {}
        except (OSError, ValueError) as error:
            reason = printable((str(error) or type(error).__name__).splitlines()[0])
            raise InputError(f"{path} cannot be read as YAML: {reason}.") from error
        if not isinstance(layer, dict):
            raise InputError(f"{path} must hold keys and values, not a {type(layer).__name__}.")
        for keys, value in flatten(layer):
            merge(content, keys, value, where=str(path))
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key:
            raise InputError(f"--set {override} is not of the form key.name=value.")
        try:
            value = read_yaml(text)
        except ValueError as error:
            raise InputError(f"--set {override}: the value cannot be read.") from error
        merge(content, key.split("."), value)
    return content


def read_yaml(text: str) -> Any:
    """Plain values from YAML, nothing constructed; ValueError for what is none, or is more than options can be.

    A few lines in which every list repeats the one before it stand for any number of values: they are counted first.
    """
    import yaml

    try:
        value = yaml.safe_load(text)
    except Exception as error:  # its constructors raise ValueError, AttributeError and others for odd numbers and dates
        raise ValueError(str(error)) from error
    pending, count = [(value, 0)], 0
    while pending:
        one, depth = pending.pop()
        count += 1
        if count > MOST_VALUES or depth > DEEPEST:
            raise ValueError("it holds more values, or deeper ones, than options can be")
        if isinstance(one, dict | list | tuple | set):
            inner = [*one.keys(), *one.values()] if isinstance(one, dict) else list(one)
            pending += [(part, depth + 1) for part in inner[: MOST_VALUES + 1]]
    return value


def lay_over(content: dict[str, Any], given: dict[str, Any], overrides: Sequence[str] = ()) -> None:
    """Put a command line's options (by dotted key, None = not given) over a configuration, and `a.b=c` overrides over all."""
    for key, value in given.items():
        if value is not None:
            merge(content, key.split("."), str(value) if isinstance(value, Path) else value)
    for keys, value in flatten(load_config([], overrides)):
        merge(content, keys, value)


def flatten(content: dict[str, Any], above: tuple[str, ...] = ()) -> list[tuple[list[str], Any]]:
    """Nested keys and their values."""
    rows: list[tuple[list[str], Any]] = []
    for key, value in content.items():
        if isinstance(value, dict) and value:
            rows += flatten(value, (*above, str(key)))
        else:
            rows.append(([*above, str(key)], value))
    return rows


def merge(content: dict[str, Any], keys: Sequence[str], value: Any, where: str = "--set") -> None:
    """Set a nested key in place."""
    *parents, last = keys
    for key in parents:
        content = content.setdefault(key, {})
        if not isinstance(content, dict):
            raise InputError(f"{where} {'.'.join(keys)}: {key} is not a group of options.")
    content[last] = value
