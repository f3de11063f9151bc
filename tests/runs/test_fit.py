"""Whole runs on real images (the bundled digits), from the command to the run directory."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import rowssl.runs.fit as fitting
from rowssl.api import fit
from rowssl.cli.fit import demo_config
from rowssl.config import build_config
from rowssl.core.errors import InputError
from rowssl.core.files import read_directory, sha256_of
from rowssl.methods import METHODS
from rowssl.runs.answers import answer
from rowssl.runs.classifier import Classifier

DATA = ["--data", "digits", "--protocol", "longtail", "--known", "5", "--gamma", "10", "--prior", "mismatch"]


def small(method: str, **train: object) -> dict:
    """The demo's problem with few epochs."""
    content = demo_config(method, 0)
    content["encoder"] = {"name": "pixels", "views": 2}
    content["train"] = {"epochs": 3, "batch_size": 64, **train}
    return content


@pytest.mark.parametrize("score", ["prototype", "instance", "loss"])
def test_tailedness_that_phi_was_measured_by_is_what_every_row_would_be_told(score, monkeypatch):
    content = small("dts")
    content["method"]["options"] = {**content["method"].get("options", {}), "score": score}
    handed = []
    monkeypatch.setattr(
        fitting,
        "answer",
        lambda *a, tailedness=None: handed.append(tailedness) or answer(*a, 100, tailedness=tailedness),
    )
    run = fit(build_config(content))
    assert (handed[0] is None) == (score == "loss")  # losses are remembered of training rows alone
    with run.method.unchanged():
        asked = answer(run.method, run.features.train, torch.device("cpu"), 100).tailedness
    assert len(np.unique(asked)) > 3
    np.testing.assert_array_equal(run.answers.tailedness, asked)


@pytest.mark.parametrize("method", ["kmeans", "simgcd", "dts"])
def test_run_directory(tmp_path, method):
    run = fit(build_config(small(method)), tmp_path / "run")
    folder = tmp_path / "run"
    metrics = json.loads((folder / "metrics.json").read_text())
    for name in ("tr_acc", "tr_bacc", "in_bacc", "in_bacc_rematch", "in_bacc_recluster_rematch"):
        assert set(metrics[name]) == {"all", "old", "new"}
        assert 0 <= metrics[name]["all"] <= 100
    assert metrics["classes"]["heads"] == 10
    assert metrics["seconds"] > 0
    assert metrics["peak_memory_mb"] > 0

    predictions = list(csv.DictReader((folder / "predictions.csv").open()))
    assert len(predictions) == len(run.problem.table)
    known = {str(c) for c in range(5)}
    assert {row["kind"] for row in predictions if row["class"] in known} <= {"known"}
    assert all(row["class"].startswith("novel-") for row in predictions if row["kind"] == "novel")
    classes = list(csv.DictReader((folder / "classes.csv").open()))
    sizes = [int(row["size"]) for row in classes]
    assert sizes == sorted(sizes, reverse=True)
    assert sum(sizes) == len(predictions)
    names = [run.problem.class_names[t] for t in run.problem.targets if t >= 0]
    assert {row["class"]: int(row["labelled"]) for row in classes if row["labelled"] != "0"} == {
        name: names.count(name) for name in set(names)
    }

    tensors, facts = read_directory(folder / "model")
    assert facts["classes"][:5] == ["0", "1", "2", "3", "4"]
    assert tensors["classifier"]["weight"].shape[0] == 10
    assert "<script" in (folder / "report.html").read_text()
    assert (folder / "metrics.jsonl").exists() == (method != "kmeans")


def test_known_heads_keep_their_labels(tmp_path):
    """Row i of the classifier is known class i also for k-means, which knows no classes while it clusters."""
    run = fit(build_config(small("kmeans")))
    labelled = run.problem.targets >= 0
    agree = (run.answers.head == run.problem.targets)[labelled].mean()
    assert agree > 0.6


def test_the_same_configuration_gives_the_same_weights(tmp_path):
    for name in ("a", "b"):
        fit(build_config(small("dts")), tmp_path / name)
    hashes = [read_directory(tmp_path / name / "model")[1]["sha256"] for name in ("a", "b")]
    assert hashes[0] == hashes[1]


def test_a_kill_between_the_last_checkpoint_and_its_line_loses_no_line(tmp_path):
    fit(build_config(small("simgcd")), tmp_path / "run")
    log = tmp_path / "run" / "metrics.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:-1]))
    run = fit(build_config(small("simgcd")), tmp_path / "run")
    assert [row["epoch"] for row in run.curves] == [1, 2, 3]
    assert [json.loads(line)["epoch"] for line in log.read_text().splitlines()] == [1, 2, 3]


def test_another_configuration_in_the_same_folder_is_refused(tmp_path):
    fit(build_config(small("simgcd")), tmp_path / "run")
    with pytest.raises(InputError, match="other options"):
        fit(build_config(small("simgcd", lr=0.05)), tmp_path / "run")


