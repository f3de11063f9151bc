"""What two shortcuts of a DTS step save: products by oneDNN (`core.matmul`) and idle prototypes (`methods.idle_prototypes`).

    python benchmarks/shortcuts.py
    python benchmarks/shortcuts.py --quick

The rows of `benchmarks/scale.py`. Three trainings take turns of some steps: with PyTorch's own products and every prototype asked
in every step; with oneDNN's products; and with prototypes that rest left out as well. Where the processor gains nothing from
oneDNN, or `ROWSSL_PRODUCTS=mkl`, the first two are the same. Medians over the last three quarters of the steps.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from scale import Training, fill_queue, write_rows

from rowssl.core import matmul
from rowssl.core.memory import reused_blocks
from rowssl.methods import idle_prototypes
from rowssl.methods.dts import DTS

NEVER = 2**62  # more multiplications than any product has
WAYS = {
    "plain": (NEVER, 0),
    "oneDNN": (matmul.LEAST_WORK, 0),
    "oneDNN, resting": (matmul.LEAST_WORK, idle_prototypes.FEW),
}


def compare(path: Path, classes: int, batch: int, turns: int, steps: int) -> tuple[dict[str, float], int]:
    """Median seconds of a step in each way, and how many prototypes rest at the end of the last."""
    trainings = {}
    for name, (_, few) in WAYS.items():
        idle_prototypes.FEW = few
        trainings[name] = Training(path, classes, batch)
        fill_queue(trainings[name])
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    with reused_blocks():
        for _ in range(turns):
            for name, training in trainings.items():
                matmul.LEAST_WORK = WAYS[name][0]
                seconds[name] += [training.step() for _ in range(steps)]
    method = trainings["oneDNN, resting"].method
    assert isinstance(method, DTS)
    median = {name: statistics.median(values[len(values) // 4 :]) for name, values in seconds.items()}
    return median, method.resting.count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--classes", type=int, nargs="*", default=[100, 1000, 8142])
    parser.add_argument("--batches", type=int, nargs="*", default=[128, 1024])
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--steps", type=int, default=5, help="of each turn")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.rows, options.width, options.classes, options.batches = 2000, 32, [40, 400], [64]
        options.turns, options.steps = 4, 2
    print(f"| classes | batch | {' ms | '.join(WAYS)} ms | oneDNN, times as fast | both | prototypes that rest |")
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for classes in options.classes:
            path = Path(folder) / f"{classes}.npz"
            write_rows(path, options.rows, options.width, classes)
            for batch in options.batches:
                found, rest = compare(path, classes, batch, options.turns, options.steps)
                plain, fast, both = (1e3 * found[name] for name in WAYS)
                print(
                    f"| {classes:,} | {batch:,} | {plain:.1f} | {fast:.1f} | {both:.1f} | {plain / fast:.2f} | "
                    f"{plain / both:.2f} | {rest:,} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
