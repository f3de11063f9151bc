"""What a run is known by: a checkpoint of another identity is not continued."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rowssl.config import RunConfig
from rowssl.core.errors import InputError
from rowssl.core.files import read_json
from rowssl.data.feed import Feed
from rowssl.methods import method_options
from rowssl.training.checkpoints import other_options


def identities(config: RunConfig, feed: Feed, views: int | None, *facts: str) -> list[str]:
    """The identity of a run, and what earlier versions of rowssl called the same run; facts are fingerprints of its input.

    What the defaults come to is part of it: another version may choose otherwise for the same configuration and data. `views`
    is how many of each image are cached, None without images; earlier versions kept 8 where nothing was asked.
    """
    feeding = {"batch_size": feed.batch_size, "epochs": feed.epochs, "augmentation": asdict(feed.augmentation)}
    options = method_options(config.method.name, config.method.options)

    def came_to(feeding: dict[str, Any]) -> str:
        return json.dumps({"method": options, "feed": feeding}, sort_keys=True, default=str)

    def with_views(number: int | None) -> RunConfig:
        return config.model_copy(update={"encoder": config.encoder.model_copy(update={"views": number})})

    before = config.encoder.views if config.encoder.views is not None else 8 if views is None else views
    return [
        config.identity(*facts, came_to({**feeding, "views": views})),
        with_views(None if before == 8 else before).identity(*facts, came_to(feeding), version=2),
        with_views(before).identity(*facts, version=1),
    ]


def refuse_another(out: Path | None, own: Sequence[str]) -> str | None:
    """The identity of the finished run that is there, None without one.

    An InputError if it is another run's: a method without checkpoints would lay itself over it.
    """
    try:
        finished = {} if out is None else read_json(out / "metrics.json")
    except InputError:
        return None  # none, or damaged: it is written again
    identity = finished.get("identity") if isinstance(finished, dict) else None
    if not isinstance(identity, str):
        return None
    if out is not None and identity not in own:
        raise other_options(out)
    return identity
