"""How long it will take, said before it begins: a few pictures are timed, the rest is arithmetic."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from rowssl.core.console import clock
from rowssl.encoders.trunk import FreshSource, cache_folder, open_store

if TYPE_CHECKING:
    from pathlib import Path

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
