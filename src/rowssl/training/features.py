"""From a problem's tables to trunk outputs: embeddings as they are, pictures through the encoder's cached trunk.

How long that will take is said before it begins: a few pictures are timed, the rest is arithmetic.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from rowssl import methods
from rowssl.config import EncoderConfig, RunConfig
from rowssl.core import distributed
from rowssl.core.console import clock, err
from rowssl.core.errors import InputError
from rowssl.data.feed import ArraySource, Remembered, Source
from rowssl.data.problem import Problem
from rowssl.data.table import Table
from rowssl.encoders.base import BUILT_IN, Encoder, best_available, build_encoder, parse_tail
from rowssl.encoders.reduce import Reduction, fit_reduction, reduce_source
from rowssl.encoders.tails import AdapterTail
from rowssl.encoders.trunk import FreshSource, cache_folder, open_store, open_trunk_cache
from rowssl.training.plan import cached_views

if TYPE_CHECKING:
    from rowssl.data.views import ViewRecipe

PROBED = 6  # pictures
AFTER = 8.0  # seconds for count, closed form and report of some thousand pictures
BRIEF = 3.0  # seconds; what is shorter needs no forecast
STEP = 0.7  # passes of a picture through the network that a step of tuning costs for each picture of its batch
STAGE = 0.1  # the same of one pass through the last stage alone


def missing(source: FreshSource, folder: Path | None) -> int:
    """Pictures, views included, that the cache does not hold yet."""
    store = open_store(source, folder or cache_folder())
    store.read()
    return int((store.slots(source.rows) < 0).sum()) * (1 + source.n_views)


def seconds_per_picture(source: FreshSource) -> float:
    """Of one picture, decoding included, timed on a few; the first pass is not counted."""
    rows = np.linspace(0, len(source) - 1, min(len(source), 2 + PROBED)).astype(int)
    source.clean(rows[:2])
    began = time.perf_counter()
    source.clean(rows[2:] if len(rows) > 2 else rows)
    return (time.perf_counter() - began) / max(1, len(rows) - 2)


def tuning_seconds(rate: float, views: int, samples: int, rows: int) -> float:
    """Of views that are missing, of the steps of all trainings, and of the stage on all rows after each."""
    return rate * (views + STEP * samples + 3 * STAGE * rows)


def sentence(pictures: int, first: float, tuning: float) -> str:
    """What to expect, empty where it is over in a moment."""
    if first + tuning < BRIEF:
        return ""
    first += AFTER
    look = f"{pictures:,} pictures to look at" if pictures else "the pictures are in the cache"
    said = f"forecast: {look}, a first answer in about {clock(first)}"
    return f"{said}, the tuned one about {clock(tuning)} later" if tuning else said


Asked = tuple[Table, np.ndarray | None, int]  # these rows of a table (None: all), with so many augmented views
WITHOUT_WEIGHTS = ("convnet", "gradients", "pixels")
TINY = 16  # pixels


@dataclass(frozen=True)
class Features:
    """The encoder and the trunk outputs of the training and the test rows."""

    encoder: Encoder
    train: Source
    test: Source | None
    why: str  # why this encoder
    reduction: Reduction | None = None  # between trunk and tail, where pooled features are wide
    tail: str = "auto"  # how the encoder was cut, as `--tail` says it
    tuning: Callable[[], Source] | None = None  # opens the labelled rows alone, with augmented views
    remembered: Remembered | None = None  # features behind a stage, for methods that tune it
    tuning_seconds: float = 0.0  # what tuning will take, as forecast
    views: int | None = None  # of each image that are cached; 0 = made on the fly, None = there are no images

    @property
    def choice(self) -> str:
        """The encoder, why it was chosen, and what is kept of every picture, as part of a sentence."""
        chosen = f"{self.encoder.name} ({self.why[:1].lower()}{self.why[1:].rstrip('.')})"
        if self.views is None:
            return chosen
        whose = "each picture" if self.tuning is None else "each labelled picture"
        kept = f"{self.views} cached view{'' if self.views == 1 else 's'} of {whose}"
        return f"{chosen}; {kept if self.views else 'views made on the fly'}"


def open_features(
    problem: Problem,
    run: RunConfig,
    *,
    device: torch.device | str = "cpu",
    reduction: Reduction | None = None,
    on: str = "local",
) -> Features:
    """Build the encoder, then open (or compute once) what its trunk says of every row.

    `reduction` is one that weights to start from go with; otherwise it is fitted on the rows. What a cache lacks is computed
    on `device` by this process, or `on` a Ray cluster.
    """
    config, seed, method = run.encoder, run.seed, methods.METHODS[run.method.name]
    table, test = problem.table, problem.test
    name, why = (config.name, "as asked") if config.name else _choose(table)
    if not table.has_images or name == "identity":
        if table.embeddings is None:
            raise InputError("--encoder identity takes embeddings, but the source holds pictures.")
        encoder = build_encoder("identity", tail=config.tail, embedding_dim=table.embeddings.shape[1], seed=seed)
        if test is not None and (test.embeddings is None or test.embeddings.shape[1:] != table.embeddings.shape[1:]):
            raise InputError("test_embeddings must have as many columns as embeddings.")
        test_rows = None if test is None or test.embeddings is None else ArraySource(test.embeddings)
        return Features(encoder, ArraySource(table.embeddings, table.views), test_rows, why)

    size = config.image_size or (_native_size(table) if name in WITHOUT_WEIGHTS else None)
    tail = "stage" if config.tail == "auto" and method.tunes and name == BUILT_IN else config.tail
    encoder = build_encoder(name, tail=tail, image_size=size, seed=seed).to(device)
    views = cached_views(run, len(table), encoder)
    viewed = "labelled" if method.tunes else "all"
    chosen = config.model_copy(
        update={"name": name, "image_size": size, "tail": tail, "views": views, "viewed": viewed}
    )
    asked = _asked(problem, chosen)
    expected = _forecast(asked, encoder, chosen, problem, method.tunes)
    opened = {what: partial(_trunk, asked[what], encoder, chosen, problem, seed, on) for what in asked}
    train = opened["train"]()
    features = Features(
        encoder, train, opened["test"]() if "test" in opened else None, why,
        remembered=Remembered(train, encoder.tail, device) if tail == "stage" and method.tunes else None,
        views=views, tail=tail, tuning=opened.get("labelled"), tuning_seconds=expected,
    )  # fmt: skip
    return features if method.tunes else _reduced(features, chosen, seed, reduction)


def trunk_sources(
    problem: Problem, config: EncoderConfig, seed: int, device: torch.device | str = "cpu"
) -> Iterator[FreshSource]:
    """The trunk outputs behind the caches of `open_features`; the encoder and the number of views have been chosen."""
    assert config.name is not None
    encoder = build_encoder(config.name, tail=config.tail, image_size=config.image_size, seed=seed).to(device)
    recipe = _recipe(encoder, config)
    for table, rows, views in _asked(problem, config).values():
        yield FreshSource(table, encoder, recipe, config.view_seed, rows=rows, fixed_views=views)


def _choose(table: Table) -> tuple[str, str]:
    """The encoder when none is asked for, and why."""
    if table.has_images and (side := _native_size(table)) <= TINY:
        return (
            "gradients",
            f"Pictures of {side} pixels are compared by their edges: enlarging them for a network adds nothing.",
        )
    return best_available(table.has_images)


def _reduced(features: Features, config: EncoderConfig, seed: int, reduction: Reduction | None) -> Features:
    """Shorten wide pooled features, unless it is switched off."""
    encoder, train = features.encoder, features.train
    if not _is_wide(encoder, config):
        return features
    if reduction is None or len(reduction.mean) != encoder.trunk_shape[0]:
        reduction = fit_reduction(train, min(config.reduce, len(train)))
    dim, folder = reduction.components.shape[1], _cache(config)
    tail = AdapterTail(dim, parse_tail(config.tail)[1], seed=seed)
    return replace(
        features,
        encoder=replace(encoder, tail=tail, out_dim=dim),
        train=reduce_source(train, reduction, what="training features", folder=folder),
        test=features.test and reduce_source(features.test, reduction, what="test features", folder=folder),
        reduction=reduction,
    )


def _is_wide(encoder: Encoder, config: EncoderConfig) -> bool:
    """Whether its features are pooled, and longer than they are wanted."""
    pooled = len(encoder.trunk_shape) == 1 and isinstance(encoder.tail, AdapterTail)
    return pooled and 0 < config.reduce < encoder.trunk_shape[0]


def _cache(config: EncoderConfig) -> Path:
    """Where features are kept."""
    return cache_folder() if config.cache is None else Path(config.cache)


def _native_size(table: Table) -> int:
    """Encoders without pretrained weights look at small pictures in their own size."""
    side = int(np.median([max(table.image(row).size) for row in range(0, len(table), max(1, len(table) // 16))]))
    return int(np.clip(side, 8, 32))


def _asked(problem: Problem, config: EncoderConfig) -> dict[str, Asked]:
    """The training rows, the labelled ones of them where only these have views, and any test rows.

    They are rows of the tables that all splits share.
    """
    assert config.views is not None
    table, labelled = problem.whole or problem.table, np.flatnonzero(problem.targets >= 0)
    rows = np.arange(len(problem.table)) if problem.rows is None else problem.rows
    if config.viewed == "all":
        asked: dict[str, Asked] = {"train": (table, problem.rows, config.views)}
    else:
        asked = {"train": (table, problem.rows, 0)}
        if config.views and len(labelled):
            asked["labelled"] = (table, rows[labelled], config.views)
    test = problem.whole_test or problem.test
    if test and (problem.test_rows is None or len(problem.test_rows)):
        asked["test"] = (test, problem.test_rows, 0)
    return asked


def _forecast(asked: dict[str, Asked], encoder: Encoder, config: EncoderConfig, problem: Problem, tunes: bool) -> float:
    """Say how long it will take; returns the seconds of tuning."""
    from rowssl.methods.tuning import Tuning

    if (config.views == 0 and not tunes) or distributed.rank() != 0:
        return 0.0
    sources = {
        what: FreshSource(table, encoder, _recipe(encoder, config), config.view_seed, rows=rows, fixed_views=views)
        for what, (table, rows, views) in asked.items()
    }
    todo = {what: missing(source, _cache(config)) for what, source in sources.items()}
    later = todo.pop("labelled", 0)
    tuned = "labelled" in sources
    if not sum(todo.values()) and not tuned:
        return 0.0
    rate = seconds_per_picture(sources["train"])
    labels = int((problem.targets >= 0).sum())
    seconds = tuning_seconds(rate, later, Tuning().samples_for(labels), len(sources["train"])) if tuned else 0.0
    if said := sentence(sum(todo.values()), rate * sum(todo.values()), seconds):
        err.print(said, markup=False, soft_wrap=True)
    return seconds


def _recipe(encoder: Encoder, config: EncoderConfig) -> ViewRecipe:
    """How views are made."""
    from rowssl.data.views import view_recipe

    usual = "small" if encoder.name in WITHOUT_WEIGHTS else "gentle" if config.viewed == "labelled" else "standard"
    kind = usual if config.view_recipe == "auto" else config.view_recipe
    return view_recipe(kind, encoder.image_size, encoder.resize)


def _trunk(asked: Asked, encoder: Encoder, config: EncoderConfig, problem: Problem, seed: int, on: str) -> Source:
    """Trunk outputs of some rows of a table. The views' seed is the cache's own, so that all runs share them."""
    from rowssl.training.cluster import on_cluster

    (table, rows, views), recipe = asked, _recipe(encoder, config)
    if config.views == 0 and config.viewed == "all":
        return FreshSource(table, encoder, recipe, config.view_seed, rows=rows)
    in_memory = False if _is_wide(encoder, config) else None  # those are read once, to be shortened
    return open_trunk_cache(
        table, encoder, recipe=recipe, n_views=views, seed=config.view_seed, rows=rows, folder=_cache(config),
        elsewhere=on_cluster(problem, config, seed, on), in_memory=in_memory,
    )  # fmt: skip
