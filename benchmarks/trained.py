"""Are the methods that train at least as good as k-means, and does twice the training do no harm?

    python benchmarks/trained.py ../shared/data                              # all collections, three seeds: hours on one core
    python benchmarks/trained.py ../shared/data --only groceries objects64 --seeds 1
    python benchmarks/trained.py ../shared/data --only digits --before       # also as the methods were before, see below

Photo collections (`groceries`, `objects64`, three label files each), CIFAR-100-LT (two priors) and digits (longtail protocol, five
of ten classes known, reversed prior). Pictures go through EfficientNet-Lite0 once, which is kept in --features; its pooled features
are shortened to 256 components as in any run, and every method gets the same ones. The class count is given.

A cell is the mean over classes of the accuracy on new pictures, as a user judges it (known classes by their exact names, novel
ones matched one to one to clusters on the training pictures) and, after a slash, by the protocol (In-bACC, one matching for all).
"default" is the length and rate that the method chooses, "twice" twice as many epochs. `--before` adds the choices of earlier
versions: a random start, the paper's rate and up to 200 epochs, and for DTS an uncertainty that moves probability anywhere.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from rowssl.clustering.assignment import hungarian
from rowssl.config import DataConfig, RunConfig, build_config
from rowssl.core.console import quiet
from rowssl.data.benchmarks import load_benchmark
from rowssl.data.feed import ArraySource
from rowssl.data.problem import Problem, load_problem
from rowssl.data.splits import make_split
from rowssl.data.table import Table, read_table
from rowssl.encoders.reduce import fit_reduction
from rowssl.evaluation import evaluate
from rowssl.runs.fit import fit
from rowssl.training.features import open_features
from rowssl.training.plan import schedule

PHOTOS, LABELS, PRIORS = ("groceries", "objects64"), ("match", "mismatch", "few"), ("match", "mismatch")
BEFORE = {"simgcd": {"classifier_init": "random"}, "dts": {"classifier_init": "random", "u_moves": "anywhere"}}


@dataclass(frozen=True)
class Case:
    """A collection with some labels: features (N, d) and (T, d), targets with -1 for unlabelled, and the truth."""

    name: str
    x: np.ndarray
    targets: np.ndarray
    truth: np.ndarray
    new: np.ndarray
    new_truth: np.ndarray
    n_old: int

    @property
    def classes(self) -> int:
        return int(self.truth.max()) + 1

    @property
    def problem(self) -> Problem:
        names = tuple(f"class {c}" for c in range(self.classes))
        rows = [f"row {i}" for i in range(len(self.x))]
        return Problem(Table(self.targets, names, rows, embeddings=self.x), self.targets, names, self.n_old)


def pooled(table: Table, folder: Path, name: str) -> np.ndarray:
    """Pooled features of all pictures of a table, (N, 1280), computed once."""
    path = folder / f"{name}.npy"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        config = build_config({
            "encoder": {"name": "efficientnet_lite0", "tail": "adapter", "cache": str(folder / "trunk")},
            "method": {"name": "transfer"},
        })  # fmt: skip
        nothing = np.full(len(table), -1)
        source = open_features(Problem(table, nothing, (), 0), config).train
        np.save(path, source.clean(np.arange(len(table))).numpy().astype(np.float16))
    return np.load(path).astype(np.float32)


def case(
    name: str, x: np.ndarray, targets: np.ndarray, truth: np.ndarray, new: np.ndarray, new_truth: np.ndarray
) -> Case:
    """Features shortened, known classes (those with labels) numbered first."""
    known = np.unique(targets[targets >= 0])
    order = np.concatenate([known, np.setdiff1d(np.unique(truth), known)])
    place = np.full(int(max(truth.max(), new_truth.max())) + 2, -1)  # the last entry answers for -1
    place[order] = np.arange(len(order))
    if x.shape[1] > 256:
        reduction = fit_reduction(ArraySource(x), 256)
        x, new = (reduction(torch.from_numpy(part)).numpy() for part in (x, new))
    return Case(name, x, place[targets], place[truth], new, place[new_truth], len(known))


def photos(data: Path, folder: Path, name: str) -> Iterator[Case]:
    """The three label files of a photo collection."""
    tables = [
        read_table(str(data / name / part), labels=str(data / name / truth))
        for part, truth in (("photos", "truth.csv"), ("new", "new-truth.csv"))
    ]
    x, new = (pooled(table, folder, f"{name}-{part}") for table, part in zip(tables, ("photos", "new"), strict=True))
    names = {one: number for number, one in enumerate(tables[0].class_names)}
    new_truth = np.array([names[tables[1].class_names[c]] for c in tables[1].labels])
    for labels in LABELS:
        with open(data / name / f"labels-{labels}.csv", newline="", encoding="utf-8") as file:
            given = {Path(row["path"]).name: names[row["label"]] for row in csv.DictReader(file)}
        targets = np.array([given.get(Path(row).name, -1) for row in tables[0].names])
        yield case(f"{name}, {labels}", x, targets, tables[0].labels, new, new_truth)


def cifar(data: Path, folder: Path) -> Iterator[Case]:
    """CIFAR-100-LT, imbalance ratio 100, judged on every second test picture."""
    train, test = load_benchmark("cifar100", str(data))
    splits = [
        make_split(train.labels, test.labels, protocol="rowssl", dataset="cifar100", gamma=100, prior=prior,
                   class_names=train.class_names)
        for prior in PRIORS
    ]  # fmt: skip
    rows = np.unique(np.concatenate([part for split in splits for part in (split.labelled, split.unlabelled)]))
    half = np.arange(0, len(test), 2)
    x, new = pooled(train.take(rows), folder, "cifar100-train"), pooled(test.take(half), folder, "cifar100-test")
    for prior, split in zip(PRIORS, splits, strict=True):
        own = np.concatenate([split.labelled, split.unlabelled])
        targets = np.where(np.isin(own, split.labelled), train.labels[own], -1)
        yield case(
            f"cifar100-lt, {prior}", x[np.searchsorted(rows, own)], targets, train.labels[own], new, test.labels[half]
        )


def digits(seed: int) -> Case:
    """The demo's digits: pixels, five classes known, imbalance ratio 10, reversed prior."""
    data = DataConfig(name="digits", protocol="longtail", known=5, gamma=10, prior="mismatch", split_seed=seed)
    problem = load_problem(data)
    config = build_config({"encoder": {"name": "pixels"}, "method": {"name": "transfer", "options": {"tune": False}}})
    found = open_features(problem, config)
    assert found.test is not None
    assert problem.truth is not None
    assert problem.test_truth is not None
    x, new = (source.clean(np.arange(len(source))).numpy() for source in (found.train, found.test))
    return case("digits", x, problem.targets, problem.truth, new, problem.test_truth)


