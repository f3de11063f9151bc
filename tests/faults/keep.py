"""Make the models that later versions must still read: `python -m faults.keep FOLDER`, once for each format.

A run and an estimator on 140 of the bundled digits as embeddings, and what they said of 50 other ones.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np

from rowssl.config import build_config
from rowssl.edit_run import rename
from rowssl.estimator import OpenWorldClassifier
from rowssl.fit import fit
from rowssl.model import load_model

PEOPLE = ("report.html", "tensorboard", "checkpoints", "predictions.csv", "classes.csv", ".lock", ".edits.lock")


def main(folder: str) -> None:
    """Train, ask, and keep what a later version reads."""
    from sklearn.datasets import load_digits

    out = Path(folder)
    out.mkdir(parents=True)
    pixels, digits = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(digits))[:190]
    rows, digits = (pixels[order] / 16).astype(np.float32), digits[order]
    trained, asked = rows[:140], rows[140:]
    labels = np.where((digits < 5) & (np.arange(190) % 2 == 0), digits, -1)[:140]
    np.savez(out / "digits.npz", embeddings=trained, labels=labels, truth=digits[:140])
    content = {"data": {"source": str(out / "digits.npz")}, "classes": 10, "train": {"epochs": 20, "batch_size": 32}}
    fit(build_config(content), out / "run")
    rename(out / "run", "0", "zero", report=False)
    said = load_model(out / "run").predict_embeddings(asked)
    estimator = OpenWorldClassifier("simgcd", n_classes=10, epochs=10).fit(trained, labels)
    estimator.save(out / "estimator")
    answers = {
        "run": [[one.class_id, one.name, one.kind, one.second, round(one.confidence, 6), one.far] for one in said],
        "estimator": estimator.predict(asked).tolist(),
        "scores": estimator.predict_proba(asked).round(6).tolist(),
    }
    (out / "answers.json").write_text(json.dumps(answers))
    np.save(out / "asked.npy", asked)
    (out / "digits.npz").unlink()
    for name in PEOPLE:
        path = out / "run" / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
