"""Where cells run: in processes of this machine, on a Ray cluster, or one after another in this very process.

A runner takes folders that hold a `config.json` and tells how each ended: an exit code, negative for a signal.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from rowssl.bench.cell import NON_FINITE, REFUSED, run_cell
from rowssl.core.cluster import Cluster
from rowssl.core.errors import InputError

Ended = tuple[Path, int]
LOOK = 0.1  # seconds between looks at the processes
GRACE = 5.0  # seconds to end after having been asked to


class Runner(Protocol):
    """What the grid needs from a place to run."""

    slots: int  # cells that may run at a time

    @property
    def busy(self) -> int: ...  # cells that do
    def submit(self, folder: Path) -> None: ...
    def wait(self) -> list[Ended]:
        """Those that ended since; returns after a moment when there are none."""
        ...

    def stop(self) -> None: ...


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def arguments(folder: Path, report: bool) -> list[str]:
    """The command of a cell."""
    return [sys.executable, "-m", "rowssl.bench.cell", str(folder / "config.json"), str(folder), "--leash",
            *(["--report"] if report else [])]  # fmt: skip


def gpus() -> list[str]:
    """The GPUs this process may use, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    allowed = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return allowed[: torch.cuda.device_count()] or [str(number) for number in range(torch.cuda.device_count())]


def at_once(workers: int | None) -> int:
    """Processes at a time: as asked (0: this one alone), else one for each GPU, else one for each core."""
    return max(1, workers) if workers is not None else len(gpus()) or cores()


def environment(threads: int) -> dict[str, str]:
    """For a process with so many threads; a smaller number that the user set stays."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    asked = {name: os.environ.get(name, "") for name in names}
    return {**os.environ, **{n: str(min(threads, int(v)) if v.isdecimal() else threads) for n, v in asked.items()}}


def start(command: Sequence[str], folder: Path, threads: int, gpu: str | None = None) -> subprocess.Popen[bytes]:
    """A process whose words go to `log.txt`, whose life hangs on ours, and that Ctrl-C does not reach by itself."""
    variables = environment(threads) | ({} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu})
    with (folder / "log.txt").open("ab") as log:
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=variables, start_new_session=True
        )  # fmt: skip


class LocalRunner:
    """So many processes at a time, each with its share of the cores and, where there are GPUs, with one of them."""

    def __init__(self, workers: int, *, report: bool = False) -> None:
        self.slots, self.report = workers, report
        self.threads, self.gpus = max(1, cores() // workers), gpus()
        self.running: dict[Path, subprocess.Popen[bytes]] = {}
        self.gpu_of: dict[Path, str] = {}

    @property
    def busy(self) -> int:
        return len(self.running)

    def submit(self, folder: Path) -> None:
        gpu = min(self.gpus, key=[self.gpu_of[one] for one in self.running].count, default=None)  # the least busy
        self.running[folder] = start(self.command(folder), folder, self.threads, gpu)
        self.gpu_of[folder] = gpu or ""

    def command(self, folder: Path) -> list[str]:
        """What is run for a folder."""
        return arguments(folder, self.report)

    def wait(self) -> list[Ended]:
        time.sleep(LOOK)
        ended = [(folder, process) for folder, process in self.running.items() if process.poll() is not None]
        for folder, process in ended:
            _close(process)
            del self.running[folder]
        return [(folder, int(process.returncode)) for folder, process in ended]

    def stop(self) -> None:
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            _close(process)
        self.running.clear()


def _close(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()


class InlineRunner:
    """One cell after another in this process: for debuggers and for very small cells. Its peak of memory is everyone's."""

    slots = 1

    def __init__(self, *, report: bool = False) -> None:
        self.report, self.waiting = report, list[Path]()

    @property
    def busy(self) -> int:
        return len(self.waiting)

    def submit(self, folder: Path) -> None:
        self.waiting.append(folder)

    def wait(self) -> list[Ended]:
        folder = self.waiting.pop(0)
        try:
            run_cell(folder / "config.json", folder, report=self.report)
            return [(folder, 0)]
        except Exception as error:
            bad_number = type(error).__name__ == "NonFiniteError"
            code = REFUSED if isinstance(error, InputError) else NON_FINITE if bad_number else 1
            text = f"rowssl: {error}\n" if code > 1 else traceback.format_exc()
            with (folder / "log.txt").open("a", encoding="utf-8") as log:
                log.write(text)
            return [(folder, code)]

    def stop(self) -> None:
        self.waiting.clear()


class RayRunner:
    """One cell is one task; the cluster decides when and where. The folder must be the same for all nodes."""

    def __init__(self, cluster: Cluster, workers: int | None = None, *, report: bool = False) -> None:
        if workers == 0:
            raise InputError("--workers 0 stands for this process alone, which is not --on ray.")
        self.report, self.threads = report, cluster.cpus
        self.slots = workers or 1_000_000
        self.ray = cluster.connect()
        self.task = cluster.task(self.ray, _ray_cell, retries=1)
        self.running: dict[Any, Path] = {}

    @property
    def busy(self) -> int:
        return len(self.running)

    def submit(self, folder: Path) -> None:
        self.running[self.task.remote(str(folder), self.command(folder)[1:], self.threads)] = folder

    def command(self, folder: Path) -> list[str]:
        """What is run for a folder; a node has a Python of its own."""
        return arguments(folder, self.report)

    def wait(self) -> list[Ended]:
        ended, _ = self.ray.wait(list(self.running), num_returns=1, timeout=1.0)
        return [(self.running.pop(reference), self._code(reference)) for reference in ended]

    def _code(self, reference: Any) -> int:
        try:
            return int(self.ray.get(reference))
        except Exception:  # the node is gone, or has no such folder: Ray's own classes, which are absent without it
            return 1

    def stop(self) -> None:
        for reference in self.running:
            self.ray.cancel(reference, force=True)
        self.running.clear()


def _ray_cell(folder: str, command: list[str], threads: int) -> int:
    """On a node: the same process as on one's own machine; it ends with the task, for its input does."""
    process = start([sys.executable, *command], Path(folder), threads)
    code = process.wait()
    _close(process)
    return code


def open_runner(on: str, workers: int | None, *, report: bool = False) -> Runner:
    """`local`, or what `Cluster` reads; 0 workers stands for this process."""
    cluster = Cluster.read(on)
    if cluster is not None:
        return RayRunner(cluster, workers, report=report)
    if on != "local":
        raise InputError(f"--on {on} is not one of local, ray, ray://address.")
    if workers == 0:
        return InlineRunner(report=report)
    return LocalRunner(at_once(workers), report=report)
