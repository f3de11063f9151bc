"""What a run is known by: a checkpoint of another identity is not continued."""

from __future__ import annotations

import json
from dataclasses import asdict

from rowssl.config import RunConfig
from rowssl.data.loader import Feed
from rowssl.methods import method_options


def identities(config: RunConfig, feed: Feed, *facts: str) -> list[str]:
    """The identity of a run, and what earlier versions of rowssl called the same run; facts are fingerprints of its input.

    What the defaults come to is part of it: another version may choose otherwise for the same configuration and data.
    """
    feeding = {"batch_size": feed.batch_size, "epochs": feed.epochs, "augmentation": asdict(feed.augmentation)}
    options = method_options(config.method.name, config.method.options)
    came_to = json.dumps({"method": options, "feed": feeding}, sort_keys=True, default=str)
    return [config.identity(*facts, came_to), config.identity(*facts, version=1)]