@pytest.mark.parametrize("method", METHODS)
def test_hidden_labels_are_never_read(tmp_path, method):
    """The truth of unlabelled rows and of test rows may be anything: not one weight changes."""
    from sklearn.datasets import load_digits

    images, truth = load_digits(return_X_y=True)
    labels = np.where((truth < 5) & (np.arange(len(truth)) % 3 == 0), truth, -1)
    hashes, judged = [], []
    for seed in (0, 1):
        hidden = truth.copy()
        if seed:
            unlabelled = np.flatnonzero(labels < 0)
            hidden[unlabelled] = np.random.default_rng(seed).permutation(hidden[unlabelled])
        np.savez(
            tmp_path / f"{seed}.npz",
            embeddings=images[:240].astype(np.float32), labels=labels[:240], truth=hidden[:240],
            test_embeddings=images[-100:].astype(np.float32), test_truth=hidden[-100:],
        )  # fmt: skip
        content = {
            "data": {"source": str(tmp_path / f"{seed}.npz")},
            "classes": 10,
            "method": {"name": method},
            "train": {"epochs": 2, "batch_size": 64},
        }
        judged.append(fit(build_config(content), tmp_path / f"run{seed}").metrics["tr_acc"]["all"])
        hashes.append(read_directory(tmp_path / f"run{seed}" / "model")[1]["sha256"])
    assert hashes[0] == hashes[1]
    assert judged[0] != judged[1]  # the truth was another one indeed


def test_killed_anywhere_the_same_command_ends_in_the_same_weights(tmp_path):
    """kill -9 at several moments of a real process; the trunk cache, the checkpoints and the log all survive."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def command(out: Path) -> list[str]:
        options = ["--encoder", "pixels", "--views", "2", "--method", "dts", "--epochs", "30", "--batch-size", "64"]
        options += ["--cache", str(out) + "-cache", "--set", "train.save_seconds=0", "--out", str(out)]
        return [sys.executable, "-m", "rowssl", "fit", *DATA, *options]

    subprocess.run(command(tmp_path / "whole"), check=True, capture_output=True, env=environment)
    out = tmp_path / "killed"
    rng, kills = np.random.default_rng(0), 0
    for _ in range(8):
        process = subprocess.Popen(command(out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            if list(out.glob("checkpoints/step-*")):  # training has begun: now any moment is as good as another
                time.sleep(float(rng.uniform(0.0, 0.5)))
                break
            time.sleep(0.02)
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
        if kills == 2:
            break
    assert kills
    subprocess.run(command(out), check=True, capture_output=True, env=environment)
    for name in ("tail.safetensors", "classifier.safetensors"):
        assert sha256_of(out / "model" / name) == sha256_of(tmp_path / "whole" / "model" / name)
    epochs = [json.loads(line)["epoch"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert epochs == list(range(1, 31))


@pytest.mark.shared
def test_features_file_with_views_and_test_rows(tmp_path, shared_dir):
    content = {
        "data": {"source": str(shared_dir / "data" / "cifar100-lt-features.npz")},
        "classes": "oracle",
        "method": {"name": "dts"},
        "train": {"epochs": 1},
    }
    run = fit(build_config(content), tmp_path / "run")
    assert run.metrics["classes"]["heads"] == 100
    assert run.metrics["in_bacc"]["all"] > 5
    phi = run.curves[-1]["phi"]
    assert set(phi) == {"head", "tail", "head_known", "tail_known", "head_novel", "tail_novel"}
    assert all(0 <= value <= 10 for value in phi.values())


@pytest.mark.parametrize("views", [2, 0])
def test_from_pixels_through_the_last_block_of_a_transformer(tmp_path, views):
    """A ViT checkpoint with DINO's names: frozen blocks cached (or run on the fly), the last one trained."""
    import torch
    from safetensors.torch import load_file, save_file

    from rowssl.encoders.vit import Architecture, ViT

    torch.manual_seed(0)
    vit = ViT(Architecture(patch=4, dim=64, depth=3, heads=1, hidden=128, grid=4))
    save_file(vit.state_dict(), tmp_path / "vit.safetensors")
    content = small("dts", epochs=5)
    content["encoder"] = {
        "name": str(tmp_path / "vit.safetensors"),
        "tail": "blocks:1",
        "image_size": 16,
        "views": views,
    }
    content["encoder"]["view_recipe"] = "small"
    run = fit(build_config(content), tmp_path / "run")
    assert run.features.train.shape == (17, 64)  # tokens, not a pooled feature
    trained = load_file(tmp_path / "run" / "model" / "tail.safetensors")
    before = vit.state_dict()
    assert not torch.equal(trained["blocks.0.mlp.fc1.weight"], before["blocks.2.mlp.fc1.weight"])
    assert torch.equal(trained["norm.weight"], before["norm.weight"])
    total = [sum(row["loss"].values()) for row in run.curves]
    assert total[-1] < total[1]  # in the first epoch the queue is still filling
    assert run.metrics["in_bacc"]["all"] is not None


def test_views_on_the_fly_train_the_same_kind_of_model_as_cached_ones(tmp_path):
    """Wide pooled features are shortened in both; new views in every epoch need no mixing."""
    runs = {}
    for views in (2, 0):
        content = small("simgcd", epochs=2)
        content["encoder"] = {"name": "pixels", "views": views, "reduce": 16}
        runs[views] = fit(build_config(content), tmp_path / f"run-{views}")
    assert {run.features.train.shape for run in runs.values()} == {(16,)}
    assert {views: run.features.train.n_views for views, run in runs.items()} == {2: 2, 0: 2}
    first = runs[0].features.train
    rows, which = np.arange(4), np.zeros(4, dtype=np.int64)
    assert not np.array_equal(first.view(rows, which, 0).numpy(), first.view(rows, which, 1).numpy())
    again = Classifier.load(tmp_path / "run-0")
    assert again.encoder.tail is not None
    assert runs[0].metrics["in_bacc"]["all"] is not None
