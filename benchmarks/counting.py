"""What counting classes saves by sharing work between the numbers of clusters that it tries.

    python benchmarks/counting.py                 # long-tailed mixtures of 2,000 and 4,000 rows
    python benchmarks/counting.py --quick

`shared` is the estimator that `--classes auto` uses: one tree, cut at every granularity. `independent` is the same estimator with
a tree of its own for each granularity. They take turns in one run; both must give the same number and the same interval.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from clustering import mixture

from rowssl import count_density
from rowssl.count import CountData, CountEstimate

TARGET = 5.0
one_cut = count_density.cut


def problem(rows: int, classes: int) -> CountData:
    """Every second class known, half of its rows labelled."""
    x, truth = mixture(rows, 64, classes, seed=rows)
    seen = (truth % 2 == 0) & (np.random.default_rng(1).random(rows) < 0.5)
    order = np.unique(truth[seen], return_inverse=True)[1]
    target = np.full(rows, -1)
    target[seen] = order
    n_old = int(order.max()) + 1
    return CountData(torch.from_numpy(x), target, n_old, n_old, 4 * n_old)


def counted(data: CountData, independent: bool) -> tuple[float, CountEstimate]:
    """Seconds of processor time, and the estimate."""

    def cut_of_its_own(tree: np.ndarray, k: int) -> np.ndarray:
        return one_cut(count_density.ward_tree(data.x), k)

    count_density.cut = cut_of_its_own if independent else one_cut
    began = time.process_time()
    found = count_density.density(data)
    return time.process_time() - began, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="*", default=[2000, 4000])
    parser.add_argument("--classes", type=int, default=40)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    print("| rows | granularities | shared s | independent s | times as fast | target | classes, both |")
    print("|---|---|---|---|---|---|---|")
    for rows in [300] if options.quick else options.rows:
        data = problem(rows, options.classes)
        shared, found = counted(data, independent=False)
        alone, again = counted(data, independent=True)
        if (found.best, found.low, found.high, found.scores) != (again.best, again.low, again.high, again.scores):
            raise SystemExit(f"the answers differ: {found.best} and {again.best}")
        print(
            f"| {rows:,} | {len(found.scores)} | {shared:.2f} | {alone:.2f} | {alone / shared:.1f} | {TARGET:.0f} | "
            f"{found.best} ({found.low} to {found.high}), truth {options.classes} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
