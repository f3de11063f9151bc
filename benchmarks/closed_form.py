"""Time and memory of the closed form by the number of rows, beside scikit-learn doing the same steps.

    python benchmarks/closed_form.py                     # 1,000 to 1,000,000 rows of 384 numbers
    python benchmarks/closed_form.py --rows 3000 10000 30000 --compare
    python benchmarks/closed_form.py --quick

A mixture of 100 classes of unequal sizes, half of them known, a tenth of their rows labelled. `ours` is `transfer` with rho
given (one answer: metric, tree, rounds, and the class of all rows); scikit-learn does the same with PCA, the same whitening,
AgglomerativeClustering (Ward; above 12,000 rows over the 4,096 centres of a KMeans), and ten rounds of KMeans from the means of
what that found. Every measurement is a process of its own; memory is the peak of all of it, the rows included.
`growth` is the exponent of the time between two sizes.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time

import numpy as np
import torch

from rowssl.core.memory import peak_memory
from rowssl.data.feed import ArraySource, Feed
from rowssl.encoders.tails import AdapterTail
from rowssl.methods.transfer import EXACT, MICRO, MICRO_SAMPLE, Candidate, Transfer, whitening, within_covariance

CLASSES, KNOWN, WIDTH, RHO = 100, 50, 384, 0.15


def mixture(rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows (N, 384) in float32, made in pieces; targets, -1 = unlabelled; true classes."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(CLASSES, WIDTH)).astype(np.float32)
    share = np.geomspace(20, 1, CLASSES)
    truth = rng.choice(CLASSES, rows, p=share / share.sum())
    x = np.empty((rows, WIDTH), dtype=np.float32)
    for begin in range(0, rows, 50_000):
        part = truth[begin : begin + 50_000]
        x[begin : begin + len(part)] = centres[part] + 1.6 * rng.standard_normal((len(part), WIDTH), dtype=np.float32)
    labelled = (truth < KNOWN) & (rng.random(rows) < 0.1)
    return x, np.where(labelled, truth, -1), truth


def ours(x: np.ndarray, target: np.ndarray) -> np.ndarray:
    feed = Feed(ArraySource(x), target, batch_size=32, epochs=1, seed=0)
    method = Transfer(AdapterTail(WIDTH), n_old=KNOWN, n_classes=CLASSES, n_rows=len(x), rho=RHO)
    method.chosen = Candidate(RHO)
    with torch.no_grad():
        method.answer(feed, torch.from_numpy(target))
        return torch.cat([method.predict_logits(part).argmax(1) for _, part in feed.chunks()]).numpy()


def scikit_learn(x: np.ndarray, target: np.ndarray) -> np.ndarray:
    from sklearn.cluster import AgglomerativeClustering, KMeans
    from sklearn.decomposition import PCA
    from sklearn.preprocessing import normalize

    y = normalize(PCA(min(WIDTH, 512), random_state=0).fit_transform(normalize(x)))
    known = torch.from_numpy(target[target >= 0])
    within = within_covariance(torch.from_numpy(y[target >= 0]), known)
    assert within is not None
    z = normalize(y @ whitening(within, RHO).numpy())
    labels = target
    if len(z) > EXACT:
        some = z if len(z) <= MICRO_SAMPLE else z[np.random.default_rng(0).permutation(len(z))[:MICRO_SAMPLE]]
        micro = KMeans(MICRO, n_init=1, max_iter=10, random_state=0).fit(some)
        of_micro = AgglomerativeClustering(CLASSES).fit_predict(micro.cluster_centers_)
        labels = of_micro[micro.predict(z)]
    else:
        labels = AgglomerativeClustering(CLASSES).fit_predict(z)
    means = np.stack([z[labels == one].mean(0) for one in range(CLASSES)])
    return KMeans(CLASSES, init=normalize(means), n_init=1, max_iter=10).fit(z).labels_


def measure(who: str, rows: int) -> None:
    """What the child process does."""
    x, target, truth = mixture(rows)
    began = time.perf_counter()
    found = (ours if who == "ours" else scikit_learn)(x, target)
    seconds = time.perf_counter() - began
    from rowssl.clustering.assignment import hungarian

    table = np.zeros((CLASSES, CLASSES))
    np.add.at(table, (found, truth), 1)
    pairs = hungarian(torch.from_numpy(table))
    right = table[tuple(np.asarray(part) for part in pairs)].sum() / rows
    print(json.dumps({"seconds": seconds, "memory": peak_memory() / 2**30, "right": 100 * right}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--rows", type=int, nargs="+", default=[1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000]
    )
    parser.add_argument("--compare", action="store_true", help="with scikit-learn")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        measure(options.child[0], int(options.child[1]))
        return
    if options.quick:
        options.rows, options.compare = [500, 1_000], True
    print("| rows | who | seconds | growth | peak GB | right, % |\n|---|---|---|---|---|---|")
    before: dict[str, tuple[int, float]] = {}
    for rows in options.rows:
        for who in ("ours", "scikit-learn") if options.compare else ("ours",):
            done = subprocess.run(
                [sys.executable, __file__, "--child", who, str(rows)], capture_output=True, text=True, check=True
            )
            row = json.loads(done.stdout.splitlines()[-1])
            growth = "-"
            if who in before:
                last_rows, last = before[who]
                growth = f"{math.log(row['seconds'] / last) / math.log(rows / last_rows):.2f}"
            before[who] = rows, row["seconds"]
            print(
                f"| {rows:,} | {who} | {row['seconds']:.1f} | {growth} | {row['memory']:.2f} | {row['right']:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
