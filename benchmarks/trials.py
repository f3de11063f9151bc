"""Every method, and four ways a user would write in ten lines, on photo collections: who has the classes right?

    python benchmarks/trials.py                                              # what is in ../shared/data
    python benchmarks/trials.py --methods auto transfer --seeds 0 1 2 --count auto
    python benchmarks/trials.py --quick                                      # two small collections it draws itself

A collection is a folder with `photos/`, `new/`, `truth.csv`, `new-truth.csv` and `labels-*.csv`; the truth judges and no method
sees it. Everything sees the same encoder, the one that comes with rowssl. Accuracy is the mean over the classes of the new
pictures that are right *as a user judges it*: a known class must have that very name; clusters of novel classes are
matched one to one on the unlabelled training pictures, once. Beside it stands In-bACC, the protocol's number. ECE is of
the new pictures, in points, apart for answers that name a known and a novel class. `seconds` are those of the method
alone, its features being there. Results are kept in a file, line by line: the same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from sklearn.cluster import AgglomerativeClustering, KMeans
from sklearn.linear_model import LogisticRegression

from rowssl.clustering.assignment import hungarian
from rowssl.clustering.kmeans import semi_supervised_kmeans
from rowssl.config import build_config
from rowssl.core.memory import peak_memory
from rowssl.data.problem import Problem
from rowssl.data.table import read_table
from rowssl.methods import METHODS
from rowssl.runs.fit import fit
from rowssl.training.features import open_features

ROOT = Path(__file__).resolve().parents[2] / "shared" / "data"
Answer = tuple[np.ndarray, np.ndarray, np.ndarray | None]  # heads of training and of new pictures, confidence of these


def load(folder: Path, labels: Path) -> Problem:
    """A collection as a problem: some labels for the method, the truth for the judge."""
    train = read_table(str(folder / "photos"), labels=str(labels))
    truth = read_table(str(folder / "photos"), labels=str(folder / "truth.csv"))
    new = read_table(str(folder / "new"), labels=str(folder / "new-truth.csv"))
    known = sorted(train.class_names)
    names = [*known, *sorted(set(truth.class_names) - set(known))]
    place = {name: number for number, name in enumerate(names)}

    def numbers(table: Any) -> np.ndarray:
        return np.array([place[table.class_names[label]] if label >= 0 else -1 for label in table.labels])

    return Problem(
        train, numbers(train), tuple(names), len(known), truth=numbers(truth), test=new, test_truth=numbers(new)
    )


def right(problem: Problem, train: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Whether each new picture is right, as a user judges it."""
    assert problem.truth is not None
    known, classes = problem.n_old, problem.true_classes
    heads = 1 + max(int(train.max()), int(new.max()), classes)
    rows = problem.unlabelled()
    rows = rows[(train[rows] >= known) & (problem.truth[rows] >= known)]
    table = np.zeros((heads, classes))
    np.add.at(table, (train[rows], problem.truth[rows]), 1)
    meaning = np.r_[np.arange(known), np.full(heads - known, -1)]
    for head, name in zip(*hungarian(torch.from_numpy(table[known:, known:])), strict=True):
        if table[known + head, known + name]:
            meaning[known + head] = known + name
    return meaning[new] == problem.test_truth


def balanced(problem: Problem, correct: np.ndarray) -> dict[str, float]:
    """Mean over classes of the share that is right: all, known and novel."""
    truth = problem.test_truth
    present = np.unique(truth)
    recall = np.array([correct[truth == one].mean() for one in present])
    parts = {"all": present >= 0, "known": present < problem.n_old, "novel": present >= problem.n_old}
    return {name: 100 * float(recall[mask].mean()) for name, mask in parts.items() if mask.any()}


def calibration_error(confidence: np.ndarray, correct: np.ndarray) -> float:
    """Expected calibration error in points, ten bins of equal width."""
    bins = np.minimum((confidence * 10).astype(int), 9)
    gaps = [abs(confidence[bins == one].sum() - correct[bins == one].sum()) for one in np.unique(bins)]
    return 100 * sum(gaps) / max(1, len(correct))


# Ten lines each, on features of length 1.


