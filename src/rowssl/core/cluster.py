"""A Ray cluster: its address, what a task asks of it, and a function as a task of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from rowssl.core.errors import InputError


@dataclass(frozen=True)
class Cluster:
    """`ray`, `ray://address`, with `?gpus=0.25&cpus=2` behind it.

    Ray hides the GPUs of a node from tasks that ask for none.
    """

    address: str | None  # None: the cluster of this machine, begun if there is none
    cpus: int = 1
    gpus: float = 0.0

    @classmethod
    def read(cls, on: str) -> Cluster | None:
        """None if it is not on Ray."""
        where, _, wishes = on.partition("?")
        if where != "ray" and not where.startswith("ray://"):
            return None
        try:
            asked = dict(wish.split("=", 1) for wish in wishes.split("&") if wish)
            cpus, gpus = int(asked.pop("cpus", 1)), float(asked.pop("gpus", 0))
            if asked or cpus < 1 or not 0 <= gpus < 1e6:
                raise ValueError
        except ValueError:
            raise InputError(f"--on {on}: behind the question mark go cpus=N and gpus=N, joined by &.") from None
        return cls(where if "://" in where else None, cpus, gpus)

    def connect(self) -> Any:
        """The module `ray`, connected."""
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would tell its makers
        try:
            ray = import_module("ray")
        except ImportError as error:
            raise InputError("--on ray needs the package ray: pip install 'rowssl[ray]'.") from error
        ray.init(address=self.address, ignore_reinit_error=True, log_to_driver=False, logging_level="error")
        return ray

    def task(self, ray: Any, work: Callable[..., Any], retries: int) -> Any:
        """A function as a task, which Ray runs again so often where its process or its node is gone."""
        return ray.remote(num_cpus=self.cpus, num_gpus=self.gpus, max_retries=retries)(work)

    def slots(self, ray: Any) -> int:
        """Tasks that run at a time."""
        there = ray.cluster_resources()
        room = [there.get("CPU", 1) / self.cpus] + ([there.get("GPU", 0) / self.gpus] if self.gpus else [])
        return max(1, int(min(room)))