def judged(one: Case, heads: np.ndarray, new_heads: np.ndarray) -> tuple[float, float]:
    """Accuracy on new pictures, mean over classes: as a user judges it, and by the protocol."""
    free = one.targets < 0
    table = np.zeros((one.classes, one.classes))
    np.add.at(table, (heads[free], one.truth[free]), 1)
    clusters, classes = hungarian(table[one.n_old :, one.n_old :])
    meant = np.concatenate([np.arange(one.n_old), np.full(one.classes - one.n_old, -1)])
    meant[one.n_old + np.asarray(clusters)] = one.n_old + np.asarray(classes)
    right = meant[new_heads] == one.new_truth
    user = np.mean([right[one.new_truth == c].mean() for c in np.unique(one.new_truth)])
    metrics = evaluate(
        train_predicted=heads[free], train_truth=one.truth[free], test_predicted=new_heads, test_truth=one.new_truth,
        n_old=one.n_old, n_classes=one.classes, n_clusters=one.classes,
    ).metrics  # fmt: skip
    return 100 * float(user), float(metrics["in_bacc"]["all"])


def run(
    one: Case, method: str, seed: int, *, times: int = 1, options: dict[str, object] | None = None
) -> tuple[float, float]:
    """Train and judge."""
    content = {
        "encoder": {"name": "identity"}, "method": {"name": method, "options": options or {}}, "classes": one.classes,
        "seed": seed,
    }  # fmt: skip
    config: RunConfig = build_config(content)
    if times > 1:
        config = build_config({**content, "train": {"epochs": times * schedule(config, len(one.x))[1]}})
    with quiet():
        done = fit(config, problem=one.problem, whole=False)
    with torch.no_grad():
        heads, new = (
            torch.cat([done.method.predict_logits(part).argmax(1) for part in torch.from_numpy(x).split(1024)]).numpy()
            for x in (one.x, one.new)
        )
    return judged(one, heads, new)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?", default=Path("../shared/data"))
    parser.add_argument("--features", type=Path, default=Path("build/trained"), help="where features are kept")
    parser.add_argument("--only", nargs="*", default=[*PHOTOS, "cifar100-lt", "digits"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--before", action="store_true", help="also as the methods were before")
    options = parser.parse_args()

    def cases(seed: int) -> Iterator[Case]:
        for name in options.only:
            if name == "digits":
                yield digits(seed)
            elif not options.data.is_dir():
                print(f"{name}: left out, {options.data} is not here", flush=True)
            elif name in PHOTOS:
                yield from photos(options.data, options.features, name)
            else:
                yield from cifar(options.data, options.features)

    ways: dict[str, tuple[str, int, dict[str, object]]] = {"k-means": ("kmeans", 1, {})}
    for method, shown in (("simgcd", "SimGCD"), ("dts", "DTS")):
        ways |= {f"{shown}, default": (method, 1, {}), f"{shown}, twice": (method, 2, {})}
        if options.before:
            ways[f"{shown}, before"] = (method, 1, dict(BEFORE[method]))
    print("| collection | " + " | ".join(ways) + " |\n|" + "---|" * (1 + len(ways)), flush=True)
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for seed in range(options.seeds):
        for one in cases(seed):
            for way, (method, times, chosen) in ways.items():
                values = found.setdefault(one.name, {}).setdefault(way, [])
                values.append(run(one, method, seed, times=times, options=chosen))
                told = f"{values[-1][0]:.1f} / {values[-1][1]:.1f}"
                print(f"{one.name}, seed {seed}, {way}: {told}", file=sys.stderr, flush=True)
            if len(values) == options.seeds:
                means = [np.mean(found[one.name][way], axis=0) for way in ways]
                print(
                    f"| {one.name} | " + " | ".join(f"{user:.1f} / {protocol:.1f}" for user, protocol in means) + " |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
