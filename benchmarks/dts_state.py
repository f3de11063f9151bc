"""How much of a training step is DTS's own state: density, temperatures, queue, prototypes, uncertainty.

    python benchmarks/dts_state.py

C = 100 classes, a queue of 8192, batch 128, the last block of a ViT-S/16 at 224 px as the tail (random weights: time does not
depend on them). Both times are taken in the same steps of one run; the ratio is what counts.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import torch

from rowssl.data.loader import ArraySource, Feed
from rowssl.methods.dts import DTS
from rowssl.nn.vit import ViT, split_vit, vit_architecture
from rowssl.train import Optimisation, build_optimiser


class Clock:
    """Adds up the time spent in some methods of an object."""

    def __init__(self, owner: object, names: tuple[str, ...]) -> None:
        self.seconds = 0.0
        for name in names:
            setattr(owner, name, self._timed(getattr(owner, name)))

    def _timed(self, function):  # type: ignore[no-untyped-def]
        def call(*arguments, **options):  # type: ignore[no-untyped-def]
            began = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                self.seconds += time.perf_counter() - began

        return call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--preset", default="paper", choices=["paper", "official"])
    options = parser.parse_args()
    torch.manual_seed(0)
    _, tail = split_vit(ViT(vit_architecture("s", 16)), 1)
    rows, tokens, dim = 512, 197, 384
    rng = np.random.default_rng(0)
    views = rng.standard_normal((2, rows, tokens, dim), dtype=np.float32).astype(np.float16)
    targets = np.where(np.arange(rows) % 2 == 0, np.arange(rows) % 50, -1)
    feed = Feed(ArraySource(views[0], views), targets, batch_size=128, epochs=1000, seed=0)
    method = DTS(
        tail, n_old=50, n_classes=100, n_rows=10_971, preset=options.preset, queue_size=8192, queue_init="random"
    )
    optimiser = build_optimiser(method, Optimisation())
    method.prototypes.copy_(torch.nn.functional.normalize(torch.randn_like(method.prototypes), dim=1))
    method.queue.fill_randomly(-1, torch.Generator().manual_seed(0))
    state, follow = Clock(method, ("_scores", "_temperature", "after_step")), Clock(method.key, ("follow",))

    shares, totals = [], []
    for step in range(options.steps):
        batch = feed.batch(step)
        state.seconds = follow.seconds = 0.0
        began = time.perf_counter()
        result = method.loss(batch)
        optimiser.zero_grad()
        torch.stack(list(result.losses.values())).sum().backward()
        optimiser.step()
        method.after_step(batch, result)
        total = time.perf_counter() - began
        if step >= 2:
            # The momentum network is not tailedness state: MoCo has it too.
            shares.append((state.seconds - follow.seconds) / total)
            totals.append(total)
    print(
        f"preset {options.preset}: step {statistics.median(totals) * 1e3:.0f} ms, of which state {statistics.median(shares):.1%}"
    )


if __name__ == "__main__":
    main()
