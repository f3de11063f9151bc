"""Large data take other ways than small ones: files stay on disk, rows pass in pieces. The answers must not depend on it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.metrics import adjusted_rand_score

from rowssl.api import fit
from rowssl.clustering import kmeans as row_module
from rowssl.clustering.kmeans import assign, kmeans, semi_supervised_kmeans
from rowssl.config import build_config
from rowssl.core.errors import InputError
from rowssl.core.memory import release
from rowssl.data import embeddings
from rowssl.data.feed import ArraySource, Feed
from rowssl.data.labels import encode_labels
from rowssl.data.table import read_table
from rowssl.encoders.tails import AdapterTail
from rowssl.methods import dts
from rowssl.methods._kernels import largest, nearest_prototype
from rowssl.methods.dts import DTS
from rowssl.report import build
from rowssl.runs import layout, outlier


def mixture(rows: int = 600, classes: int = 8, width: int = 12, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    truth = rng.permutation(np.arange(rows) % classes)
    x = 2 * rng.normal(size=(classes, width))[truth] + rng.normal(size=(rows, width)) + 3
    return x.astype(np.float32), truth


def test_large_arrays_of_an_uncompressed_npz_stay_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, truth = mixture(50)
    labels = np.where(truth < 4, truth, -1)
    for name, save in (("plain", np.savez), ("packed", np.savez_compressed)):
        save(tmp_path / f"{name}.npz", labels=labels, embeddings=np.asfortranarray(x), truth=truth, views=x[None])
    whole = read_table(tmp_path / "plain.npz")
    monkeypatch.setattr(embeddings, "_MAP_BYTES", 256)
    mapped, packed = read_table(tmp_path / "plain.npz"), read_table(tmp_path / "packed.npz")
    assert isinstance(mapped.embeddings, np.memmap)
    assert isinstance(mapped.views, np.memmap)
    assert not isinstance(packed.embeddings, np.memmap)
    for other in (mapped, packed):
        assert other.embeddings is not None
        np.testing.assert_array_equal(other.embeddings, x)
        assert other.fingerprint() == whole.fingerprint()
    data = bytearray((tmp_path / "plain.npz").read_bytes())
    data[data.index(x.T[3].tobytes()) + 2] ^= 1
    (tmp_path / "plain.npz").write_bytes(data)
    with pytest.raises(InputError, match="damaged"):
        read_table(tmp_path / "plain.npz")


@pytest.mark.parametrize("kind", ["int64", "int32", "uint8"])
def test_whole_numbers_are_encoded_as_one_by_one(kind: str) -> None:
    rng = np.random.default_rng(1)
    parts = [rng.integers(0, 12, 40).astype(kind), rng.integers(0, 15, 30).astype(kind)]
    if kind != "uint8":
        parts[0][::3] = -1
    ids, names = embeddings._encode(parts, "here")
    plain, same = encode_labels(np.concatenate(parts).tolist())
    assert names == same
    np.testing.assert_array_equal(ids, plain)
    with pytest.raises(InputError, match="the label of row 1 is -2"):
        embeddings._encode([np.array([0, -2])], "here")


def shared_pages() -> int:
    """Bytes of files that are resident in this process."""
    text = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(r"RssFile:\s+(\d+)", text)[1])  # type: ignore[index]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="resident memory is read from /proc")
def test_pages_that_were_read_are_given_back(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((2**15, 256), dtype=np.float32))  # 32 MB
    x = np.load(tmp_path / "x.npy", mmap_mode="r")
    before = shared_pages()
    assert float(x.sum()) == x.size
    touched = shared_pages()
    release(np.asarray(x[10:20])[None])
    assert touched - before > 16e6
    assert touched - shared_pages() > 16e6
    assert float(x[-1].sum()) == 256
    own = np.ones(3)
    release(own)
    release(None)
    assert own.sum() == 3


def test_rows_that_are_centred_when_asked_for_give_the_same_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    x, truth = mixture()
    targets = np.where((truth < 3) & (np.arange(len(truth)) % 2 == 0), truth, -1)
    eager = kmeans(x, 8, n_init=2), semi_supervised_kmeans(x, targets, 8, n_init=2)
    near = assign(x, x[:5])
    monkeypatch.setattr(row_module, "COPY_VALUES", 0)
    products = kmeans(x, 8, n_init=2), semi_supervised_kmeans(x, targets, 8, n_init=2)  # of rows as they are
    for one, other in zip(eager, products, strict=True):
        assert torch.equal(one.labels, other.labels)
        torch.testing.assert_close(one.centers, other.centers)
        assert one.inertia == pytest.approx(other.inertia, rel=1e-6)
    assert torch.equal(near[0], assign(x, x[:5])[0])
    monkeypatch.setattr(row_module, "FAR", 0.0)
    lazy = kmeans(x, 8, n_init=2), semi_supervised_kmeans(x, targets, 8, n_init=2)
    for one, other in zip(eager, lazy, strict=True):
        assert torch.equal(one.centers, other.centers)
        assert torch.equal(one.labels, other.labels)
        assert one.inertia == other.inertia


def test_rows_far_from_zero_are_centred_before_they_are_multiplied(monkeypatch: pytest.MonkeyPatch) -> None:
    """As they are, products of rows of length 1e4 would have no digits left for distances of 1."""
    monkeypatch.setattr(row_module, "COPY_VALUES", 0)
    x, truth = mixture()
    found, far = kmeans(x, 8), kmeans(x + 5e3, 8)
    assert not row_module.Centred(torch.from_numpy(x + 5e3), torch.from_numpy(x + 5e3).mean(0)).near
    assert adjusted_rand_score(found.labels, far.labels) > 0.99
    assert adjusted_rand_score(truth, far.labels) == pytest.approx(adjusted_rand_score(truth, found.labels), abs=0.01)


@pytest.mark.parametrize(("rows", "columns", "k"), [(3, 5000, 15), (7, 4097, 15), (2, 64, 1), (2, 63, 1), (4, 40, 15)])
def test_the_largest_of_each_row_are_those_of_topk(rows: int, columns: int, k: int) -> None:
    values = torch.randn(rows, columns, generator=torch.Generator().manual_seed(columns))
    for table in (values, values.round(decimals=1), values.T.contiguous().T):
        assert torch.equal(largest(table, k), table.topk(k, dim=1).values)
        assert torch.equal(nearest_prototype(table), table.argmax(0))
    assert nearest_prototype(torch.zeros(3, 0)).shape == (0,)


def started(monkeypatch: pytest.MonkeyPatch, limit: int, **options: Any) -> DTS:
    x, truth = mixture(400)
    monkeypatch.setattr(dts, "START_ROWS", limit)
    feed = Feed(ArraySource(x, x[None]), np.where(truth < 4, truth, -1), batch_size=32, epochs=1, seed=0)
    method = DTS(AdapterTail(12), n_old=4, n_classes=8, n_rows=400, queue_size=64, queue_init="data", **options)
    method.start(feed)
    return method


@pytest.mark.parametrize("proto_init", ["queue", "train"])
def test_dts_starts_from_the_same_keys_when_it_computes_no_others(
    monkeypatch: pytest.MonkeyPatch, proto_init: str
) -> None:
    whole, some = (started(monkeypatch, limit, proto_init=proto_init) for limit in (400, 200))
    torch.testing.assert_close(whole.queue.keys, some.queue.keys)
    assert torch.equal(whole.queue.rows, some.queue.rows)
    torch.testing.assert_close(some.prototypes.norm(dim=1), torch.ones(8))
    if proto_init == "queue":
        torch.testing.assert_close(whole.prototypes, some.prototypes)
    centres = started(monkeypatch, 100, classifier_init="semi_kmeans").classifier.weight
    assert bool(torch.isfinite(centres).all())


def test_limits_of_far_hold_from_pieces_and_from_fewer_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    x, truth = mixture(3000)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    targets = np.where(truth < 2, truth, -1)
    whole, _ = outlier.fit_far(unit, truth, targets, seed=0)
    monkeypatch.setattr(outlier, "PIECE", 100)
    pieces, _ = outlier.fit_far(unit, truth, targets, seed=0)
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(pieces.state_dict()[name], value, rtol=1e-3, atol=1e-4)
    monkeypatch.setattr(outlier, "MEASURED", 1000)
    fewer, facts = outlier.fit_far(unit, truth, targets, seed=0)
    assert facts["rows"] <= 1000
    torch.testing.assert_close(fewer.limits, whole.limits, rtol=0.1, atol=0.0)


def test_a_fit_of_a_file_on_disk_is_the_fit_of_the_same_rows_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, truth = mixture(400)
    np.savez(tmp_path / "rows.npz", embeddings=x, labels=np.where(truth < 4, truth, -1), truth=truth)
    content = {"data": {"source": str(tmp_path / "rows.npz")}, "train": {"epochs": 1, "batch_size": 64}, "classes": 8}
    monkeypatch.setattr(layout, "LEAST", 10**6)  # no t-SNE: it takes seconds, and a map of its own
    run = fit(build_config(content), tmp_path / "memory")
    small = {(embeddings, "_MAP_BYTES"): 1, (outlier, "PIECE"): 64, (layout, "PIECE"): 64, (build, "PIECE"): 7}
    for (module, name), value in {**small, (layout, "MAP_ROWS"): 100}.items():
        monkeypatch.setattr(module, name, value)
    again = fit(build_config(content), tmp_path / "disk")
    assert isinstance(again.problem.table.embeddings, np.memmap)
    np.testing.assert_array_equal(run.answers.feature, again.answers.feature)
    np.testing.assert_array_equal(run.answers.head, again.answers.head)
    for name in ("predictions.csv", "classes.csv"):
        assert (tmp_path / "memory" / name).read_bytes() == (tmp_path / "disk" / name).read_bytes()
    for name, value in load_file(tmp_path / "memory" / "model" / "far.safetensors").items():
        other = load_file(tmp_path / "disk" / "model" / "far.safetensors")[name]
        torch.testing.assert_close(other, value, rtol=1e-3, atol=1e-3)
    points = {}
    for folder in ("memory", "disk"):
        text = (tmp_path / folder / "report.html").read_text()
        points[folder] = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])  # type: ignore[index]
    assert len(points["memory"]["x"]) == 400
    assert points["memory"]["row"] == []
    rows = points["disk"]["row"]
    assert len(rows) == len(points["disk"]["x"]) == 100
    for key in ("name", "class", "labelled", "confidence"):
        assert points["disk"][key] == [points["memory"][key][row] for row in rows]
