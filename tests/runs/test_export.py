"""The exported file answers like the model: with onnxruntime alone, for any batch, after edits; or it is not written."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from finished import Finished
from rowssl.api import fit
from rowssl.cli import app
from rowssl.config import build_config
from rowssl.core.errors import InputError
from rowssl.runs.classifier import Classifier
from rowssl.runs.export import export_onnx
from rowssl.runs.run import Run
from runs.test_classifier import embeddings, vit_run

onnxruntime = pytest.importorskip("onnxruntime")
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "onnx_predict.py"


def opened(path: Path) -> tuple[Any, dict[str, Any]]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session, {key: json.loads(value) for key, value in session.get_modelmeta().custom_metadata_map.items()}


def same(model: Classifier, path: Path, inputs: np.ndarray) -> list[str]:
    """The classes that file and model both give the inputs, the file in two batches of odd sizes."""
    session, about = opened(path)
    parts = [session.run(None, {about["input_kind"]: part}) for part in (inputs[:3], inputs[3:])]
    scores, label, distance = (np.concatenate(one) for one in zip(*parts, strict=True))
    x = model.trunk_of_views(inputs) if model.takes_images else torch.from_numpy(inputs)
    expected = model.predict_trunk(x)
    ids = [about["class_ids"][c] for c in label]
    assert ids == [one.class_id for one in expected]
    assert [about["class_names"][c] for c in label] == [one.name for one in expected]
    assert [about["class_kinds"][c] for c in label] == [one.kind for one in expected]
    np.testing.assert_allclose(scores[np.arange(len(label)), label], [p.confidence for p in expected], atol=1e-4)
    np.testing.assert_allclose(distance, [p.distance for p in expected], rtol=1e-2, atol=1e-2)
    np.testing.assert_allclose(scores.sum(1), 1, atol=1e-4)
    return ids


def test_the_example_answers_like_the_model_without_torch_or_rowssl(finished: Finished, tmp_path: Path):
    done = export_onnx(Classifier.load(finished.run), tmp_path / "deep" / "model.onnx")
    assert (done.checked, done.real) == (200, 100)
    assert [file.name for file in done.path.parent.iterdir()] == ["model.onnx"]
    content = done.path.read_bytes()
    assert len(content) == done.size
    assert str(Path.home()).encode() not in content
    assert b"site-packages" not in content

    rng = np.random.default_rng(0)
    images = [*finished.fresh[:70], Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8))]
    images += [finished.fresh[1].resize((40, 25)), finished.fresh[2].resize((11, 150))]  # wide, and a long strip
    files = [tmp_path / f"{i}.png" for i in range(len(images))]
    for image, file in zip(images, files, strict=True):
        image.save(file)
    guard = (  # the example in a process where torch and rowssl cannot be imported
        "import sys, runpy; sys.modules.update(torch=None, rowssl=None); sys.argv = sys.argv[1:]; "
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    command = [sys.executable, "-c", guard, str(EXAMPLE), str(done.path), *map(str, files)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    expected = Classifier.load(finished.run).predict_images(images)
    assert lines[0].split("\t") == ["file", "class", "name", "kind", "confidence", "far"]
    for line, file, one in zip(lines[1:], files, expected, strict=True):
        name, class_id, class_name, kind, confidence, far = line.split("\t")
        assert (name, class_id, class_name, kind) == (str(file), one.class_id, one.name, one.kind)
        assert float(confidence) == pytest.approx(one.confidence, abs=2e-4)
        assert (far == "far") == one.far
    assert expected[70].far
    assert len({one.class_id for one in expected}) > 5


def test_edits_hold_in_the_file(finished: Finished, own_run: Path, tmp_path: Path):
    views = np.stack([Classifier.load(own_run).clean_view(image) for image in finished.fresh[:150]])
    before = same(Classifier.load(own_run), export_onnx(Classifier.load(own_run), tmp_path / "before.onnx").path, views)
    novel = sorted({one for one in before if one.startswith("novel")}, key=before.count)
    Run.load(own_run).rename("a", "Null – 零")
    Run.load(own_run).merge("b", *novel[:1])
    Run.load(own_run).split(novel[-1])
    after = same(Classifier.load(own_run), export_onnx(Classifier.load(own_run), tmp_path / "after.onnx").path, views)
    _, about = opened(tmp_path / "after.onnx")
    assert about["class_names"][about["class_ids"].index("a")] == "Null – 零"
    assert novel[0] not in about["class_ids"]
    for old, new in zip(before, after, strict=True):
        expected = {novel[0]: ["b"], novel[-1]: [f"{novel[-1]}.1", f"{novel[-1]}.2"]}.get(old, [old])
        assert new in expected
    assert {f"{novel[-1]}.1", f"{novel[-1]}.2"} <= set(after)


def test_the_file_says_what_it_needs(finished: Finished, tmp_path: Path):
    model = Classifier.load(finished.run / "model")
    export_onnx(Classifier.load(finished.run / "model"), tmp_path / "model.onnx")
    session, about = opened(tmp_path / "model.onnx")
    size = model.encoder.image_size
    assert about["class_ids"] == list(model.class_ids)
    assert about["class_kinds"] == ["known"] * 5 + ["novel"] * 5
    assert (about["input_kind"], about["image_size"], about["far_limit"]) == ("pixels", size, 1.0)
    assert f"{size} x {size}" in about["recipe"]
    (taken,) = session.get_inputs()
    assert (taken.name, taken.type, taken.shape[1:]) == ("pixels", "tensor(uint8)", [size, size, 3])
    assert isinstance(taken.shape[0], str)  # any number of rows


@pytest.mark.parametrize("method", ["dts", "kmeans"])
def test_a_model_of_embeddings(tmp_path: Path, method: str):
    x = embeddings(tmp_path / "x.npz")
    train = {"epochs": 1, "batch_size": 32}
    content = {"data": {"source": str(tmp_path / "x.npz")}, "classes": 3, "method": {"name": method}, "train": train}
    fit(build_config(content), tmp_path / "run")
    assert export_onnx(Classifier.load(tmp_path / "run"), tmp_path / "model.onnx").real == 100
    same(Classifier.load(tmp_path / "run"), tmp_path / "model.onnx", x)
    assert opened(tmp_path / "model.onnx")[1]["width"] == 12
    (tmp_path / "x.npz").unlink()  # training rows are gone: random ones will do
    assert export_onnx(Classifier.load(tmp_path / "run"), tmp_path / "model.onnx").real == 0


def test_a_transformer_at_another_resolution_is_a_part_of_the_file(tmp_path: Path):
    run = vit_run(tmp_path, tail="blocks:1", image_size=24)  # its positions are for 16 pixels
    done = export_onnx(Classifier.load(run), tmp_path / "model.onnx")
    model = Classifier.load(run)
    (tmp_path / "vit.safetensors").unlink()
    assert done.real == 40
    same(model, done.path, np.random.default_rng(1).integers(0, 256, (9, 24, 24, 3), dtype=np.uint8))


def test_a_file_that_answers_otherwise_is_refused_and_the_old_one_stays(finished: Finished, tmp_path, monkeypatch):
    path = tmp_path / "model.onnx"
    path.write_text("old")
    monkeypatch.setattr(
        "rowssl.runs.export.FromPixels.forward", lambda self, pixels: self.network(pixels.permute(0, 3, 1, 2) / 300.0)
    )
    with pytest.raises(InputError, match=r"^The exported file gives .*, so it was not written\.$"):
        export_onnx(Classifier.load(finished.run), path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_mistakes_are_one_sentence(finished: Finished, tmp_path, monkeypatch, capsys):
    def refused(*arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", ["rowssl", "export", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            app.main()
        assert stop.value.code == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        return line

    assert "is a folder" in refused(finished.run, "--onnx", tmp_path)
    assert "no finished run" in refused(tmp_path, "--onnx", tmp_path / "m.onnx")
    (tmp_path / "file").write_text("")
    assert "cannot be written" in refused(finished.run, "--onnx", tmp_path / "file" / "m.onnx")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    assert "pip install 'rowssl[export]'" in refused(finished.run, "--onnx", tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx").exists()


def test_the_command_says_what_it_checked(finished: Finished, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["rowssl", "export", str(finished.run), "--onnx", str(tmp_path / "m.onnx")])
    with suppress(SystemExit):  # what it prints tells
        app.main()
    printed = capsys.readouterr()
    assert "answers like the model on 200 inputs (100 training rows, 100 random)" in printed.out
    assert printed.err == ""
    assert len(printed.out.splitlines()) == 1
