"""Large data are clustered from a sample; for clusters that are the answer, iterations over all rows go to the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rowssl.api import fit
from rowssl.clustering import kmeans as module
from rowssl.clustering.kmeans import assign, kmeans, semi_supervised_kmeans
from rowssl.config import build_config
from rowssl.data.feed import ArraySource, Feed
from rowssl.encoders.tails import AdapterTail
from rowssl.methods import build_method
from rowssl.runs.edits import Edits
from runs.test_scale import mixture


def sampling(monkeypatch: pytest.MonkeyPatch, close: float = module.CLOSE) -> None:
    """Treat 400 rows as very many."""
    monkeypatch.setattr(module, "SAMPLE_ROWS", 300)
    monkeypatch.setattr(module, "SAMPLE_ABOVE", 375)
    monkeypatch.setattr(module, "FINE_EACH", 30)
    monkeypatch.setattr(module, "CLOSE", close)


def test_starts_from_a_sample_reach_the_same_inertia(monkeypatch: pytest.MonkeyPatch) -> None:
    x, truth = mixture(3000)
    targets = np.where((truth < 4) & (np.arange(len(truth)) % 3 == 0), truth, -1)
    whole = kmeans(x, 8), semi_supervised_kmeans(x, targets, 8)
    sampling(monkeypatch)
    sampled = kmeans(x, 8), semi_supervised_kmeans(x, targets, 8)
    for one, other in zip(whole, sampled, strict=True):
        assert other.inertia == pytest.approx(one.inertia, rel=0.01)
        assert other.labels.shape == one.labels.shape
        assert other.inertia <= float(((torch.from_numpy(x) - other.centers[other.labels]) ** 2).sum()) * 1.001
    assert (sampled[1].labels.numpy()[targets >= 0] == targets[targets >= 0]).all()
    assert torch.equal(kmeans(x, 8).labels, sampled[0].labels)


def test_all_rows_are_asked_to_the_end(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without clusters that are apart one look leaves much to be done."""
    x = np.random.default_rng(0).standard_normal((3000, 6), dtype=np.float32)
    targets = np.where((x[:, 0] > 0.5) & (np.arange(len(x)) % 3 == 0), 0, -1)
    whole = kmeans(x, 12, tol=0), semi_supervised_kmeans(x, targets, 12, tol=0)
    sampling(monkeypatch, close=1.0)  # one look has to do
    looked = kmeans(x, 12, tol=0), semi_supervised_kmeans(x, targets, 12, tol=0)
    ended = kmeans(x, 12, tol=0, to_the_end=True), semi_supervised_kmeans(x, targets, 12, tol=0, to_the_end=True)
    for all_rows, quick, thorough in zip(whole, looked, ended, strict=True):
        assert quick.n_iter == 1
        assert thorough.n_iter > 5
        assert thorough.inertia < quick.inertia * 0.99
        assert thorough.inertia == pytest.approx(all_rows.inertia, rel=0.01)
        free = torch.from_numpy(targets < 0) if all_rows is whole[1] else slice(None)
        assert torch.equal(assign(x, thorough.centers)[0][free], thorough.labels[free])
    assert (ended[1].labels.numpy()[targets >= 0] == 0).all()
    monkeypatch.setattr("rowssl.core.console.EVERY", 0.0)
    kmeans(x, 12, tol=0, to_the_end=True, progress=True)
    assert "iterations at most: 5 of 100" in capsys.readouterr().err


@pytest.mark.parametrize("how", ["kmeans", "gcd"])
def test_clusters_that_are_the_answer_are_asked_to_the_end(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(1).standard_normal((1500, 6), dtype=np.float32)
    targets = np.where((x[:, 0] > 0.5) & (np.arange(len(x)) % 3 == 0), 0, -1)
    sampling(monkeypatch, close=1.0)  # one look has to do
    feed = Feed(ArraySource(x), targets, batch_size=64, epochs=1, seed=0)
    method = build_method(how, AdapterTail(6), {}, n_old=1, n_classes=9, n_rows=len(x), seed=0)
    method.finish(feed)
    with torch.no_grad():
        answer = method.predict_logits(torch.from_numpy(x)).argmax(1)
        z = method.unit_features(feed)
    free = torch.from_numpy(targets < 0)
    means = torch.stack([z[(answer == c) & (free if how == "gcd" and c else True)].mean(0) for c in range(9)])
    distance = (means - method.classifier.weight.detach()).norm(dim=1)
    assert float(distance[1:].max()) < 0.02  # every novel class is at the mean of its rows


def test_test_rows_are_clustered_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lenient number that is judged on clusters of the test rows."""
    x, truth = mixture(1500, width=4)
    labels = np.where(truth < 4, truth, -1)
    rows = {"embeddings": x[:300], "labels": labels[:300], "truth": truth[:300]}
    np.savez(tmp_path / "rows.npz", **rows, test_embeddings=x[300:], test_truth=truth[300:])
    seen: list[tuple[Any, Any]] = []

    def watched(features: Any, k: int, **rules: Any) -> Any:
        seen.append((features, kmeans(features, k, **rules)))
        return seen[-1][1]

    sampling(monkeypatch, close=1.0)
    monkeypatch.setattr("rowssl.runs.fit.kmeans", watched)
    content = {"data": {"source": str(tmp_path / "rows.npz")}, "method": {"name": "kmeans"}, "classes": 8}
    fit(build_config(content), tmp_path / "run")
    ((features, found),) = seen
    assert found.n_iter > 1
    assert torch.equal(assign(features, found.centers)[0], found.labels)


def test_a_large_class_is_split_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    z = np.random.default_rng(0).standard_normal((2000, 6), dtype=np.float32)
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    sampling(monkeypatch, close=1.0)
    split = Edits(("a", "novel-01"), 1, "m").split("novel-01", z)
    directions = np.array(split.history[0]["directions"])
    part = (z @ directions.T).argmax(1)
    means = np.stack([z[part == p].mean(0) for p in range(2)])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    assert (means * directions).sum(1).min() > 0.9997  # both are where their own pictures lie
