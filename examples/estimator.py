"""Find the kinds of iris nobody has named: a pipeline on rows of four measurements, with text labels, saved and used again."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_iris
from sklearn.model_selection import train_test_split

from rowssl import OpenWorldClassifier


def main() -> None:
    iris = load_iris()
    names = iris.target_names[iris.target]
    X, X_new, truth, truth_new = train_test_split(iris.data, names, test_size=30, random_state=0)

    # Half of the setosa and versicolor have a label; virginica has none at all.
    told = (truth != "virginica") & (np.random.default_rng(0).random(len(truth)) < 0.5)
    y = np.where(told, truth, "")

    model = OpenWorldClassifier("dts", n_classes=3).fit(X, y)
    print(f"{told.sum()} of {len(y)} rows have a label; classes: {', '.join(model.classes_)}")
    print(f"accuracy on new rows of known classes: {model.score(X_new, truth_new):.2f}")

    (novel,) = model.novel_classes_
    found = truth[model.transduction_ == novel]
    kinds, counts = np.unique(found, return_counts=True)
    print(f"{novel} holds " + ", ".join(f"{count} {kind}" for kind, count in zip(kinds, counts, strict=True)))

    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model")
        again = OpenWorldClassifier.load(Path(folder) / "model")
    for row, kind in zip(X_new[:5], truth_new[:5], strict=True):
        probability = again.predict_proba([row])[0]
        print(f"{row} -> {again.predict([row])[0]} ({probability.max():.2f}), in truth {kind}")


if __name__ == "__main__":
    main()
