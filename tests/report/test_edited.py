"""After an edit the report shows one set of classes: its accuracies are those of its confusion."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np

from rowssl.api import fit, load
from rowssl.config import build_config
from rowssl.report.build import build_report

CONTENT = {
    "data": {"name": "digits", "protocol": "longtail", "known": 5, "gamma": 10, "prior": "match"},
    "encoder": {"name": "pixels", "views": 0},
    "method": {"name": "kmeans"},
}


def shown(run: Path, name: str) -> float:
    """The first number (All) in the line of the report that has this name."""
    report = (run / "report.html").read_text(encoding="utf-8")
    found = re.search(rf'<th scope="row">{name}<.*?</th><td>([\d.]+)</td>', report, re.DOTALL)
    assert found is not None
    return float(found[1])


def test_accuracies_and_confusion_are_of_the_same_classes(tmp_path: Path) -> None:
    fit(build_config(CONTENT), tmp_path / "run")
    load(tmp_path / "run").merge("0", "1")
    data = build_report(load(tmp_path / "run"))
    assert data.confusion is not None
    counts = np.asarray(data.confusion)
    recall = 100 * np.mean(np.diag(counts) / counts.sum(1))
    measured = json.loads((tmp_path / "run" / "metrics.json").read_text())["user_in_bacc"]["all"]
    assert abs(shown(tmp_path / "run", "In-bACC, as a user judges") - recall) < 0.06
    assert measured > recall + 1  # what the fit measured stays in its file
