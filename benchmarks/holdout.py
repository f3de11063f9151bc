"""Choose hyper-parameters without a test label: on the labelled rows alone.

    python benchmarks/holdout.py FEATURES.npz --method dts --set epsilon=1 --set tau_max=0.8 --epochs 40 --folds 2

In each fold every second known class plays novel (its labels are hidden), and a quarter of the labelled rows of every class is
held out. The method trains on all other rows; heads are matched to classes on the training rows whose label we know, and the
balanced accuracy on the held-out rows is printed for all, for the classes that stayed known, and for those that played novel;
and that of the training rows of classes that play novel, whose labels the method did not see: more rows, less noise.
Neither the truth of unlabelled rows nor the test set is read.

With the unlabelled rows in play, heads that die cost nothing, since the classes they should have served are not judged. With
`--labelled-only` the labelled rows are the whole problem and every class is judged: fewer rows, but no such bias.
"""

from __future__ import annotations

import argparse
from copy import deepcopy

import numpy as np
import torch
import yaml

from rowssl.data.feed import ArraySource, FeatureAugmentation, Feed
from rowssl.encoders.tails import AdapterTail
from rowssl.evaluation import evaluate
from rowssl.methods import build_method
from rowssl.methods.base import Method
from rowssl.training.loop import Optimisation, train


def fold_of(labels: np.ndarray, fold: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Places of classes (those that stay known first), held-out rows, training rows, and how many stay known."""
    classes = np.unique(labels[labels >= 0])
    known = classes[fold % 2 :: 2]
    order = np.concatenate([known, np.setdiff1d(classes, known)])
    place = np.full(classes.max() + 2, -1)  # the last entry answers for -1
    place[order] = np.arange(len(order))
    rng = np.random.default_rng([fold, 51])
    held = [rng.permutation(np.flatnonzero(labels == c)) for c in classes]
    hold = np.sort(np.concatenate([rows[: max(1, len(rows) // 4)] for rows in held if len(rows) > 1]))
    return place, hold, np.setdiff1d(np.arange(len(labels)), hold), len(known)


def run_fold(options: argparse.Namespace, data: dict[str, np.ndarray], fold: int) -> dict[int, tuple[float, ...]]:
    """Held-out accuracies (all, known, playing novel) at the epochs asked for."""
    place, hold, rows, n_known = fold_of(data["labels"], fold)
    seen, truth = place[data["labels"][rows]], place[data["labels"][hold]]
    targets = np.where(seen < n_known, seen, -1)
    views = data["views"][:, rows] if "views" in data else None
    augmentation = FeatureAugmentation(mix=options.mix if views is not None else 0.0, noise=options.noise)
    seed = options.seed + fold
    feed = Feed(
        ArraySource(data["embeddings"][rows], views), targets,
        batch_size=128, epochs=options.epochs, seed=seed, augmentation=augmentation,
    )  # fmt: skip
    tail = AdapterTail(data["embeddings"].shape[1], options.hidden, seed=seed)
    chosen = {key: yaml.safe_load(value) for key, _, value in (item.partition("=") for item in options.set)}
    method = build_method(
        options.method, tail, chosen, n_old=n_known, n_classes=options.classes, n_rows=len(rows), seed=seed
    )

    @torch.no_grad()
    def heads(finished: Method, x: np.ndarray) -> np.ndarray:
        return finished.predict_logits(torch.from_numpy(np.asarray(x, dtype=np.float32))).argmax(1).numpy()

    found = {}
    optimisation = Optimisation(lr=options.lr, weight_decay=options.weight_decay)
    epochs = (epoch.number for epoch in train(method, feed, optimisation)) if method.trains else [options.epochs]
    for epoch in epochs:
        if epoch in options.at or epoch == options.epochs:
            labelled = seen >= 0
            finished = deepcopy(method).eval()  # the read-out of a method without heads must not disturb its training
            with torch.no_grad():
                finished.finish(feed)
            on_training = heads(finished, data["embeddings"][rows])
            metrics = evaluate(
                train_predicted=on_training[labelled],
                train_truth=seen[labelled],
                test_predicted=heads(finished, data["embeddings"][hold]),
                test_truth=truth,
                n_old=n_known,
                n_classes=int(place.max()) + 1,
                n_clusters=options.classes,
            ).metrics
            held = (metrics["in_bacc"][group] for group in ("all", "old", "new"))
            found[epoch] = (*held, metrics["tr_bacc"]["new"], len(np.unique(on_training)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("features", help=".npz with embeddings, labels (-1 = unlabelled) and perhaps views")
    parser.add_argument("--method", default="dts")
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE")
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument(
        "--labelled-only", action="store_true", help="leave the unlabelled rows out: every head is judged"
    )
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--at", type=int, nargs="*", default=[], help="also print after these epochs")
    parser.add_argument("--folds", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--weight-decay", type=float, default=5e-5)
    parser.add_argument("--hidden", type=int, default=None)
    parser.add_argument("--mix", type=float, default=1.0)
    parser.add_argument("--noise", type=float, default=0.5)
    options = parser.parse_args()
    with np.load(options.features, allow_pickle=False) as file:
        data = {key: file[key] for key in ("embeddings", "labels", "views") if key in file}
    if options.labelled_only:
        rows = np.flatnonzero(data["labels"] >= 0)
        data = {key: value[:, rows] if key == "views" else value[rows] for key, value in data.items()}
        options.classes = len(np.unique(data["labels"]))
    names = ("lr", "weight_decay", "hidden", "mix", "noise")
    tuned = "".join(f" {n}={getattr(options, n)}" for n in names if getattr(options, n) != parser.get_default(n))
    folds = [run_fold(options, data, fold) for fold in range(options.folds)]
    for epoch in folds[0]:
        values = np.array([fold[epoch] for fold in folds])
        mean = " / ".join(f"{v:.1f}" for v in values.mean(0)[:3])
        each = ", ".join(f"{v:.1f}" for v in values[:, 0])
        print(
            f"{options.method} {' '.join(options.set)}{tuned} epoch {epoch}: all / known / novel {mean} (folds {each}); "
            f"training rows that play novel {values.mean(0)[3]:.1f}; "
            f"heads in use {values.mean(0)[4]:.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
