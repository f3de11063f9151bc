"""How far from the truth the estimates of the number of classes are, and how often their intervals hold it.

    python benchmarks/count_trials.py                       # collections of ../shared/data, digits
    python benchmarks/count_trials.py --sub 10 --only hidden,density      # and ten random parts of every collection

A collection of photos is a folder of ../shared/data with photos/, truth.csv and label files; CIFAR-100-LT comes as features of a
ResNet-50. The features of the photos (EfficientNet-Lite0, clean views) are computed once and kept under build/count-trials. A
random part is 16 to 44 of the classes, 40 to 70 % of them known, balanced or long-tailed, with 3 to 8 labels a class, a constant
share, or a share that falls as classes grow.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from rowssl.config import build_config
from rowssl.counting.base import AUTO, CountData, run_estimator
from rowssl.data.labels import read_csv
from rowssl.data.problem import load_problem
from rowssl.training.features import open_features

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
KEPT = Path("build/count-trials")
ESTIMATORS = ("hidden", "density", "gcd", "balanced")


@dataclass(frozen=True)
class Trial:
    """Rows with their true classes, known ones first, and targets: the class or -1."""

    name: str
    x: np.ndarray
    truth: np.ndarray
    target: np.ndarray

    def data(self) -> CountData:
        n_old = int(self.target.max()) + 1
        x = F.normalize(torch.from_numpy(self.x).float(), dim=1)
        return CountData(x, self.target, n_old, max(2, n_old), min(max(20, 4 * n_old), max(2, len(x) // 4)))


def column(path: Path) -> dict[str, str]:
    """File -> label of a CSV with these two columns."""
    table = read_csv(path)
    key, label = table.columns.index("path"), table.columns.index("label")
    return {Path(cells[key]).name: cells[label] for _, cells in table.rows}


def photos(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Features of all pictures of a collection and their true labels."""
    kept = KEPT / f"{folder.name}.npz"
    truth = column(folder / "truth.csv")
    if not kept.exists():
        config = build_config({
            "data": {"source": str(folder / "photos"), "labels": str(folder / "truth.csv")}, "encoder": {"views": 1},
        })  # fmt: skip
        problem = load_problem(config.data)
        features = open_features(problem, config)
        with torch.no_grad():
            parts = [
                features.encoder.tail(features.train.clean(np.arange(i, min(i + 512, len(problem.table)))))
                for i in range(0, len(problem.table), 512)
            ]
        KEPT.mkdir(parents=True, exist_ok=True)
        np.savez(kept, embeddings=torch.cat(parts).flatten(1).numpy(), names=np.array(problem.table.names))
    with np.load(kept) as arrays:
        names = [Path(name).name for name in arrays["names"]]
        return arrays["embeddings"].astype(np.float32), np.array([truth[name] for name in names])


def numbered(name: str, x: np.ndarray, label: np.ndarray, shown: np.ndarray) -> Trial:
    """A trial in which some rows show their label, the classes seen so counted first."""
    known = np.unique(label[shown])
    order = np.concatenate([known, np.setdiff1d(np.unique(label), known)])
    place = {one: number for number, one in enumerate(order.tolist())}
    truth = np.array([place[one] for one in label.tolist()])
    return Trial(name, x, truth, np.where(shown, truth, -1))


def official(folder: Path) -> Iterator[Trial]:
    """The label files of a collection of photos."""
    x, label = photos(folder)
    with np.load(KEPT / f"{folder.name}.npz") as arrays:
        names = [Path(name).name for name in arrays["names"]]
    for path in sorted(folder.glob("labels-*.csv")):
        given = column(path)
        yield numbered(f"{folder.name} {path.stem[7:]}", x, label, np.array([name in given for name in names]))


def resnet(path: Path) -> Iterator[Trial]:
    """CIFAR-100-LT as features."""
    with np.load(path) as arrays:
        label, target = arrays["truth"], arrays["labels"]
        yield numbered("cifar100-lt, ResNet-50", arrays["embeddings"].astype(np.float32), label, target >= 0)


def digits() -> Iterator[Trial]:
    """Digits, some of them labelled: 4 to 7 known classes of 10."""
    from sklearn.datasets import load_digits

    x, label = load_digits(return_X_y=True)
    for known, share in ((4, 0.3), (5, 0.1), (5, 0.3), (7, 0.1)):
        rng = np.random.default_rng([known, int(100 * share)])
        shown = np.isin(label, rng.permutation(10)[:known]) & (rng.random(len(label)) < share)
        yield numbered(f"digits, {known} known, {share:.0%} labelled", x.astype(np.float32), label, shown)


