"""What a training step of DTS costs: the way public code does it, ours without and with the trunk cache.

    python benchmarks/step.py                  # ViT-S/16 and ViT-B/16 at 224 px, batch 32
    python benchmarks/step.py --sizes s --steps 9
    python benchmarks/step.py --quick

(a) whole ViT three times, dense last block, sorting loop (`public_step.py`); (b) trunk once for each view, then the tail;
(c) the tail on trunk outputs that are read from a memory-mapped float16 file. Weights are random: time does not depend on them.
The variants take turns within one run, medians are compared, and the losses of the first step are compared too. Peak memory is
that of a process of its own for each variant, above what importing PyTorch takes.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from public_step import PublicStep
from torch import Tensor, nn

from rowssl.core.memory import peak_memory
from rowssl.data.feed import Batch
from rowssl.encoders.vit import Architecture, ViT, split_vit, vit_architecture
from rowssl.methods.dts import DTS
from rowssl.training.loop import Optimisation, build_optimiser

CLASSES, QUEUE = 100, 4096
TINY = Architecture(patch=16, dim=48, depth=2, heads=3, hidden=96, grid=2)


def architecture(size: str) -> Architecture:
    return TINY if size == "tiny" else vit_architecture(size, 16)


def random_vit(size: str) -> ViT:
    torch.manual_seed(0)
    vit = ViT(architecture(size))
    for parameter in (vit.cls_token, vit.pos_embed):
        torch.nn.init.trunc_normal_(parameter, std=0.02)
    return vit


def last_block(size: str, cache: Path) -> nn.Module:
    """The tail alone, without a trunk in memory, with the weights that `write_cache` left."""
    _, tail = split_vit(ViT(replace(architecture(size), depth=1)), 1)
    tail.load_state_dict(torch.load(cache.with_suffix(".pt"), weights_only=True))
    return tail


def random_method(tail: nn.Module) -> DTS:
    """DTS on the last block, with a full queue and prototypes as after some epochs."""
    method = DTS(tail, n_old=CLASSES // 2, n_classes=CLASSES, n_rows=10**5, preset="paper", queue_size=QUEUE)
    generator = torch.Generator().manual_seed(1)
    method.queue.fill_randomly(-1, generator)
    method.queue.labels.copy_(torch.randint(-1, CLASSES // 2, (QUEUE,), generator=generator))
    method.prototypes.copy_(
        torch.nn.functional.normalize(torch.randn(method.prototypes.shape, generator=generator), dim=1)
    )
    method.u.uniform_(0, 0.1, generator=generator)
    return method


class OurStep:
    """One step of the package's DTS on trunk outputs."""

    def __init__(self, method: DTS) -> None:
        self.method, self.optimiser = method, build_optimiser(method, Optimisation())

    def batch(self, views: tuple[Tensor, Tensor], target: Tensor) -> Batch:
        return Batch(
            views=views,
            target=target,
            index=torch.arange(len(target)),
            step=0,
            epoch=0,
            epochs=200,
            last_of_epoch=False,
        )

    def step(self, views: tuple[Tensor, Tensor], target: Tensor) -> None:
        batch = self.batch(views, target)
        found = self.method.loss(batch)
        torch.stack(list(found.losses.values())).sum().backward()
        self.optimiser.step()
        self.optimiser.zero_grad()
        self.method.after_step(batch, found)


def pictures(rows: int, side: int) -> tuple[Tensor, Tensor]:
    """Two views of random pixels."""
    generator = torch.Generator().manual_seed(2)
    first, second = (torch.randn(rows, 3, side, side, generator=generator) for _ in range(2))
    return first, second


