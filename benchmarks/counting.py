"""Counting classes by a search over K: work shared between values of K against independent runs of k-means.

    python benchmarks/counting.py                  # scikit-learn's digits, and long-tailed mixtures of 11,000 and 20,000 rows
    python benchmarks/counting.py --quick

`shared` is what `rowssl count` does: one k-means of the largest K, merged by Ward's rule and polished for every K that the search
asks for. `independent` seeds and runs k-means for each K, with one start and with ten, under the same search. A K is judged by the
matched accuracy on labelled rows (plain: `gcd`, mean over classes: `balanced`). The answer, the interval (within a standard
error of the best), the objective it has and the time stand side by side; the time ratio is the one to the same row's `shared`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F

from rowssl import count_search
from rowssl.cluster import kmeans
from rowssl.count import CountData
from rowssl.semi_kmeans import KMeansResult

TARGET = 5.0


class Independent:
    """k-means from its own seeds for every k."""

    starts = 1

    def __init__(self, data: CountData) -> None:
        self.data = data

    def __call__(self, k: int) -> KMeansResult:
        return kmeans(self.data.x, k, seed=self.data.seed, n_init=self.starts)


class TenStarts(Independent):
    starts = 10


WAYS = {"shared": count_search.Clusterings, "independent, 1 start": Independent, "independent, 10 starts": TenStarts}


def digits(seed: int) -> CountData:
    """Centred pixels of 1,797 digits: five classes known, half of their rows labelled."""
    from sklearn.datasets import load_digits

    pixels, truth = load_digits(return_X_y=True)
    x = F.normalize(torch.from_numpy((pixels - pixels.mean(0)).astype(np.float32)), dim=1)
    known = (truth < 5) & (np.random.default_rng([seed, 1]).random(len(truth)) < 0.5)
    return CountData(x, np.where(known, truth, -1), 5, 5, 20, seed=seed)


def mixture(rows: int, classes: int, width: int, seed: int, spread: float = 0.5) -> CountData:
    """Unit rows around long-tailed Gaussian centres (the largest class 50 times the smallest): half of the classes known."""
    rng = np.random.default_rng([seed, 2])
    centres = spread * rng.standard_normal((classes, width))
    share = rng.permutation(50.0 ** (-np.arange(classes) / max(1, classes - 1)))
    truth = np.concatenate(
        [np.repeat(np.arange(classes), 3), rng.choice(classes, rows - 3 * classes, p=share / share.sum())]
    )
    x = torch.from_numpy((centres[truth] + rng.standard_normal((rows, width))).astype(np.float32))
    known = (truth < classes // 2) & (rng.random(rows) < 0.5)
    n_old = classes // 2
    return CountData(F.normalize(x, dim=1), np.where(known, truth, -1), n_old, n_old, 4 * n_old, seed=seed)


def problems(options: argparse.Namespace) -> Iterator[tuple[str, int, CountData]]:
    """Name, true number of classes, data."""
    if options.quick:
        yield "digits", 10, digits(0)
        return
    for seed in range(options.seeds):
        yield f"digits, seed {seed}", 10, digits(seed)
    for seed in range(options.seeds):
        yield f"mixture 11,000 x 256, seed {seed}", 100, mixture(11_000, 100, 256, seed)
    yield "mixture 20,000 x 384", 200, mixture(20_000, 200, 384, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    print(f"{torch.get_num_threads()} threads\n")
    print("| problem | true | objective | way | answer | interval | its value | K tried | seconds | time / shared |")
    print("|---|---|---|---|---|---|---|---|---|---|", flush=True)
    kmeans(torch.randn(200, 4), 3, n_init=1)  # the first call pays for its start
    ratios: dict[str, list[float]] = {way: [] for way in options.ways}
    for name, true, data in problems(options):
        for objective, balanced in (("gcd", False), ("balanced", True)):
            shared = None
            for way in options.ways:
                count_search.Clusterings = WAYS[way]  # type: ignore[misc, assignment]
                began = time.perf_counter()
                found = count_search.search(data, balanced=balanced)
                seconds = time.perf_counter() - began
                shared = seconds if shared is None else shared
                ratios[way].append(seconds / shared)
                print(
                    f"| {name} | {true} | {objective} | {way} | {found.best} | {found.low} to {found.high} | "
                    f"{found.scores[found.best]:.3f} | {len(found.scores)} | {seconds:.2f} | {seconds / shared:.1f} |",
                    flush=True,
                )
    for way in options.ways[1:]:
        print(
            f"\n{way}: {np.median(ratios[way]):.1f} times the time of {options.ways[0]} (median; target {TARGET:.0f})"
        )


if __name__ == "__main__":
    main()
