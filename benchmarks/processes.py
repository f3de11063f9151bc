"""Two processes against one process with two threads, at the same global batch: throughput, and whether the result is the same.

    python benchmarks/processes.py                 # DTS, last block of a ViT-S/16 on cached tokens, batch 128
    python benchmarks/processes.py --tail adapter  # an adapter on pooled features: little to share
    python benchmarks/processes.py --quick

`torchrun` starts the processes (gloo, one thread each). Every process encodes its share of a batch, and all compute the losses of
the whole batch, so what can be gained is the part of a step that the tail is. The two take turns; the first `--warm` steps of each
do not count. The result is compared after the last step: every parameter and every buffer of the method.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from rowssl.core import distributed
from rowssl.data.feed import ArraySource, FeatureAugmentation, Feed
from rowssl.encoders.tails import AdapterTail
from rowssl.encoders.vit import ViT, split_vit, vit_architecture
from rowssl.methods.dts import DTS
from rowssl.training.loop import Optimisation, build_optimiser

TARGET = 0.9
CLASSES, ROWS, WIDTH = 100, 512, 384
PAPER_ROWS = 10_971  # of CIFAR-100-LT: the queue, and what every process does with it, is of full size


def problem(options: argparse.Namespace) -> tuple[DTS, Feed]:
    """The same weights and data in every process: random tokens, or random pooled features."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    tokens = 1 + (options.side // 16) ** 2
    shape = (2, ROWS, WIDTH) if options.tail == "adapter" else (2, ROWS, tokens, WIDTH)
    views = rng.standard_normal(shape, dtype=np.float32).astype(np.float16)
    tail = AdapterTail(WIDTH) if options.tail == "adapter" else split_vit(ViT(vit_architecture("s", 16)), 1)[1]
    targets = np.where(np.arange(ROWS) % 2 == 0, np.arange(ROWS) % (CLASSES // 2), -1)
    augmentation = FeatureAugmentation(noise=0.1 if options.tail == "adapter" else 0.0)
    feed = Feed(
        ArraySource(views[0], views), targets, batch_size=options.batch, epochs=10**6, seed=0, augmentation=augmentation
    )
    return DTS(tail, n_old=CLASSES // 2, n_classes=CLASSES, n_rows=PAPER_ROWS), feed


def worker(options: argparse.Namespace) -> None:
    """Train for some steps; process 0 writes seconds and state."""
    distributed.start()
    torch.set_num_threads(options.threads)
    method, feed = problem(options)
    with torch.no_grad():
        method.start(feed)
        method.queue.fill_randomly(-1, torch.Generator().manual_seed(1))
    distributed.same_everywhere(method)
    method.train()
    optimiser, seconds = build_optimiser(method, Optimisation(lr=0.01)), []
    parameters = list(method.parameters())
    for step in range(options.warm + options.steps):
        began = time.perf_counter()
        batch = feed.batch(step)
        found = method.loss(batch)
        torch.stack(list(found.losses.values())).sum().backward()
        distributed.sum_gradients(parameters)
        optimiser.step()
        optimiser.zero_grad()
        method.after_step(batch, found)
        seconds.append(time.perf_counter() - began)
    if distributed.rank() == 0:
        save_file(
            {name: value.contiguous() for name, value in method.state_dict().items()}, options.out / "state.safetensors"
        )
        (options.out / "seconds.json").write_text(json.dumps(seconds[options.warm :]))
    distributed.barrier()


def launch(options: argparse.Namespace, folder: Path, processes: int) -> float:
    """Median seconds of a step."""
    threads = 1 if processes > 1 else options.cores
    start = [sys.executable]
    if processes > 1:
        start += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    words = [__file__, "--worker", "--threads", str(threads), "--out", str(folder)]
    for name in ("batch", "steps", "warm", "tail", "side"):
        words += [f"--{name}", str(getattr(options, name))]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run([*start, *words], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{processes} processes failed:\n{done.stderr[-2000:]}")
    return statistics.median(json.loads((folder / "seconds.json").read_text()))


def apart(one: Path, other: Path) -> tuple[float, str]:
    """Largest difference between two states in units of the largest value of the tensor, and the tensor's name."""
    first, second = (load_file(place / "state.safetensors") for place in (one, other))
    found = {}
    for name, value in first.items():
        scale = value.double().abs().max().clamp_min(1e-12) if value.numel() else torch.tensor(1.0)
        difference = (value.double() - second[name].double()).abs()
        found[name] = float(difference.max() / scale) if value.numel() else 0.0
    worst = max(found, key=lambda name: found[name])
    return found[worst], worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=128, help="global")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warm", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--tail", default="block", choices=["block", "adapter"])
    parser.add_argument("--side", type=int, default=224, help="pixels of the pictures that the tokens stand for")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options)
        return
    if options.quick:
        options.batch, options.steps, options.warm, options.repeats, options.side = 16, 2, 1, 1, 32
    seconds: dict[int, list[float]] = {1: [], options.cores: []}
    with tempfile.TemporaryDirectory() as name:
        folders = {processes: Path(name) / str(processes) for processes in seconds}
        for folder in folders.values():
            folder.mkdir()
        for _ in range(options.repeats):
            for processes, folder in folders.items():
                seconds[processes].append(launch(options, folder, processes))
        worst, where = apart(*folders.values())
    median = {processes: statistics.median(values) for processes, values in seconds.items()}
    print(f"DTS, tail {options.tail}, global batch {options.batch}, {options.cores} cores\n")
    print(
        "| processes | threads each | ms a step | rows/s | throughput / one process | target |\n|---|---|---|---|---|---|"
    )
    for processes, value in median.items():
        threads = 1 if processes > 1 else options.cores
        print(
            f"| {processes} | {threads} | {1e3 * value:.1f} | {options.batch / value:.0f} | {median[1] / value:.2f} | "
            f"{f'at least {TARGET}' if processes > 1 else ''} |"
        )
    steps = options.warm + options.steps
    print(
        f"\nafter {steps} steps the two states differ by {worst:.1e} of a tensor's largest value at the most ({where})"
    )


if __name__ == "__main__":
    main()
