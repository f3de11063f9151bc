"""How many wrong labels are found: some labels of a collection are changed, then `rowssl.runs.label_issues` lists those it doubts.

python benchmarks/wrong_labels.py FEATURES.npz LABELS.csv [--share 0.05] [--seeds 3] [--kind known|novel|none]

FEATURES.npz holds `features` (N, D) of an encoder, `names` of the pictures and `labels`, what is on them; LABELS.csv is the
file a user would give (path,label). `known` gives a labelled picture another known class, `novel` gives a picture of a class
without labels a known one, `none` changes nothing, so that every issue is a false alarm. The method is `transfer` without tuning.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from pathlib import Path

import numpy as np

from rowssl.api import fit
from rowssl.config import build_config
from rowssl.core.console import quiet


def planted(
    given: np.ndarray, truth: np.ndarray, known: int, kind: str, share: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Labels (N,) with some wrong ones, and which rows have them."""
    rng = np.random.default_rng(seed)
    labels, labelled = given.copy(), np.flatnonzero(given >= 0)
    number = max(1, round(share * len(labelled)))
    if kind == "none":
        return labels, labelled[:0]
    if kind == "known":
        wrong = rng.choice(labelled, number, replace=False)
        labels[wrong] = (labels[wrong] + rng.integers(1, known, number)) % known
    else:
        wrong = rng.choice(np.flatnonzero((given < 0) & (truth >= known)), number, replace=False)
        labels[wrong] = rng.integers(0, known, number)
    return labels, wrong


def main() -> None:
    """One line for each seed and one for all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path)
    parser.add_argument("labels", type=Path)
    parser.add_argument("--share", type=float, default=0.05)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--kind", choices=("known", "novel", "none"), default="known")
    parser.add_argument("--method", default="transfer")
    args = parser.parse_args()
    with np.load(args.features, allow_pickle=False) as file:
        features, names, words = file["features"], file["names"], file["labels"]
    with args.labels.open(newline="") as file:
        said = {Path(row["path"]).name: row["label"] for row in csv.DictReader(file)}
    classes = sorted(set(said.values()))
    known = len(classes)
    classes += sorted(set(words.tolist()) - set(classes))
    place = {word: number for number, word in enumerate(classes)}
    truth = np.array([place[word] for word in words.tolist()])
    given = np.array([place.get(said.get(Path(name).name, ""), -1) for name in names.tolist()])
    total = np.zeros(4, dtype=int)
    for seed in range(args.seeds if args.kind != "none" else 1):
        labels, wrong = planted(given, truth, known, args.kind, args.share, seed)
        with tempfile.TemporaryDirectory() as folder, quiet(True):
            np.savez(Path(folder) / "x.npz", embeddings=features.astype(np.float32), labels=labels)
            content = {"data": {"source": f"{folder}/x.npz"}, "method": {"name": args.method}, "classes": len(classes)}
            run = fit(build_config(content))
        assert run.answers.issue is not None
        listed = np.flatnonzero(run.answers.issue >= 0)
        total += [len(listed), np.isin(listed, wrong).sum(), len(wrong), (labels >= 0).sum()]
    precision, recall = total[1] / max(1, total[0]), total[1] / max(1, total[2])
    print(
        f"{args.labels.parent.name} {args.labels.stem} {args.kind}: {total[3]} labels, {total[2]} wrong, "
        f"{total[0]} listed, {total[1]} of them rightly: precision {precision:.2f}, recall {recall:.2f}"
    )


if __name__ == "__main__":
    main()