def classifier_and_kmeans(x: np.ndarray, t: np.ndarray, new: np.ndarray, classes: int, seed: int) -> Answer:
    """Logistic regression; below a probability of one half it is something else, and k-means sorts that."""
    known = t.max() + 1
    model = LogisticRegression(C=100, max_iter=2000).fit(x[t >= 0], t[t >= 0])
    rest = (model.predict_proba(x).max(1) < 0.5) & (t < 0)
    clusters = KMeans(max(1, min(classes - known, int(rest.sum()))), n_init=10, random_state=seed).fit(x[rest])

    def say(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        probability = model.predict_proba(rows)
        unsure = probability.max(1) < 0.5
        return np.where(unsure, known + clusters.predict(rows), probability.argmax(1)), probability.max(1)

    (train, _), (found, confidence) = say(x), say(new)
    return np.where(t >= 0, t, train), found, confidence


def named(clusters: np.ndarray, t: np.ndarray, classes: int) -> np.ndarray:
    """Head of each cluster: known classes take the clusters that hold most of their labels, one to one."""
    known = t.max() + 1
    table = np.zeros((classes, known))
    np.add.at(table, (clusters[t >= 0], t[t >= 0]), 1)
    heads = np.full(classes, -1)
    for cluster, name in zip(*hungarian(torch.from_numpy(table)), strict=True):
        heads[cluster] = name
    heads[heads < 0] = known + np.arange((heads < 0).sum())
    return heads


def kmeans_and_names(x: np.ndarray, t: np.ndarray, new: np.ndarray, classes: int, seed: int) -> Answer:
    """k-means on everything; the labels name clusters."""
    model = KMeans(classes, n_init=10, random_state=seed).fit(x)
    heads = named(model.labels_, t, classes)
    return np.where(t >= 0, t, heads[model.labels_]), heads[model.predict(new)], None


def ward_and_names(x: np.ndarray, t: np.ndarray, new: np.ndarray, classes: int, seed: int) -> Answer:
    """Ward's clustering on everything; the labels name clusters, and a new picture goes to the nearest mean."""
    clusters = AgglomerativeClustering(classes).fit_predict(x)
    heads = named(clusters, t, classes)
    means = np.stack([x[clusters == one].mean(0) for one in range(classes)])
    nearest = ((new**2).sum(1)[:, None] - 2 * new @ means.T + (means**2).sum(1)).argmin(1)
    return np.where(t >= 0, t, heads[clusters]), heads[nearest], None


def constrained_kmeans(x: np.ndarray, t: np.ndarray, new: np.ndarray, classes: int, seed: int) -> Answer:
    """k-means in which labelled pictures keep their class."""
    found = semi_supervised_kmeans(torch.from_numpy(x), torch.from_numpy(t), classes, seed=seed, n_init=10)
    centres = np.asarray(found.centers)
    nearest = [(-2 * rows @ centres.T + (centres**2).sum(1)).argmin(1) for rows in (x, new)]
    return np.where(t >= 0, t, nearest[0]), nearest[1], None


WAYS: dict[str, Callable[..., Answer]] = {
    "logistic regression + k-means": classifier_and_kmeans,
    "k-means + names": kmeans_and_names,
    "Ward + names": ward_and_names,
    "constrained k-means": constrained_kmeans,
}


def pooled(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Pooled features of the encoder in the box, of length 1."""
    config = build_config({"encoder": {"tail": "stage"}, "method": {"name": "transfer", "options": {"tune": False}}})
    features = open_features(problem, config)

    @torch.no_grad()
    def unit(source: Any) -> np.ndarray:
        parts = np.array_split(np.arange(len(source)), max(1, len(source) // 256))
        return torch.cat([F.normalize(features.encoder.tail(source.clean(rows)), dim=1) for rows in parts]).numpy()

    return unit(features.train), unit(features.test)


def by_method(problem: Problem, method: str, seed: int, classes: int | str, options: dict[str, Any]) -> dict[str, Any]:
    """One fit of the package."""
    content = {"method": {"name": method, "options": options}, "seed": seed, "classes": classes}
    began = time.perf_counter()
    run = fit(build_config(content), None, problem=problem, whole=False)
    seconds = time.perf_counter() - began
    assert run.test_answers is not None
    heads = np.where(problem.targets >= 0, problem.targets, run.answers.head)
    row = judged(problem, (heads, run.test_answers.head, run.test_answers.confidence))
    row |= {"seconds": seconds, "in_bacc": run.metrics["in_bacc"]["all"], "count": run.metrics["classes"]["heads"]}
    return row | {name: run.metrics[name] for name in ("chosen", "expected") if name in run.metrics}


def by_hand(problem: Problem, way: str, seed: int) -> dict[str, Any]:
    """One of the ten-line ways, given the number of classes."""
    x, new = pooled(problem)
    began = time.perf_counter()
    answer = WAYS[way](x, problem.targets, new, problem.true_classes, seed)
    return judged(problem, answer) | {"seconds": time.perf_counter() - began, "count": problem.true_classes}


def judged(problem: Problem, answer: Answer) -> dict[str, Any]:
    """Accuracy and calibration on the new pictures."""
    train, new, confidence = answer
    correct = right(problem, train, new)
    row: dict[str, Any] = {"accuracy": balanced(problem, correct), "memory": peak_memory() / 2**20}
    if confidence is not None:
        known = new < problem.n_old
        row["plain_accuracy"] = 100 * float(correct.mean())
        row["ece"] = {
            "known": calibration_error(confidence[known], correct[known]),
            "novel": calibration_error(confidence[~known], correct[~known]),
        }
    return row


def draw(folder: Path) -> None:
    """Two collections of coloured shapes, for a look at whether everything runs."""
    rng = np.random.default_rng(0)
    for name in ("shapes", "stripes"):
        for part, truth, each in (("photos", "truth.csv", 12), ("new", "new-truth.csv", 4)):
            (folder / name / part).mkdir(parents=True)
            lines = []
            for number in range(8 * each):
                one, pixels = number % 8, rng.normal(110, 12, (32, 32, 3))
                where = slice(4 + 3 * (one // 3), 20 + 3 * (one // 3))
                pixels[where if name == "shapes" else slice(None, None, 2 + one // 3), 6:26, one % 3] += 90
                file = f"{number:03d}.png"
                Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / name / part / file)
                lines.append((file, f"kind-{one}"))
            (folder / name / truth).write_text("\n".join(["path,label", *map(",".join, lines)]))
            if part == "photos":
                few = [line for line in lines[:40] if int(line[1][-1]) % 2 == 0]
                (folder / name / "labels-some.csv").write_text("\n".join(["path,label", *map(",".join, few)]))


def table(rows: list[dict[str, Any]]) -> str:
    """Means over the seeds: a line for every collection, label file and way."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["collection"], row["labels"], row["way"]].append(row)
    lines = [
        "| collection, labels | way | right, % (known / novel) | spread | In-bACC | ECE known / novel | classes | seconds | MB |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for (collection, labels, way), found in groups.items():

        def mean(*path: str, of: list[dict[str, Any]] = found) -> float:
            values = []
            for row in of:
                value: Any = row
                for key in path:
                    value = value.get(key) if isinstance(value, dict) else None
                values.append(np.nan if value is None else value)
            return float(np.mean(values))

        spread = np.std([row["accuracy"]["all"] for row in found], ddof=1) if len(found) > 1 else np.nan
        cells = [
            f"{collection} {labels}", way,
            f"{mean('accuracy', 'all'):.1f} ({mean('accuracy', 'known'):.0f} / {mean('accuracy', 'novel'):.0f})",
            f"{spread:.1f}", f"{mean('in_bacc'):.1f}", f"{mean('ece', 'known'):.0f} / {mean('ece', 'novel'):.0f}",
            f"{mean('count'):.0f}", f"{mean('seconds'):.0f}", f"{mean('memory'):.0f}",
        ]  # fmt: skip
        lines.append("| " + " | ".join("-" if "nan" in cell else cell for cell in cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-root", type=Path, default=ROOT)
    parser.add_argument("--collections", nargs="+", help="folders of the root; all that are collections if not given")
    parser.add_argument("--methods", nargs="+", default=[*WAYS, *METHODS])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--count", choices=["given", "auto"], default="given", help="whether the methods know how many")
    parser.add_argument("--set", nargs="+", default=[], help="options of the methods, name=value")
    parser.add_argument("--log", type=Path, help="file of the results [the temporary folder's rowssl-trials.jsonl]")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    given = {name: json.loads(value) for name, _, value in (text.partition("=") for text in options.set)}
    log = options.log or Path(tempfile.gettempdir()) / "rowssl-trials.jsonl"
    if options.quick:
        options.data_root = Path(tempfile.mkdtemp())
        log = options.data_root / "log.jsonl"
        draw(options.data_root)
        options.methods = [*WAYS, "transfer"]
    found = sorted(path.parent for path in options.data_root.glob("*/truth.csv"))
    found = [path for path in found if not options.collections or path.name in options.collections]
    if not found:
        raise SystemExit(
            f"{options.data_root} holds no collection: a folder with photos/, new/, truth.csv, new-truth.csv"
        )
    rows = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    wanted = []
    for folder in found:
        for labels in sorted(folder.glob("labels-*.csv")):
            problem = None
            for way in options.methods:
                for seed in options.seeds:
                    key = {
                        "collection": folder.name, "labels": labels.stem.removeprefix("labels-"), "way": way, "seed": seed,
                        "counted": options.count, "options": given,
                    }  # fmt: skip
                    done = [row for row in rows if key.items() <= row.items()]
                    if not done:
                        problem = problem or load(folder, labels)
                        classes = problem.true_classes if options.count == "given" else "auto"
                        hand = way in WAYS
                        row = by_hand(problem, way, seed) if hand else by_method(problem, way, seed, classes, given)
                        done = [key | row]
                        rows += done
                        with log.open("a") as stream:
                            stream.write(json.dumps(done[0]) + "\n")
                        print(json.dumps(done[0]), flush=True)
                    wanted += done[:1]
    print(table(wanted))


if __name__ == "__main__":
    main()
