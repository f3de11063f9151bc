"""What counting classes saves by sharing work between the numbers of clusters that it tries.

    python benchmarks/counting.py                 # long-tailed mixtures of 2,000, 4,000 and 20,000 rows x 384
    python benchmarks/counting.py --starts 1      # against one start for every k
    python benchmarks/counting.py --features ../shared/data/cifar100-lt-features.npz
    python benchmarks/counting.py --quick

`shared` is the estimator as it is. `gcd` and `balanced` search the k whose k-means agrees best with the labels: `independent` gives
every k a k-means of its own: k-means++, to its end, the best of ten starts, which is what scikit-learn gave the search as it was
published. Two searches end in different places as soon as one of their noisy scores differs, so the table also has the sum of
inertias of `shared` at the k that both tried against `independent`. `density`, which `--classes auto` uses, reads its
granularities from one tree: there `independent` is a tree of its own for each, at the same answer to the bit. They take turns in
one run; seconds are processor time.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from clustering import mixture

from rowssl import count_density, count_search
from rowssl.cluster import kmeans
from rowssl.count import CountData, CountEstimate, run_estimator
from rowssl.semi_kmeans import KMeansResult

TARGET = 5.0
TREES = 4000  # rows up to which trees are built again and again
one_cut, one_start, one_kmeans = count_density.cut, count_search.Starts, count_search.kmeans


def problem(rows: int, classes: int) -> CountData:
    """Every second class known, half of its rows labelled."""
    x, truth = mixture(rows, 384, classes, seed=rows)
    seen = (truth % 2 == 0) & (np.random.default_rng(1).random(rows) < 0.5)
    return of(torch.from_numpy(x), np.where(seen, truth, -1))


def from_file(path: Path) -> CountData:
    """`embeddings` and `labels` of a file."""
    with np.load(path) as arrays:
        x = torch.nn.functional.normalize(torch.from_numpy(arrays["embeddings"].astype(np.float32)), dim=1)
        return of(x, arrays["labels"])


def of(x: torch.Tensor, label: np.ndarray) -> CountData:
    """Known classes counted from 0, twice to four times as many in all."""
    target = np.full(len(x), -1)
    target[label >= 0] = np.unique(label[label >= 0], return_inverse=True)[1]
    n_old = int(target.max()) + 1
    return CountData(x, target, n_old, n_old, 4 * n_old)


class NoStarts:
    """In the place of `count_search.Starts`: every k begins by itself."""

    def __init__(self, data: CountData) -> None:
        pass

    def __call__(self, k: int) -> None:
        return None


def counted(name: str, data: CountData, starts: int) -> tuple[float, CountEstimate, dict[int, float]]:
    """Seconds of processor time, the estimate, and the inertia of each k-means by its k; `starts` of each on its own, or 0."""
    inertia: dict[int, float] = {}
    independent = starts > 0

    def clustered(x: torch.Tensor, k: int, *, init: torch.Tensor | None, enough: float) -> KMeansResult:
        alone = kmeans(x, k, seed=data.seed, n_init=starts) if independent else None
        found = alone or one_kmeans(x, k, init=init, enough=enough)
        inertia[k] = found.inertia
        return found

    def cut_of_its_own(tree: np.ndarray, k: int) -> np.ndarray:
        return one_cut(count_density.ward_tree(data.x), k)

    count_density.cut = cut_of_its_own if independent else one_cut
    count_search.kmeans = clustered
    count_search.Starts = NoStarts if independent else one_start  # type: ignore[misc]
    began = time.process_time()
    found = run_estimator(name, data)
    return time.process_time() - began, found, inertia


def said(found: CountEstimate) -> str:
    return f"{found.best} ({found.low} to {found.high})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="*", default=[2000, 4000, 20_000])
    parser.add_argument("--classes", type=int, default=40)
    parser.add_argument("--starts", type=int, default=10, help="of every independent k-means")
    parser.add_argument("--features", type=Path)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.features:
        problems = [from_file(options.features)]
    else:
        problems = [problem(rows, options.classes) for rows in ([300] if options.quick else options.rows)]
    run_estimator("gcd", problem(300, 10))  # the first call imports
    print(
        "| rows | estimator | values tried | shared s | independent s | times as fast | inertia | shared | independent |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for data in problems:
        for name in ("gcd", "balanced", "density")[: 3 if len(data.x) <= TREES else 2]:
            shared, found, low = counted(name, data, 0)
            alone, again, high = counted(name, data, options.starts)
            both = sorted({*low} & {*high})
            inertia = f"{sum(low[k] for k in both) / sum(high[k] for k in both):.4f}" if both else ""
            print(
                f"| {len(data.x):,} | {name} | {len(found.scores)} | {shared:.2f} | {alone:.2f} | {alone / shared:.1f} | "
                f"{inertia} | {said(found)} | {said(again)} |",
                flush=True,
            )
    print(f"\ntarget: {TARGET:.0f} times as fast")


if __name__ == "__main__":
    main()
