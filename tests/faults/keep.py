"""Make the models that later versions must still read: `python -m faults.keep FOLDER`, once for each format.

A run and an estimator on 140 of the bundled digits as embeddings, a run on the same as pictures, and what they said of 50
other ones.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from rowssl.api import fit
from rowssl.config import build_config
from rowssl.runs.classifier import Classifier, Prediction
from rowssl.runs.run import Run
from rowssl.sklearn import OpenWorldClassifier

PEOPLE = ("report.html", "tensorboard", "checkpoints", "predictions.csv", "classes.csv", ".lock", ".edits.lock")


def main(folder: str) -> None:
    """Train, ask, and keep what a later version reads."""
    from sklearn.datasets import load_digits

    out = Path(folder)
    pixels, digits = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(digits))[:190]
    rows, digits = (pixels[order] / 16).astype(np.float32), digits[order]
    trained, asked = rows[:140], rows[140:]
    labels = np.where((digits < 5) & (np.arange(190) % 2 == 0), digits, -1)[:140]
    out.mkdir(parents=True)
    np.save(out / "asked.npy", asked)
    keep_embeddings(out, trained, labels, digits[:140], asked)
    keep_pictures(out, trained, labels, asked)


def keep_embeddings(out: Path, trained: np.ndarray, labels: np.ndarray, truth: np.ndarray, asked: np.ndarray) -> None:
    """`run`, `estimator` and `answers.json`."""
    np.savez(out / "digits.npz", embeddings=trained, labels=labels, truth=truth)
    content = {"data": {"source": str(out / "digits.npz")}, "classes": 10, "train": {"epochs": 20, "batch_size": 32}}
    fit(build_config(content), out / "run")
    Run.load(out / "run").rename("0", "zero")
    estimator = OpenWorldClassifier("simgcd", n_classes=10, epochs=10).fit(trained, labels)
    estimator.save(out / "estimator")
    answers = {
        "run": said(Classifier.load(out / "run").predict_embeddings(asked)),
        "estimator": estimator.predict(asked).tolist(),
        "scores": estimator.predict_proba(asked).round(6).tolist(),
    }
    (out / "answers.json").write_text(json.dumps(answers))
    (out / "digits.npz").unlink()
    strip(out / "run")


def keep_pictures(out: Path, trained: np.ndarray, labels: np.ndarray, asked: np.ndarray) -> None:
    """`pictures`, a run with an encoder and a reduction, and `pictures.json`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number, row in enumerate(trained):
            picture(row).save(folder / f"{number:03}.png")
        known = [f"{number:03}.png,{label}" for number, label in enumerate(labels) if label >= 0]
        (folder / "labels.csv").write_text("\n".join(["file,label", *known]))
        content = {
            "data": {"source": name, "labels": f"{name}/labels.csv"},
            "encoder": {"name": "pixels", "image_size": 8, "reduce": 32, "views": 2, "cache": f"{name}/cache"},
            "classes": 10,
            "train": {"epochs": 20, "batch_size": 32},
        }
        fit(build_config(content), out / "pictures")
        Run.load(out / "pictures").rename("0", "zero")
        answers = said(Classifier.load(out / "pictures").predict_images([picture(row) for row in asked]))
    (out / "pictures.json").write_text(json.dumps(answers))
    strip(out / "pictures")


def picture(row: np.ndarray) -> Image.Image:
    """A digit of 64 numbers in [0, 1] as a picture of 8 x 8."""
    return Image.fromarray((row.reshape(8, 8) * 255).astype(np.uint8)).convert("RGB")


def said(predictions: list[Prediction]) -> list[list[object]]:
    return [[one.class_id, one.name, one.kind, one.second, round(one.confidence, 6), one.far] for one in predictions]


def strip(run: Path) -> None:
    """Without what is for people, and what a finished run does not need."""
    for name in PEOPLE:
        path = run / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
