"""A saved model: loaded from its files alone, it answers as in training, for each image by itself."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from finished import Finished, digit_pictures
from rowssl.api import fit
from rowssl.config import build_config
from rowssl.core.errors import InputError
from rowssl.methods import METHODS
from rowssl.runs.classifier import Classifier
from rowssl.runs.outlier import BANK, _bank_rows, fit_far


def embeddings(path: Path, rows: int = 160, views: bool = False) -> np.ndarray:
    """Three blobs in 12 dimensions, two of them with labels."""
    rng = np.random.default_rng(0)
    truth = np.arange(rows) % 3
    x = (np.eye(3, 12)[truth] * 4 + rng.normal(size=(rows, 12))).astype(np.float32)
    np.savez(path, embeddings=x, labels=np.where((truth < 2) & (np.arange(rows) % 2 == 0), truth, -1))
    return x


def test_an_answer_does_not_depend_on_the_other_images(finished: Finished):
    model = Classifier.load(finished.run)
    images = finished.fresh[:60]
    together = model.predict_images(images)
    for i in (0, 7, 31, 59):
        alone = model.predict_images([images[i]])[0]
        among_others = model.predict_images([*reversed(finished.fresh[60:97]), images[i]])[-1]
        for other in (alone, among_others):
            assert (other.class_id, other.second, other.far) == (
                together[i].class_id,
                together[i].second,
                together[i].far,
            )
            assert other.confidence == pytest.approx(together[i].confidence, abs=1e-5)
            assert other.distance == pytest.approx(together[i].distance, abs=1e-4)
    x = model.trunk(images)
    assert torch.allclose(model.scores(x)[5:6], model.scores(x[5:6]), atol=1e-5)
    assert torch.allclose(model.features(x).norm(dim=1), torch.ones(60), atol=1e-5)
    assert torch.allclose(model.scores(x).sum(1), torch.ones(60), atol=1e-5)


def test_it_says_of_the_training_files_what_predictions_csv_says(finished: Finished):
    model = Classifier.load(finished.run / "model")  # the model's own folder will do
    rows = list(csv.DictReader((finished.run / "predictions.csv").open()))
    answers = model.predict_images([Image.open(finished.pictures / row["file"]).convert("RGB") for row in rows])
    free = [a.class_id == row["class"] for a, row in zip(answers, rows, strict=True) if row["labelled"] == "no"]
    assert np.mean(free) > 0.995
    for answer, row in zip(answers, rows, strict=True):
        if row["labelled"] == "yes":  # a person's word counts, not the model's
            assert (row["class"], row["confidence"]) == (row["label"], "1.0000")
        elif answer.class_id == row["class"]:
            assert answer.confidence == pytest.approx(float(row["confidence"]), abs=5e-3)  # the cache is float16
            assert answer.kind == row["kind"]
    assert model.class_ids[: model.n_known] == ("a", "b", "c", "d", "e")
    assert len(model.class_ids) == 10
    known = [a.class_id for a, digit in zip(answers, finished.digits, strict=True) if digit == 0]
    assert np.mean(np.array(known) == "a") > 0.8


@pytest.mark.parametrize("method", METHODS)
def test_every_method_ends_as_the_same_kind_of_model(tmp_path, method):
    x = embeddings(tmp_path / "x.npz")
    content = {
        "data": {"source": str(tmp_path / "x.npz")},
        "classes": 3,
        "method": {"name": method},
        "train": {"epochs": 1, "batch_size": 32},
    }
    run = fit(build_config(content), tmp_path / "run")
    model = Classifier.load(tmp_path / "run")
    found = model.predict_embeddings(x)
    free = run.problem.targets < 0
    said, second, confidence = (np.array([getattr(p, n) for p in found]) for n in ("class_id", "second", "confidence"))
    ids = np.array(run.names.ids)
    assert said[free].tolist() == ids[run.answers.head[free]].tolist()
    assert second[free].tolist() == ids[run.answers.second[free]].tolist()
    np.testing.assert_allclose(confidence[free], run.answers.confidence[free], atol=1e-5)
    np.testing.assert_array_equal(run.answers.head[~free], run.problem.targets[~free])
    other = np.where(said == ids[run.answers.head], second, said)  # what else the model would say
    assert other[~free].tolist() == ids[run.answers.second[~free]].tolist()
    np.testing.assert_allclose(model.features(torch.from_numpy(x)).numpy(), run.answers.feature, atol=1e-5)
    with pytest.raises(InputError, match="12 columns"):
        model.predict_embeddings(x[:, :5])
    with pytest.raises(InputError, match="embeddings"):
        model.predict_images([Image.new("RGB", (8, 8))])


def vit_run(folder: Path, **encoder: object) -> Path:
    """A run through a tiny transformer whose weights are in a file."""
    from safetensors.torch import save_file

    from rowssl.encoders.vit import Architecture, ViT

    images, digits = digit_pictures()
    (folder / "pictures").mkdir()
    lines = ["path,label"]
    for i in range(40):
        images[i].save(folder / "pictures" / f"{i:02d}.png")
        lines += [f"{i:02d}.png,{digits[i]}"] if i < 15 else []
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    torch.manual_seed(0)
    vit = ViT(Architecture(patch=4, dim=64, depth=2, heads=1, hidden=64, grid=4))
    save_file(vit.state_dict(), folder / "vit.safetensors")
    content = {
        "data": {"source": str(folder / "pictures"), "labels": str(folder / "labels.csv")},
        "encoder": {"name": str(folder / "vit.safetensors"), "image_size": 16, "views": 2, **encoder},
        "method": {"name": "simgcd"},
        "classes": 12,
        "train": {"epochs": 1, "batch_size": 16},
    }
    run = fit(build_config(content), folder / "run")
    model = Classifier.load(folder / "run")
    x = model.trunk([run.problem.table.image(i) for i in range(40)])
    assert x.shape[1:] == run.features.train.shape
    np.testing.assert_allclose(model.features(x).numpy(), run.answers.feature, atol=5e-3)
    return folder / "run"


def test_a_pretrained_encoder_is_found_again_or_asked_for(tmp_path):
    run = vit_run(tmp_path, tail="blocks:1")
    moved = tmp_path / "elsewhere.safetensors"
    (tmp_path / "vit.safetensors").rename(moved)
    with pytest.raises(InputError, match=r"vit\.safetensors.*--encoder PATH") as refused:
        Classifier.load(run)
    assert "\n" not in str(refused.value)
    image = Image.open(tmp_path / "pictures" / "00.png").convert("RGB")
    there = Classifier.load(run, encoder=str(moved)).predict_images([image])[0]
    assert there.class_id in Classifier.load(run, encoder=str(moved)).class_ids

    from safetensors.torch import load_file, save_file

    weights = load_file(moved)
    weights["blocks.0.mlp.fc1.bias"] += 1
    save_file(weights, moved)
    with pytest.raises(InputError, match=r"fingerprint differs.*--encoder PATH"):
        Classifier.load(run, encoder=str(moved))


def test_the_projection_of_wide_features_is_a_part_of_the_model(tmp_path):
    run = vit_run(tmp_path, tail="adapter:16", reduce=8)
    assert (run / "model" / "reduction.safetensors").exists()


def letter(text: str, rng: np.random.Generator) -> Image.Image:
    """A printed letter of the size of a digit."""
    image = Image.new("L", (24, 24))
    place = (int(rng.integers(4, 9)), int(rng.integers(1, 6)))
    ImageDraw.Draw(image).text(place, text, fill=255, font_size=18)
    return image.resize((8, 8), Image.Resampling.BOX).convert("RGB")


def test_far_images_are_flagged_and_fresh_digits_are_not(finished: Finished):
    model, rng = Classifier.load(finished.run), np.random.default_rng(0)

    def share(images: list[Image.Image]) -> float:
        return float(np.mean([answer.far for answer in model.predict_images(images)]))

    assert share(finished.fresh) < 0.025  # 1 % by design, of 1,297 digits
    noise = [Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)) for _ in range(100)]
    assert share(noise) > 0.95
    assert share([Image.fromarray(255 - np.asarray(image)) for image in finished.fresh[:100]]) > 0.95
    assert share([letter(text, rng) for text in "ABCDEFGHJKLMNPQRSTUVWXYZ" * 3]) > 0.3
    assert model.facts["far"]["share"] == 0.01


def test_the_limits_hold_for_fresh_rows_though_labelled_ones_sit_on_their_class():
    rng = np.random.default_rng(0)
    means = rng.normal(size=(5, 16)) * 2

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        head = rng.integers(5, size=count)
        x = means[head] + rng.normal(size=(count, 16))
        return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32), head

    feature, head = draw(600)
    labelled = np.arange(600) < 200
    centre = means / np.linalg.norm(means, axis=1, keepdims=True)
    feature[labelled] = centre[head[labelled]]  # as if training had pulled them all the way
    far, facts = fit_far(feature, head, np.where(labelled, head, -1), seed=0)
    assert facts["rows"] == 400
    fresh = torch.from_numpy(draw(4000)[0])
    assert 0.001 < float((far(fresh) > 1).float().mean()) < 0.02
    assert bool((far(-fresh[:50]) > 1).all())


def test_rows_to_compare_with_cover_rare_classes():
    head = np.concatenate([np.zeros(9000, int), np.ones(30, int), np.full(3000, 7)])
    rows = _bank_rows(head, seed=0)
    assert len(np.unique(rows)) == len(rows) == BANK
    assert (head[rows] == 1).sum() == 30
    assert (head[rows] == 7).sum() >= BANK // 3


def test_what_is_not_a_whole_model_is_refused_in_a_sentence(own_run: Path, tmp_path):
    with pytest.raises(InputError, match="no finished run"):
        Classifier.load(tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        Classifier.load(tmp_path / "nowhere")
    tail = own_run / "model" / "tail.safetensors"
    content = tail.read_bytes()
    tail.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(InputError, match=r"tail\.safetensors is missing or damaged"):
        Classifier.load(own_run)
    tail.write_bytes(content)
    manifest = own_run / "model" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"temperature": 0.1', '"temperature": 9.0'))
    with pytest.raises(InputError, match=r"manifest\.json is damaged"):
        Classifier.load(own_run)


def test_a_model_of_another_version_says_what_to_do(own_run: Path):
    from rowssl.core.files import read_directory, write_directory

    tensors, facts = read_directory(own_run / "model")
    rest = {key: value for key, value in facts.items() if key not in ("sha256", "self", "format", "model_format")}
    write_directory(own_run / "model", tensors, rest)
    with pytest.raises(InputError, match="another version of rowssl: run the same `rowssl fit` command again"):
        Classifier.load(own_run)
    write_directory(own_run / "model", {k: v for k, v in tensors.items() if k != "far"}, {**rest, "model_format": 1})
    with pytest.raises(InputError, match="does not hold a whole model"):
        Classifier.load(own_run)


def test_the_model_folder_alone_is_enough(finished: Finished, tmp_path):
    alone = Path(shutil.copytree(finished.run / "model", tmp_path / "digits"))
    (tmp_path / "edits.json").write_text("{}")  # of something else
    image = finished.fresh[0]
    assert Classifier.load(alone).predict_images([image]) == Classifier.load(finished.run).predict_images([image])
    assert {file.suffix for file in alone.iterdir()} == {".safetensors", ".json"}
    assert json.loads((alone / "manifest.json").read_text())["encoder"]["name"] == "pixels"
