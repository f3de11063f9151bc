"""What counting classes saves by sharing work between the numbers of clusters that it tries.

    python benchmarks/counting.py                 # long-tailed mixtures of 2,000, 4,000 and 20,000 rows x 384
    python benchmarks/counting.py --starts 1      # k-means++ with one start for every k
    python benchmarks/counting.py --features ../shared/data/cifar100-lt-features.npz
    python benchmarks/counting.py --errors        # how far from the truth the searches are, on 27 mixtures
    python benchmarks/counting.py --quick

`shared` is the estimator as it is; `by itself` does the same work for every number of clusters anew, and must say the same. `gcd`
and `balanced` search the k whose k-means agrees best with the labels, and share a tree that all of them start from; `density`
reads all granularities from one tree. `k-means++` is the search as it was published: for every k
the best of ten starts (what scikit-learn gave it) on all rows. It ends elsewhere: its scores are those of other clusters. They
take turns in one run; seconds are processor time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clustering import mixture
from rowssl.clustering.kmeans import kmeans
from rowssl.counting import density, search
from rowssl.counting.base import CountData, CountEstimate, run_estimator

TARGET = 5.0
TREES = 4000  # rows up to which the trees of `density` are built again and again
one_cut, Clusters = density.cut, search.Clusters


def problem(rows: int, classes: int, seed: int = 0) -> CountData:
    """Every second class known, half of its rows labelled."""
    x, truth = mixture(rows, 384, classes, seed=rows + seed)
    seen = (truth % 2 == 0) & (np.random.default_rng([1, seed]).random(rows) < 0.5)
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


def by_itself(data: CountData) -> Callable[[int], np.ndarray]:
    """In the place of `count_search.Clusters`: every k with a tree of its own."""
    return lambda k: Clusters(data)(k)


def plus_plus(starts: int) -> Callable[[CountData], Callable[[int], np.ndarray]]:
    """In the place of `count_search.Clusters`: every k with a k-means of its own on all rows, the best of so many starts."""
    return lambda data: lambda k: kmeans(data.x, k, seed=data.seed, n_init=starts).labels.numpy()[data.labelled]


def counted(name: str, data: CountData, clusters: Any = Clusters) -> tuple[float, CountEstimate]:
    """Seconds of processor time and the estimate, with another maker of clusters if asked for."""

    def cut_of_its_own(tree: np.ndarray, k: int) -> np.ndarray:
        return one_cut(density.ward_tree(data.x), k)

    density.cut = one_cut if clusters is Clusters else cut_of_its_own
    search.Clusters = clusters
    began = time.process_time()
    found = run_estimator(name, data)
    return time.process_time() - began, found


def said(found: CountEstimate) -> str:
    return f"{found.best} ({found.low} to {found.high})"


def errors(starts: int, sizes: list[int]) -> None:
    """How far from the truth the searches end: mean factor, seconds."""
    print("| rows | estimator | problems | shared: error | s | k-means++: error | s |\n|---|---|---|---|---|---|---|")
    for rows in sizes:
        for name in ("gcd", "balanced"):
            off: dict[str, list[float]] = {"shared": [], "k-means++": []}
            seconds = dict.fromkeys(off, 0.0)
            for classes in (20, 40, 60):
                for seed in range(3):
                    data = problem(rows, classes, seed)
                    for way, clusters in (("shared", Clusters), ("k-means++", plus_plus(starts))):
                        took, found = counted(name, data, clusters)
                        off[way].append(abs(np.log(found.best / classes)))
                        seconds[way] += took / 9
            told = " | ".join(f"{np.exp(np.mean(off[way])):.2f} | {seconds[way]:.2f}" for way in off)
            print(f"| {rows:,} | {name} | 9 | {told} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="*", default=[2000, 4000, 20_000])
    parser.add_argument("--classes", type=int, default=40)
    parser.add_argument("--starts", type=int, default=10, help="of every k-means++")
    parser.add_argument("--turns", type=int, default=3, help="the median of their ratios counts")
    parser.add_argument("--features", type=Path)
    parser.add_argument("--errors", action="store_true")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    sizes = [300] if options.quick else options.rows
    run_estimator("gcd", problem(300, 10))  # the first call imports
    if options.errors and options.features:
        parser.error("--errors draws its own mixtures: leave --features out")
    if options.errors:
        errors(options.starts, sizes)
        return
    problems = [from_file(options.features)] if options.features else [problem(n, options.classes) for n in sizes]
    first = "| rows | estimator | values tried | shared s | by itself s | times as fast | both say |"
    print(f"{first} k-means++ s | times as fast | says |\n|{'---|' * 10}")
    for data in problems:
        for name in ("gcd", "balanced", "density")[: 3 if len(data.x) <= TREES else 2]:
            turns = [(*counted(name, data), *counted(name, data, by_itself)) for _ in range(options.turns)]
            shared, found, alone, again = sorted(turns, key=lambda turn: turn[2] / turn[0])[len(turns) // 2]
            if (found.best, found.scores) != (again.best, again.scores):
                raise SystemExit(f"{name} of {len(data.x)} rows: {said(found)} shared, {said(again)} by itself")
            beside = " | |"
            if name != "density":
                published, other = counted(name, data, plus_plus(options.starts))
                beside = f"{published:.2f} | {published / shared:.1f} | {said(other)}"
            print(
                f"| {len(data.x):,} | {name} | {len(found.scores)} | {shared:.2f} | {alone:.2f} | {alone / shared:.1f} | "
                f"{said(found)} | {beside} |",
                flush=True,
            )
    print(f"\ntarget: {TARGET:.0f} times as fast as by itself, at the same answer")


if __name__ == "__main__":
    main()