def targets(rows: int) -> Tensor:
    """Every other row has a label."""
    return torch.where(torch.arange(rows) % 2 == 0, torch.arange(rows) % (CLASSES // 2), -1)


@torch.no_grad()
def write_cache(path: Path, size: str, pixels: tuple[Tensor, Tensor]) -> None:
    """Trunk outputs of both views, (2, B, T, d) float16, and the tail's weights beside them."""
    trunk, tail = split_vit(random_vit(size), 1)
    torch.save(tail.state_dict(), path.with_suffix(".pt"))
    np.save(path, np.stack([trunk(view).half().numpy() for view in pixels]))


def variant(
    name: str, size: str, rows: int, side: int, cache: Path
) -> tuple[Callable[[], None], Callable[[], dict[str, Tensor]]]:
    """A function that does one step, and one that only finds the losses."""
    ours, target = OurStep(random_method(last_block(size, cache))), targets(rows)
    if name == "public":
        pixels = pictures(rows, side)
        public = PublicStep(random_vit(size), ours.method)
        return lambda: public.step(pixels, target, 0), lambda: public.loss(pixels, target, 0)
    if name == "uncached":
        pixels = pictures(rows, side)
        trunk, _ = split_vit(random_vit(size), 1)

        def views() -> tuple[Tensor, ...]:
            with torch.no_grad():
                return trunk(torch.cat(pixels)).chunk(2)
    else:
        stored = np.load(cache, mmap_mode="r")

        def views() -> tuple[Tensor, ...]:
            return torch.from_numpy(stored.astype(np.float32)).flatten(0, 1).chunk(2)  # as the loader has them

    return lambda: ours.step(views(), target), lambda: ours.method.loss(ours.batch(views(), target)).losses  # type: ignore[arg-type]


def peak(name: str, size: str, rows: int, side: int, cache: Path) -> float:
    """Megabytes above the import, of four steps in a process of its own."""
    asked = {"--only": name, "--sizes": size, "--batch": rows, "--side": side, "--cache": cache}
    command = [sys.executable, __file__, *(str(word) for pair in asked.items() for word in pair)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="s,b")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--side", type=int, default=224, help="pixels")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    parser.add_argument("--cache", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options.sizes, options.batch, options.steps, options.side = "tiny", 4, 1, 32
    names = ("public", "uncached", "cached")
    if options.only:
        before = peak_memory()
        step, _ = variant(options.only, options.sizes, options.batch, options.side, options.cache)
        for _ in range(4):  # what is freed is not always reused at once
            step()
        print((peak_memory() - before) / 2**20)
        return
    print(
        f"batch {options.batch}, {options.side} px, {CLASSES} classes, queue {QUEUE}, {torch.get_num_threads()} threads"
    )
    print("| encoder | variant | seconds a step | times as fast | peak memory MB | share |\n|---|---|---|---|---|---|")
    for size in options.sizes.split(","):
        with tempfile.TemporaryDirectory() as folder:
            cache = Path(folder) / "tokens.npy"
            write_cache(cache, size, pictures(options.batch, options.side))
            memory = {name: peak(name, size, options.batch, options.side, cache) for name in names}
            built = {name: variant(name, size, options.batch, options.side, cache) for name in names}
            terms = {name: {key: value.item() for key, value in built[name][1]().items()} for name in names}
            apart = max(
                abs(terms[name][key] - value) / abs(value)
                for name in names[1:]
                for key, value in terms["public"].items()
            )
            seconds: dict[str, list[float]] = {name: [] for name in names}
            for number in range(options.steps + 1):
                for name in names:
                    began = time.perf_counter()
                    built[name][0]()
                    if number:
                        seconds[name].append(time.perf_counter() - began)
        median = {name: statistics.median(values) for name, values in seconds.items()}
        for name in names:
            print(
                f"| ViT-{size.upper()}/16 | {name} | {median[name]:.3f} | {median['public'] / median[name]:.1f} | "
                f"{memory[name]:.0f} | {memory[name] / memory['public']:.2f} |"
            )
        print(f"\nViT-{size.upper()}/16: the losses of the first step agree to {apart:.1e} (relative).\n", flush=True)


if __name__ == "__main__":
    main()
