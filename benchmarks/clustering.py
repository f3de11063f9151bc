"""k-means, semi-supervised k-means and evaluation at scale, against scikit-learn.

    python benchmarks/clustering.py                        # 10k, 100k, 1M points x 384; k = 100 and 1,000
    python benchmarks/clustering.py --rows 10971 --width 2048 --k 100 --n-init 3
    python benchmarks/clustering.py --quick

Points are drawn around long-tailed Gaussian centres; `--features FILE.npz` takes the key `embeddings` of a file instead. Every
case is a process of its own with the same points, threads, number of starts, largest number of iterations and tolerance; all
seed by greedy k-means++. Two questions: `whole` is a call as a user makes it; `start` gives the same centres
to all and asks for the iterations and the labels. Inertia is measured in the same way for all. Memory is the peak above the
imports, as a multiple of the points' size. The contestants take turns, and the medians of their seconds and memory count; what
takes longer than `--limit` is ended. Semi-supervised k-means (half of the classes known, half of their rows labelled) has no
counterpart in scikit-learn: its time stands beside the plain one. `to the end` is how methods cluster whose clusters are the
answer: on large data, too, all points are asked until the tolerance or the largest number of iterations is reached.
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
import warnings
from pathlib import Path

import numpy as np

OURS = "rowssl"
TO_THE_END, SEMI = "rowssl, to the end", "rowssl semi-supervised"
CASES = (OURS, TO_THE_END, SEMI, "scikit-learn lloyd", "scikit-learn elkan")
EVALUATION_SECONDS = 2.0
LONG = 10.0  # seconds; what takes longer is not repeated


def mixture(rows: int, width: int, classes: int, seed: int, spread: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    """Unit rows (N, d) float32 around `classes` Gaussian centres whose sizes fall by a factor of 100, and their classes."""
    rng = np.random.default_rng(seed)
    centres = spread * rng.standard_normal((classes, width), dtype=np.float32)
    share = 100.0 ** (-np.arange(classes) / max(1, classes - 1))
    truth = rng.choice(classes, size=rows, p=share / share.sum())
    x = np.empty((rows, width), dtype=np.float32)
    for begin in range(0, rows, 8192):
        part = centres[truth[begin : begin + 8192]]
        part += rng.standard_normal(part.shape, dtype=np.float32)
        x[begin : begin + 8192] = part / np.linalg.norm(part, axis=1, keepdims=True)
    return x, truth


def child(options: argparse.Namespace) -> None:
    """One case; what was found as JSON."""
    warnings.simplefilter("ignore")  # scikit-learn warns about an iteration limit that all contestants share
    import sklearn.cluster
    import torch
    from threadpoolctl import threadpool_limits

    from rowssl.clustering.kmeans import assign, kmeans, semi_supervised_kmeans
    from rowssl.core.memory import peak_memory

    torch.set_num_threads(options.threads)
    small = np.random.default_rng(0).standard_normal((256, 8), dtype=np.float32)
    kmeans(small, 4, n_init=1)  # the first call of a library pays for its start
    sklearn.cluster.KMeans(4, n_init=1).fit(small)
    folder, k = options.points.parent, options.k[0]
    before = peak_memory()
    x = np.load(options.points)
    targets = np.load(folder / "targets.npy")
    start = np.load(folder / f"start-{k}.npy") if options.case_kind == "start" else None
    shared = {"n_init": 1 if start is not None else options.n_init, "max_iter": options.max_iter, "tol": options.tol}
    began = time.perf_counter()
    with threadpool_limits(options.threads):
        if options.case in (OURS, TO_THE_END):
            result = kmeans(x, k, init=start, to_the_end=options.case == TO_THE_END, **shared)
            centres, iterations = result.centers.numpy(), result.n_iter
        elif options.case == SEMI:
            result = semi_supervised_kmeans(x, targets, k, **shared)
            centres, iterations = result.centers.numpy(), result.n_iter
        else:
            how = options.case.split()[-1]
            init = "k-means++" if start is None else start
            fitted = sklearn.cluster.KMeans(k, init=init, algorithm=how, random_state=0, **shared).fit(x)
            centres, iterations = fitted.cluster_centers_, fitted.n_iter_
    seconds, peak = time.perf_counter() - began, peak_memory()
    inertia = float(assign(x, centres)[1].double().sum())
    print(
        json.dumps(
            {"seconds": seconds, "inertia": inertia, "iterations": iterations, "memory": (peak - before) / x.nbytes}
        )
    )


def run_case(options: argparse.Namespace, points: Path, case: str, kind: str, k: int) -> dict[str, float] | None:
    """One case in a process of its own; None when it takes longer than the limit."""
    command = [sys.executable, __file__, "--case", case, "--case-kind", kind, "--points", str(points), "--k", str(k)]
    for name in ("n_init", "max_iter", "tol", "threads"):
        command += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads)}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=options.limit, check=False, env=environment
        )
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        print(f"{case} failed: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return {"failed": 1.0}
    return json.loads(done.stdout.strip().splitlines()[-1])


def line(
    rows: int, k: int, kind: str, case: str, limit: float, found: dict[str, float] | None, ours: dict[str, float]
) -> str:
    head = f"| {rows:,} | {k:,} | {kind} | {case} |"
    if found is None:
        slower = f"more than {limit / ours['seconds']:.1f}" if "seconds" in ours else ""
        return f"{head} more than {limit:.0f} | {slower} | | | |"
    if "failed" in found:
        return f"{head} failed | | | | |"
    beside = "seconds" in ours
    ratio = f"{found['seconds'] / ours['seconds']:.2f} | {found['inertia'] / ours['inertia']:.4f}" if beside else "|"
    return f"{head} {found['seconds']:.2f} | {ratio} | {found['iterations']:.0f} | {found['memory']:.2f} |"


def clustering(options: argparse.Namespace) -> None:
    """The table of all cases."""
    from rowssl.clustering.kmeans import kmeans

    print(f"{options.n_init} starts, at most {options.max_iter} iterations, {options.threads} threads\n")
    print("| points | k | question | by | seconds | time / rowssl | inertia / rowssl | iterations | memory / points |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    for rows in options.rows:
        with tempfile.TemporaryDirectory(dir=options.folder) as name:
            folder = Path(name)
            if options.features:
                x = np.load(options.features)["embeddings"].astype(np.float32)
                truth = kmeans(x, max(options.k), n_init=1, max_iter=2).labels.numpy()
            else:
                x, truth = mixture(rows, options.width, max(options.k), seed=0)
            np.save(folder / "points.npy", x)
            known = (truth < min(options.k) // 2) & (np.random.default_rng(1).random(len(x)) < 0.5)
            np.save(folder / "targets.npy", np.where(known, truth, -1))
            for k in options.k:
                drawn = np.random.default_rng(2).choice(len(x), k, replace=False)
                np.save(folder / f"start-{k}.npy", x[drawn])
            count = len(x)
            del x
            for k in options.k:
                for kind in ("whole",) if options.quick else options.questions:
                    found = in_turns(options, folder / "points.npy", kind, k)
                    for case, result in found.items():
                        print(line(count, k, kind, case, options.limit, result, found[OURS] or {}), flush=True)


def in_turns(options: argparse.Namespace, points: Path, kind: str, k: int) -> dict[str, dict[str, float] | None]:
    """Every contestant `--repeats` times, one after the other, with the medians of its seconds and memory; once what takes long."""
    cases = [
        case for case in (CASES[:4] if options.quick else CASES)
        if case not in options.skip
        and not (case in (TO_THE_END, SEMI) and kind == "start")
    ]  # fmt: skip
    found: dict[str, dict[str, float] | None] = {}
    turns: dict[str, list[dict[str, float]]] = {case: [] for case in cases}
    for turn in range(options.repeats):
        for case in cases:
            if turn == 0:
                found[case] = run_case(options, points, case, kind, k)
            result = found[case]
            if result is None or "failed" in result or (turn > 0 and turns[case][0]["seconds"] > LONG):
                continue
            again = result if turn == 0 else run_case(options, points, case, kind, k)
            turns[case] += [again] if again and "seconds" in again else []
    for case, result in found.items():
        if result is not None and turns[case]:
            result |= {name: statistics.median(turn[name] for turn in turns[case]) for name in ("seconds", "memory")}
    return found


def evaluation(rows: int, classes: int) -> None:
    """Seconds to evaluate many predictions."""
    from rowssl.evaluation import evaluate

    rng = np.random.default_rng(0)
    truth = rng.integers(0, classes, rows)
    said = np.where(rng.random(rows) < 0.6, truth, rng.integers(0, classes, rows))
    sizes = {"n_old": classes // 2, "n_classes": classes, "n_clusters": classes}
    evaluate(train_predicted=truth[:9], train_truth=truth[:9], **sizes)  # the first call imports
    began = time.perf_counter()
    evaluate(train_predicted=said, train_truth=truth, test_predicted=said[::10], test_truth=truth[::10], **sizes)
    seconds = time.perf_counter() - began
    print("\n| predictions | classes | seconds to evaluate | target |\n|---|---|---|---|")
    print(f"| {rows:,} | {classes:,} | {seconds:.2f} | below {EVALUATION_SECONDS:.0f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", help="npz file with the key `embeddings`; a synthetic mixture otherwise")
    parser.add_argument("--rows", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--k", type=int, nargs="*", default=[100, 1000])
    parser.add_argument("--n-init", type=int, default=1)
    parser.add_argument("--max-iter", type=int, default=20)
    parser.add_argument("--tol", type=float, default=1e-4)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--repeats", type=int, default=3, help="turns, of which the median counts")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds that a case may take")
    parser.add_argument("--questions", nargs="*", default=["whole", "start"], choices=["whole", "start"])
    parser.add_argument("--skip", nargs="*", default=[], choices=CASES[1:], help="contestants to leave out")
    parser.add_argument("--folder", type=Path, help="where the points go; they are removed at the end")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--case-kind", help=argparse.SUPPRESS)
    parser.add_argument("--points", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        child(options)
        return
    if options.quick:
        options.rows, options.width, options.k, options.max_iter, options.repeats = [1500], 16, [10], 5, 1
    options.rows = options.rows[:1] if options.features else options.rows
    clustering(options)
    evaluation(*((20_000, 50) if options.quick else (1_000_000, 1000)))


if __name__ == "__main__":
    main()
