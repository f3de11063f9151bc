"""k-means against scikit-learn and faiss: same data, same restarts, same threads, one table.

`python benchmarks/kmeans.py` clusters a long-tailed Gaussian mixture of the size of CIFAR-100-LT (10,971 x 2048, k = 100),
`--features FILE.npz` the key `embeddings` of a file instead. Contestants take turns within each seed, so a busy machine
slows all of them, and the ratio of times is what to read.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Callable

import numpy as np


def mixture(rows: int, dimensions: int, classes: int, seed: int, spread: float = 0.5) -> np.ndarray:
    """Unit rows (N, d) float32 around `classes` Gaussian centres whose sizes fall by a factor of 100."""
    rng = np.random.default_rng(seed)
    centers = spread * rng.standard_normal((classes, dimensions), dtype=np.float32)
    share = 100.0 ** (-np.arange(classes) / max(1, classes - 1))
    x = centers[rng.choice(classes, size=rows, p=share / share.sum())]
    x += rng.standard_normal(x.shape, dtype=np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", help="npz file with the key `embeddings`; a synthetic mixture otherwise")
    parser.add_argument("--rows", type=int, default=10971)
    parser.add_argument("--dimensions", type=int, default=2048)
    parser.add_argument("--k", type=int, default=100)
    parser.add_argument("--n-init", type=int, default=3)
    parser.add_argument("--max-iter", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--check", action="store_true", help="exit 1 if scikit-learn is faster or better on average")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)  # before the libraries read it

    import torch
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    from rowssl.cluster import kmeans

    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")  # scikit-learn warns about an iteration limit that all contestants share
    if options.features:
        x = np.load(options.features)["embeddings"].astype(np.float32)
    else:
        x = mixture(options.rows, options.dimensions, options.k, seed=0)
    shared = {"n_init": options.n_init, "max_iter": options.max_iter}
    contestants: dict[str, Callable[[int], float]] = {
        "rowssl": lambda seed: kmeans(x, options.k, seed=seed, **shared).inertia,
        "scikit-learn": lambda seed: float(KMeans(options.k, random_state=seed, **shared).fit(x).inertia_),
    }
    try:
        import faiss  # noqa: F401
    except ImportError:
        print("faiss is not installed: left out")
    else:
        contestants["rowssl, faiss"] = lambda seed: kmeans(x, options.k, seed=seed, backend="faiss", **shared).inertia
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    inertia: dict[str, list[float]] = {name: [] for name in contestants}
    print(
        f"{x.shape[0]} x {x.shape[1]}, k={options.k}, {options.n_init} restarts, {options.threads} threads", flush=True
    )
    kmeans(x[: 4 * options.k], options.k, n_init=1)  # the first call of a library pays for its start
    with threadpool_limits(options.threads):
        for seed in range(options.seeds):
            for name, run in contestants.items():
                start = time.perf_counter()
                inertia[name].append(run(seed))
                seconds[name].append(time.perf_counter() - start)
                print(
                    f"seed {seed}  {name:14s} {seconds[name][-1]:8.2f} s   inertia {inertia[name][-1]:.3f}", flush=True
                )
    ours, theirs = float(np.mean(inertia["rowssl"])), float(np.mean(inertia["scikit-learn"]))
    for name in contestants:
        ratio = float(np.median(np.array(seconds[name]) / np.array(seconds["rowssl"])))
        print(f"{name:14s} time / rowssl {ratio:6.2f}   inertia / rowssl {np.mean(inertia[name]) / ours:.5f}")
    speedup = float(np.median(np.array(seconds["scikit-learn"]) / np.array(seconds["rowssl"])))
    print(f"rowssl is {speedup:.2f} times as fast as scikit-learn at {ours / theirs:.5f} of its inertia")
    if options.check and (speedup < 1 or ours > theirs * 1.001):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
