"""Models of every format that was ever written load and answer as they did then; what is newer is refused with a sentence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from faults.keep import picture
from rowssl.core.errors import InputError
from rowssl.core.files import FORMAT, own_hash
from rowssl.runs.classifier import MODEL_FORMAT, Classifier
from rowssl.runs.run import ANSWERS_FORMAT, Run
from rowssl.sklearn import OpenWorldClassifier

KEPT = Path(__file__).resolve().parents[1] / "kept"
FOLDERS = sorted(folder.name for folder in KEPT.iterdir())


def test_there_is_a_model_of_this_format() -> None:
    assert f"format-{MODEL_FORMAT}" in FOLDERS, "python -m faults.keep tests/kept/format-N makes it"
    assert sum(file.stat().st_size for file in KEPT.rglob("*") if file.is_file()) < 400_000 * len(FOLDERS)


@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.parametrize("run", ["run", "pictures"])
def test_a_kept_model_answers_as_it_did(name: str, run: str) -> None:
    asked = np.load(KEPT / name / "asked.npy")
    model = Classifier.load(KEPT / name / run)
    for place in (KEPT / name / run, KEPT / name / run / "model"):
        assert Classifier.load(place).facts == model.facts
    if run == "pictures":
        answers = json.loads((KEPT / name / "pictures.json").read_text())
        predictions = model.predict_images([picture(row) for row in asked])
    else:
        answers = json.loads((KEPT / name / "answers.json").read_text())["run"]
        predictions = model.predict_embeddings(asked)
    assert len(predictions) == len(answers) == 50
    for one, (class_id, shown, kind, second, confidence, far) in zip(predictions, answers, strict=True):
        assert (one.class_id, one.name, one.kind, one.second, one.far) == (class_id, shown, kind, second, far)
        assert one.confidence == pytest.approx(confidence, abs=1e-5)
    assert {"zero", "1"} <= {one.name for one in predictions}  # an edit made then still holds


@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.parametrize("run", ["run", "pictures"])
def test_a_kept_run_can_be_opened(name: str, run: str) -> None:
    stored = Run.load(KEPT / name / run)
    assert len(stored.answers.head) == 140
    labelled = stored.problem.targets >= 0
    assert labelled.any()
    assert (stored.answers.head == stored.problem.targets)[labelled].all()  # whatever the model said then
    assert (stored.answers.confidence[labelled] == 1).all()
    assert stored.names.given is not None
    assert stored.names.given[0] == "zero"
    assert bool(stored.evaluation) == (run == "run")  # a folder of pictures knows no truth
    assert [row["epoch"] for row in stored.curves] == list(range(1, 21))


@pytest.mark.parametrize("name", FOLDERS)
def test_a_kept_estimator_answers_as_it_did(name: str) -> None:
    asked, answers = np.load(KEPT / name / "asked.npy"), json.loads((KEPT / name / "answers.json").read_text())
    estimator = OpenWorldClassifier.load(KEPT / name / "estimator")
    assert estimator.predict(asked).tolist() == answers["estimator"]
    np.testing.assert_allclose(estimator.predict_proba(asked), answers["scores"], atol=1e-5)


def renumbered(folder: Path, **numbers: int) -> None:
    """A manifest as a later version would write it."""
    manifest = folder / "manifest.json"
    content: dict[str, Any] = {**json.loads(manifest.read_text()), **numbers}
    manifest.write_text(json.dumps({**content, "self": own_hash(content)}))


@pytest.mark.parametrize(
    ("folder", "numbers"),
    [
        ("run/model", {"format": FORMAT + 1}),
        ("run/model", {"model_format": MODEL_FORMAT + 1}),
        ("run/answers", {"format": FORMAT + 1}),
        ("run/answers", {"answers_format": ANSWERS_FORMAT + 1}),
        ("estimator", {"format": FORMAT + 1}),
    ],
)
def test_what_is_newer_is_refused_in_one_sentence(folder: str, numbers: dict[str, int], tmp_path: Path) -> None:
    copy = Path(shutil.copytree(KEPT / f"format-{MODEL_FORMAT}", tmp_path / "kept"))
    renumbered(copy / folder, **numbers)
    read = {
        "estimator": OpenWorldClassifier.load,
        "run/model": Classifier.load,
        "run/answers": lambda _: Run.load(copy / "run"),
    }
    with pytest.raises(InputError) as error:
        read[folder](copy / folder)
    text = str(error.value)
    assert "\n" not in text
    assert str(copy / folder) in text
    assert f"format {max(numbers.values())}" in text
    assert "newer version of rowssl" in text