def part(name: str, x: np.ndarray, label: np.ndarray, seed: int) -> Trial:
    """A random part of a collection."""
    rng = np.random.default_rng([seed, 41])
    classes = np.unique(label)
    some = rng.permutation(classes)[: int(rng.integers(16, min(len(classes), 44) + 1))]
    known = some[: round(len(some) * rng.uniform(0.4, 0.7))]
    ratio, most = rng.choice([1, 5, 20]), rng.choice([60, 100, 200])
    way, share = rng.choice(["few", "share", "reversed"]), rng.choice([0.15, 0.3, 0.5])
    rows, shown = [], []
    for number, one in enumerate(rng.permutation(some)):
        size = max(4, int(most * ratio ** (-number / (len(some) - 1))))
        of_class = rng.permutation(np.flatnonzero(label == one))[:size]
        rows.append(of_class)
        if one in known:
            of_this = share * (0.15 + 1.7 * number / (len(some) - 1)) if way == "reversed" else share
            labels = rng.integers(3, 9) if way == "few" else max(2, round(of_this * len(of_class)))
            shown.append(of_class[:labels])
    kept = np.sort(np.concatenate(rows))
    return numbered(f"parts of {name}", x[kept], label[kept], np.isin(kept, np.concatenate(shown)))


def trials(parts: int) -> Iterator[Trial]:
    """All there are."""
    folders = [path.parent for path in sorted(SHARED.glob("*/truth.csv"))]
    for folder in folders:
        yield from official(folder)
        x, label = photos(folder)
        for seed in range(parts):
            yield part(folder.name, x, label, seed)
    path = SHARED / "cifar100-lt-features.npz"
    if path.exists():
        yield from resnet(path)
        with np.load(path) as arrays:
            x, label = arrays["embeddings"].astype(np.float32), arrays["truth"]
        for seed in range(parts):
            yield part("cifar100-lt, ResNet-50", x, label, seed)
    if not folders:
        print(f"(no collections in {SHARED}: digits alone)\n")
    yield from digits()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sub", type=int, default=0, help="random parts of every collection")
    parser.add_argument("--only", default=",".join(ESTIMATORS))
    options = parser.parse_args()
    names = options.only.split(",")
    print(
        f"| collection and labels | labels | known | classes | {' | '.join(names)} |\n|---|---|---|---|{'---|' * len(names)}"
    )
    errors: dict[str, list[float]] = {name: [] for name in names}
    inside: dict[str, list[bool]] = {name: [] for name in names}
    unstable = 0
    summed: dict[str, list[list[float]]] = {}
    for trial in trials(options.sub):
        data, truth = trial.data(), len(np.unique(trial.truth))
        cells = []
        for name in names:
            found = run_estimator(name, data)
            errors[name].append(abs(found.best - truth) / truth)
            inside[name].append(found.low <= truth <= found.high)
            unstable += name == AUTO and found.unstable
            cells.append(f"{found.best} ({found.low} to {found.high}){', unstable' if found.unstable else ''}")
        if trial.name.startswith("parts of"):
            summed.setdefault(trial.name, []).append([errors[name][-1] for name in names])
            continue
        labels = int((trial.target >= 0).sum())
        print(f"| {trial.name} | {labels} | {data.n_old} | {truth} | {' | '.join(cells)} |", flush=True)
    for collection, rows in summed.items():
        told = [f"{100 * np.median(one):.0f} %, largest {100 * max(one):.0f} %" for one in zip(*rows, strict=True)]
        print(f"| {len(rows)} {collection}: median error | | | | {' | '.join(told)} |")
    total = len(errors[names[0]])
    for what, told in (
        ("median error", [f"{100 * np.median(errors[name]):.0f} %" for name in names]),
        ("largest error", [f"{100 * max(errors[name]):.0f} %" for name in names]),
        ("truth inside the interval", [f"{sum(inside[name])} of {total}" for name in names]),
    ):
        print(f"| **all {total}: {what}** | | | | {' | '.join(told)} |")
    if AUTO in names:
        print(f"\n{AUTO} calls {unstable} of {total} unstable")


if __name__ == "__main__":
    main()
