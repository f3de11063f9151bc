"""Files of embeddings."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from rowssl.core.errors import InputError
from rowssl.data.feed import ArraySource
from rowssl.data.table import read_table

ROWS = np.random.default_rng(3).normal(size=(6, 4)).astype(np.float32)


def saved(folder: Path, **arrays: object) -> Path:
    np.savez(folder / "e.npz", **{"embeddings": ROWS, **arrays})
    return folder / "e.npz"


def test_npy_is_memory_mapped(tmp_path: Path) -> None:
    np.save(tmp_path / "e.npy", ROWS.astype(np.float16))
    table = read_table(tmp_path / "e.npy")
    assert isinstance(table.embeddings, np.memmap)
    assert table.embeddings.dtype == np.float16
    assert table.names[:2] == ("row 0", "row 1")
    assert table.labels.tolist() == [-1] * 6
    assert not table.has_images
    assert table.take([2, 1]).fingerprint() != table.take([1, 2]).fingerprint()


@pytest.mark.parametrize("kind", [np.float64, np.int64, np.uint8])
def test_other_numbers_become_float32(tmp_path: Path, kind: type) -> None:
    np.save(tmp_path / "e.npy", np.arange(6).reshape(3, 2).astype(kind))
    table = read_table(tmp_path / "e.npy")
    assert table.embeddings is not None
    assert table.embeddings.dtype == np.float32
    assert table.embeddings[2].tolist() == [4, 5]


def test_npz_with_everything(tmp_path: Path) -> None:
    path = saved(
        tmp_path,
        labels=np.array([5, -1, 20, -1, -1, 5]),
        truth=np.array([5, 100, 20, 20, 5, 5]),
        views=np.stack([ROWS, ROWS]),
        test_embeddings=ROWS[:2],
        test_truth=np.array([100, 5]),
        unknown=np.array([object()], dtype=object),  # never looked at
    )
    table = read_table(path)
    assert table.class_names == ("5", "20", "100")  # one numbering for labels, truth and test
    assert table.labels.tolist() == [0, -1, 1, -1, -1, 0]
    assert table.truth is not None
    assert table.truth.tolist() == [0, 2, 1, 1, 0, 0]
    assert table.views is not None
    assert table.views.shape == (2, 6, 4)
    assert table.test is not None
    assert table.test.labels.tolist() == [2, 0]
    assert table.test.class_names == table.class_names
    assert read_table(saved(tmp_path)).truth is None


def test_text_labels(tmp_path: Path) -> None:
    table = read_table(saved(tmp_path, labels=np.array(["cat", "", "dog", "cat", "-1", "nan"])))
    assert table.class_names == ("cat", "dog")
    assert table.labels.tolist() == [0, -1, 1, 0, -1, -1]
    table = read_table(saved(tmp_path, labels=np.array([1, np.nan, 0, -1, 2, 2])))
    assert table.labels.tolist() == [1, -1, 0, -1, 2, 2]


def test_safetensors(tmp_path: Path) -> None:
    save_file({"embeddings": ROWS, "labels": np.array([0, 1, -1, -1, 1, 0])}, tmp_path / "e.safetensors")
    table = read_table(tmp_path / "e.safetensors")
    assert table.embeddings is not None
    np.testing.assert_array_equal(table.embeddings, ROWS)
    assert table.labels.tolist() == [0, 1, -1, -1, 1, 0]
    (tmp_path / "e.safetensors").write_bytes(b"no tensors here")
    with pytest.raises(InputError, match=r"e.safetensors cannot be read: "):
        read_table(tmp_path / "e.safetensors")


def test_labels_in_a_csv(tmp_path: Path) -> None:
    labels = tmp_path / "labels.csv"
    labels.write_text("row,label\n5,x\n0,y\n")
    table = read_table(saved(tmp_path, labels=np.arange(6)), labels=labels)  # the CSV file comes before the array
    assert table.class_names == ("x", "y")
    assert table.labels.tolist() == [1, -1, -1, -1, -1, 0]
    labels.write_text("kind\n1\n0\n\n\n1\n10\n")
    table = read_table(saved(tmp_path), labels=labels, label_column="kind")
    assert table.labels.tolist() == [1, 0, -1, -1, 1, 2]
    labels.write_text("row,label\n6,x\n")
    with pytest.raises(InputError, match=r"labels.csv row 2 names row '6', but rows are numbered from 0 to 5"):
        read_table(saved(tmp_path), labels=labels)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite(tmp_path: Path, value: float) -> None:
    bad = ROWS.copy()
    bad[4, 1] = bad[5, 0] = value
    with pytest.raises(InputError, match=r"e.npz: row 4 of embeddings holds a value that is not finite"):
        read_table(saved(tmp_path, embeddings=bad))
    with pytest.raises(InputError, match="row 4 of views holds"):
        read_table(saved(tmp_path, views=np.stack([ROWS, bad])))
    with pytest.raises(InputError, match="row 4 of test_embeddings holds"):
        read_table(saved(tmp_path, test_embeddings=bad, test_truth=np.arange(6)))


def test_too_large_for_float32(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="row 1 of embeddings"):
        read_table(saved(tmp_path, embeddings=np.array([[1.0], [1e300]])))


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"embeddings": ROWS[0]}, r"embeddings must be numbers of shape N x D, not float32 \(4,\)"),
        ({"embeddings": ROWS[:0]}, r"not float32 \(0, 4\)"),
        ({"embeddings": np.array([["a"]])}, "must be numbers"),
        ({"views": ROWS}, "views must be numbers of shape V x N x D"),
        ({"views": ROWS[None, :5]}, r"views are \(1, 5, 4\), but embeddings are \(6, 4\)"),
        ({"labels": np.arange(5)}, r"labels must be 6 whole numbers or texts, not int64 \(5,\)"),
        ({"labels": np.ones((6, 1), int)}, "labels must be 6 whole numbers"),
        ({"labels": np.zeros(6, complex)}, "not complex128"),
        ({"labels": np.full(6, 0.5)}, "the label of row 0 is 0.5"),
        ({"labels": np.array([0, 1, -2, 0, 0, 0])}, "the label of row 2 is -2"),
        ({"truth": np.arange(7)}, "truth must be 6"),
        ({"test_embeddings": ROWS}, "only one of 'test_embeddings' and 'test_truth'"),
        ({"test_embeddings": ROWS[:, :3], "test_truth": np.arange(6)}, "have 3 columns, but embeddings have 4"),
        ({"test_embeddings": ROWS, "test_truth": np.arange(5)}, "test_truth must be 6"),
    ],
)
def test_shapes_that_do_not_fit(tmp_path: Path, arrays: dict[str, np.ndarray], sentence: str) -> None:
    with pytest.raises(InputError, match=f"e.npz.*{sentence}"):
        read_table(saved(tmp_path, **arrays))


def test_files_that_are_no_arrays(tmp_path: Path) -> None:
    path = tmp_path / "e.npy"
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match=r"e.npy cannot be read: it holds Python objects \(pickle\)"):
        read_table(path)
    with pytest.raises(InputError, match=r"e.npz cannot be read: it holds Python objects \(pickle\)"):
        read_table(saved(tmp_path, labels=np.array([None] * 6, dtype=object)))
    for content in (b"", b"text", b"\x80\x04."):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"e.npy cannot be read"):
            read_table(path)
    good = saved(tmp_path)
    data = bytearray(good.read_bytes())
    data[120] ^= 0xFF  # within the array, so that its checksum fails
    good.write_bytes(data)
    with pytest.raises(InputError, match=r"e.npz cannot be read"):
        read_table(good)
    good.write_bytes(data[:-40])
    with pytest.raises(InputError, match=r"e.npz cannot be read"):
        read_table(good)
    np.savez(good, features=ROWS, y=np.arange(6))
    with pytest.raises(InputError, match="no array 'embeddings'; it has 'features', 'y'"):
        read_table(good)


def test_bfloat16_has_its_own_sentence(tmp_path: Path) -> None:
    header = b'{"embeddings":{"dtype":"BF16","shape":[1,2],"data_offsets":[0,4]}}'
    (tmp_path / "e.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(InputError, match="save it as float16 or float32"):
        read_table(tmp_path / "e.safetensors")


@pytest.mark.shared
def test_real_features(shared_dir: Path) -> None:
    table = read_table(shared_dir / "data" / "cifar100-lt-features.npz")
    assert table.embeddings is not None
    assert table.embeddings.dtype == np.float16
    assert table.embeddings.shape == (10_971, 256)
    assert table.class_names == tuple(str(i) for i in range(100))
    assert int((table.labels >= 0).sum()) == 2_736
    assert table.truth is not None
    known = table.labels >= 0
    np.testing.assert_array_equal(table.labels[known], table.truth[known])
    assert table.test is not None
    assert np.bincount(table.test.labels).tolist() == [50] * 100


@pytest.mark.parametrize("kind", ["npy", "npz"])
def test_a_file_that_is_cut_while_it_is_mapped_is_named(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lost pages would be a bus error, which no exception tells of."""
    monkeypatch.setattr("rowssl.data.embeddings._MAP_BYTES", 1024)
    path, rows = tmp_path / f"e.{kind}", np.random.default_rng(0).random((20_000, 8), dtype=np.float32)
    np.save(path, rows) if kind == "npy" else np.savez(path, embeddings=rows)
    table = read_table(path)
    assert table.embeddings is not None
    source = ArraySource(table.embeddings, table.embeddings[None])
    before = table.fingerprint()
    os.truncate(path, 8192)
    where = np.array([19_999])
    for reads in (table.fingerprint, lambda: source.clean(where), lambda: source.view(where, where * 0, 0)):
        with pytest.raises(InputError, match=f"{path.name} was changed after it was read"):
            reads()
    np.save(path, rows) if kind == "npy" else np.savez(path, embeddings=rows)
    assert read_table(path).fingerprint() == before
