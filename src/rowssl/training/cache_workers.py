"""Processes that fill a trunk cache together: on this machine (`--cache-workers N`), or on a Ray cluster (`--on ray`).

Each is `python -m rowssl.training.cache_workers PLAN`: it reads the data and builds the encoder for itself, as PLAN says, and
computes parts that nobody has taken yet until none is left. A killed one leaves the part it was at to the others, and is replaced.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from rowssl.bench.cell import REFUSED, leash
from rowssl.bench.runners import LocalRunner, RayPlace, RayRunner, Runner
from rowssl.config import DataConfig, EncoderConfig
from rowssl.core import distributed
from rowssl.core.console import err
from rowssl.core.errors import InputError
from rowssl.data.problem import Problem, load_problem

REPLACEMENTS = 8  # further ones are not started: whatever kills them will go on


def _command(folder: Path) -> list[str]:
    """Of one process, whose folder is beside the plan."""
    return [sys.executable, "-m", "rowssl.training.cache_workers", str(folder.parent / "plan.json"), "--leash"]


class LocalFillers(LocalRunner):
    """On this machine, each with its share of the cores."""

    def command(self, folder: Path) -> list[str]:
        return _command(folder)


class RayFillers(RayRunner):
    """On the nodes of a cluster, as many as it has room for."""

    def __init__(self, place: RayPlace) -> None:
        super().__init__(place, retries=REPLACEMENTS)  # Ray itself replaces those of nodes that are gone
        there = self.ray.cluster_resources()
        room = [there.get("CPU", 1) / place.cpus] + ([there.get("GPU", 0) / place.gpus] if place.gpus else [])
        self.slots = max(1, int(min(room)))

    def command(self, folder: Path) -> list[str]:
        return _command(folder)


class Crew:
    """See `rowssl.encoders.fill.Crew`.

    Parameters
    ----------
    job : what a process needs to make the same trunk outputs: `data`, `encoder`, `seed`, and the images that are `skipped`.
    open_runner : called when there is something to do.
    """

    def __init__(self, job: dict[str, Any], open_runner: Callable[[], Runner]) -> None:
        self.job, self.open_runner = job, open_runner
        self.runner: Runner | None = None
        self.replaced = 0

    def start(self, plan: Path, parts: int) -> None:
        """Set as many to work as there is room and work for."""
        self.runner = self.open_runner()
        for number in range(min(self.runner.slots, parts)):
            folder = plan.absolute().parent / f"worker-{number}"
            folder.mkdir(exist_ok=True)
            self.runner.submit(folder)

    def tend(self) -> bool:
        """Replace those that were killed; after a moment, whether anyone is still at work."""
        from rowssl.bench.engine import reason

        if self.runner is None or not self.runner.busy:
            return False
        for folder, code in self.runner.wait():
            if code == 0:
                continue
            again = code < 0 and self.replaced < REPLACEMENTS
            why = f"a process that fills the trunk cache ended: {reason(folder, code)}"
            err.print(f"{why}: {'another takes its place' if again else 'its work is left to the others'}",
                      markup=False, soft_wrap=True)  # fmt: skip
            if again:
                self.replaced += 1
                self.runner.submit(folder)
        return self.runner.busy > 0

    def stop(self) -> None:
        """End those that are still at work."""
        if self.runner is not None:
            self.runner.stop()


def open_crew(problem: Problem, config: EncoderConfig, seed: int, on: str, device: str = "cpu") -> Crew | None:
    """Who fills the cache; None if it is this process, or the processes of torchrun, or if no other could read the data.

    A node of a cluster takes the device it has.
    """
    place, workers = RayPlace.read(on), config.cache_workers
    if problem.data is None or distributed.world() > 1 or (place is None and workers < 2):
        return None
    job = {
        "data": problem.data.model_dump(mode="json"),
        "encoder": config.model_dump(mode="json"),
        "seed": seed,
        "device": device.partition(":")[0] if place is None else "auto",  # which of them is decided when it starts
        "skipped": [one.name for one in problem.table.skipped],
    }
    return Crew(job, (lambda: LocalFillers(workers)) if place is None else (lambda: RayFillers(place)))


def work(plan: Path) -> int:
    """Compute parts of a plan as long as any is free; how many it were."""
    import torch

    from rowssl.encoders.fill import help_out
    from rowssl.encoders.trunk import open_store
    from rowssl.training.features import trunk_sources

    try:
        facts = json.loads(plan.read_text(encoding="utf-8"))
    except FileNotFoundError:  # all is done, and the folder removed
        return 0
    job = facts["job"]
    problem = load_problem(DataConfig.model_validate(job["data"]), skipped=job["skipped"])
    device = distributed.device(job["device"])
    for source in trunk_sources(problem, EncoderConfig.model_validate(job["encoder"]), job["seed"], device):
        source.workers = torch.get_num_threads()  # as many as it was given
        store = open_store(source, plan.parents[2])
        if store.key == facts["key"]:
            return help_out(store, source)
    raise InputError(f"the data and the encoder are not those that {plan} is about: they have changed, or differ here.")


def main() -> None:
    """Exit codes as of a cell: 0 nothing is left to do, 2 the input cannot be used, 1 anything else."""
    if "--leash" in sys.argv:
        leash()
    try:
        work(Path(sys.argv[1]))
    except InputError as error:
        print(f"rowssl: {error}", file=sys.stderr)
        sys.exit(REFUSED)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
