"""A trunk cache that a Ray cluster computes: one task is one shard, and the process that holds the cache's lock writes them.

A task reads the data and builds the encoder for itself, as the first one of its process; it needs the same paths on every node.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from rowssl.config import DataConfig, EncoderConfig
from rowssl.core import distributed
from rowssl.core.cluster import Cluster
from rowssl.core.console import quiet
from rowssl.core.errors import InputError
from rowssl.data.problem import Problem, load_problem
from rowssl.encoders.trunk import Elsewhere, FreshSource, Shard, computed, open_store, say

RETRIES = 8  # of a task whose process or node is gone: what ends more of them will go on
AHEAD = 2  # tasks submitted for each that can run, so that none waits for the writing


def on_cluster(problem: Problem, config: EncoderConfig, seed: int, on: str) -> Elsewhere | None:
    """What computes the shards of a cache; None without a cluster, or where nobody else can read the data."""
    cluster = Cluster.read(on)
    if cluster is None or problem.data is None or distributed.world() > 1:
        return None
    job = {
        "data": problem.data.model_dump(mode="json"),
        "encoder": config.model_dump(mode="json"),
        "seed": seed,
        "skipped": [one.name for one in problem.table.skipped],
    }
    return lambda key, shards: _on_ray(cluster, json.dumps(job), key, shards)


def _on_ray(cluster: Cluster, job: str, key: str, shards: Sequence[Shard]) -> Iterator[tuple[Shard, np.ndarray]]:
    """Shards as they are done; after an error, which is said, none."""
    ray = cluster.connect()
    task, room = cluster.task(ray, shard_values, RETRIES), AHEAD * cluster.slots(ray)
    waiting, running = deque(shards), dict[Any, Shard]()
    try:
        while waiting or running:
            while waiting and len(running) < room:
                shard = waiting.popleft()
                running[task.remote(job, key, shard.rows)] = shard
            (done,), _ = ray.wait(list(running), num_returns=1)
            try:
                values = ray.get(done)
            except Exception as error:  # Ray's own classes, which are absent without it
                cause = getattr(error, "cause", None) or error
                reason = str(cause).strip().splitlines()[0]
                say(f"the cluster cannot compute the trunk cache: {reason}: this process goes on alone")
                return
            yield running.pop(done), values
    finally:
        for reference in running:
            ray.cancel(reference, force=True)


def shard_values(job: str, key: str, rows: np.ndarray) -> np.ndarray:
    """Trunk outputs (rows, 1 + V, *shape) float16 of one shard, on a node."""
    source = _source(job, key)
    shape = (1 + source.n_views, *source.shape)
    return list(computed([Shard(0, rows)], source, shape))[-1][1]


@lru_cache(maxsize=1)
def _source(job: str, key: str) -> FreshSource:
    """What makes the outputs of the cache of this key here; an InputError where the data or the encoder differ."""
    import torch

    from rowssl.training.features import trunk_sources

    facts = json.loads(job)
    with quiet():
        problem = load_problem(DataConfig.model_validate(facts["data"]), skipped=facts["skipped"])
    for source in trunk_sources(
        problem, EncoderConfig.model_validate(facts["encoder"]), facts["seed"], distributed.device("auto")
    ):
        source.workers = torch.get_num_threads()  # as many as the task was given
        if open_store(source, folder=Path()).key == key:
            return source
    raise InputError("the data or the encoder of a node are not those of this process")
