"""CSV and parquet files of pictures."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
from PIL import Image

from rowssl.core.errors import InputError
from rowssl.data import labels as label_files
from rowssl.data.labels import labels_from_csv, read_csv
from rowssl.data.table import read_table


def png(shade: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (5, 4), (shade, 0, 0)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    for i, name in enumerate(("a.png", "b.png", "in/c.png")):
        (tmp_path / name).write_bytes(png(i))
    return tmp_path


def saved(folder: Path, columns: dict[str, Any], features: dict[str, Any] | None = None) -> Path:
    table = arrow.table(columns)
    if features is not None:
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    parquet.write_table(table, folder / "data.parquet")
    return folder / "data.parquet"


def test_csv_of_paths(folder: Path) -> None:
    path = folder / "data.csv"
    path.write_text(f"file,label,note\nin/c.png,10,\n{folder}/a.png,9,\nb.png,,\nb.png,-1,\n")
    table = read_table(path)
    assert table.names == ("in/c.png", f"{folder}/a.png", "b.png", "b.png")  # the order of the file
    assert table.class_names == ("9", "10")
    assert table.labels.tolist() == [1, 0, -1, -1]
    assert table.image(0).getpixel((0, 0)) == (2, 0, 0)


def test_csv_with_chosen_columns(folder: Path) -> None:
    path = folder / "data.csv"
    path.write_text("path,where,label,kind\nnope,a.png,x,y\n")
    table = read_table(path, image_column="where", label_column="kind")
    assert (table.names, table.class_names) == (("a.png",), ("y",))
    with pytest.raises(InputError, match=r"no column 'colour'; .*'path', 'where', 'label', 'kind'"):
        read_table(path, label_column="colour")


def test_csv_rows_that_cannot_be_read(folder: Path) -> None:
    path = folder / "data.csv"
    path.write_text("path,label\na.png,x\ngone.png,y\n")
    table = read_table(path)
    assert table.class_names == ("x",)
    assert [(item.name, item.reason) for item in table.skipped] == [("gone.png", "there is no such file")]
    path.write_text("path,label\na.png,x\n,y\n")
    with pytest.raises(InputError, match="row 3 has no path in column 'path'"):
        read_table(path)
    path.write_text("path,label\n")
    with pytest.raises(InputError, match=r"data.csv has no rows"):
        read_table(path)
    path.write_text("picture,kind\na.png,x\n")
    with pytest.raises(InputError, match=r"no column named path or file .*'picture', 'kind'"):
        read_table(path)


def test_csv_with_labels_in_another_file(folder: Path) -> None:
    path, labels = folder / "data.csv", folder / "labels.csv"
    path.write_text("path,label\na.png,old\nb.png,old\n")
    labels.write_text("path,label\nb.png,new\n")
    table = read_table(path, labels=labels)
    assert table.class_names == ("new",)
    assert table.labels.tolist() == [-1, 0]
    path.write_text("path\na.png\nb.png\na.png\n")
    labels.write_text("path,label\na.png,new\n")
    assert read_table(path, labels=labels).labels.tolist() == [0, -1, 0]  # every row of that name
    labels.write_text("row,label\n0,x\n1,y\n")
    assert read_table(path, labels=labels).labels.tolist() == [0, 1, -1]  # this row alone
    labels.write_text("label\nx\ny\nz\n")
    assert read_table(path, labels=labels).labels.tolist() == [0, 1, 2]
    path.write_text("path,label\na.png,old\nb.png,old\n")
    labels.write_text("label\nx\ny\n")
    assert read_table(path, labels=labels).class_names == ("x", "y")
    labels.write_text("path,label\nz.png,new\n")
    with pytest.raises(InputError, match=r"labels.csv row 2 names 'z.png', which is not among the images"):
        read_table(path, labels=labels)


def test_csv_keeps_no_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    for content in ("a,b\n1,2\n" + "\n" * 1000, "a,b\n" + "\n" * 1000 + "1,2\n", "a\n1\n" + "\n" * 1000):
        path.write_text(content)
        assert len(read_csv(path).rows) == 1
    path.write_text("label\nx\n\ny\n\n\n")  # in a file of one column they are rows without a label
    assert read_csv(path).rows == [(2, ["x"]), (3, [""]), (4, ["y"])]
    for count in (3, 4, 5):
        found = labels_from_csv(path, count, by_name=None, folder=None, label_column=None)
        assert found == ["x", None, "y", None, None][:count]
    for count in (2, 6):
        with pytest.raises(InputError, match=f"has {3 if count == 2 else 5} labels for {count} rows"):
            labels_from_csv(path, count, by_name=None, folder=None, label_column=None)


@pytest.mark.parametrize("line", ["\n", "\r", "\n\r", ",\n", ",,,,"])
def test_csv_rows_that_need_more_memory_than_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    path = tmp_path / "x.csv"
    path.write_text("a" + line * (2**20 // len(line)) + "b", newline="")
    monkeypatch.setattr(label_files, "available_memory", lambda: 2**26)
    monkeypatch.setattr(label_files.csv, "reader", lambda *_, **__: pytest.fail("the rows are made"))
    with pytest.raises(InputError, match=r"x\.csv needs 0\.\d GB to be read, more than the memory that is free$"):
        read_csv(path)
    with path.open("wb") as file:
        file.truncate(2**40)  # a sparse file takes no room
    with pytest.raises(InputError, match=r"needs 6597\.1 GB to be read"):
        read_csv(path)


def test_labels_of_names_that_look_alike(tmp_path: Path) -> None:
    """`a\\xff.png` is a name of its own, and how a name with the byte 0xff is shown."""
    pictures, labels = tmp_path / "pictures", tmp_path / "labels.csv"
    pictures.mkdir()

    def labelled(*names: bytes) -> dict[bytes, int]:
        for old in pictures.rglob("*.png"):
            old.unlink()
        for name in names:
            place = Path(os.fsdecode(os.path.join(os.fsencode(pictures), name)))
            place.parent.mkdir(exist_ok=True)
            place.write_bytes(png(1))
        table = read_table(pictures, labels=labels)
        paths = [os.fsencode(path.relative_to(pictures)) for path in table.paths or ()]
        return dict(zip(paths, table.labels.tolist(), strict=True))

    labels.write_text("path,label\na\\xff.png,cat\n")
    assert labelled(b"a\xff.png") == {b"a\xff.png": 0}
    assert labelled(b"a\xff.png", b"a\\xff.png") == {b"a\xff.png": -1, b"a\\xff.png": 0}
    with pytest.raises(InputError, match=r"labels\.csv row 2 names .*, which may mean 2 files"):
        labelled(b"a\xff.png", b"a/xff.png")  # a backslash may be meant as a slash
    labels.write_text("path,label\nb\\x85.png,cat\n")
    with pytest.raises(InputError, match="may mean 2 files"):
        labelled(b"b\x85.png", "b\x85.png".encode())  # a byte, and a control character
    labels.write_text(f"path,label\n{pictures}/b\\x85.png,cat\n")
    assert labelled(b"b\x85.png") == {b"b\x85.png": 0}


def test_parquet_of_hugging_face(folder: Path) -> None:
    pictures = [{"bytes": png(7), "path": "one.png"}, {"bytes": png(8), "path": None}, {"bytes": png(9), "path": "x\n"}]
    features = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": ["zebra", "ant", "bee"]}}
    path = saved(folder, {"id": [1, 2, 3], "image": pictures, "label": [2, 0, -1]}, features)
    table = read_table(path)
    assert table.class_names == ("zebra", "ant", "bee")  # the numbering of the file, not the alphabet
    assert table.labels.tolist() == [2, 0, -1]
    assert table.names == ("one.png", "row 1", "x\\n")
    assert table.has_images
    assert table.paths is None
    assert table.image(2).getpixel((0, 0)) == (9, 0, 0)
    path = saved(folder, {"image": pictures, "label": [2, 0, 3]}, features)
    with pytest.raises(InputError, match="row 2 has label 3, beyond its class names"):
        read_table(path)


def test_parquet_bytes_paths_and_holes(folder: Path) -> None:
    table = read_table(saved(folder, {"img": [png(1), None, b"no", png(4)], "class": ["b", "c", "d", None]}))
    assert [item.name for item in table.skipped] == ["row 1", "row 2"]
    assert table.names == ("row 0", "row 3")
    assert table.class_names == ("b",)
    assert table.labels.tolist() == [0, -1]
    assert table.image(1).getpixel((0, 0)) == (4, 0, 0)
    assert table.take([1]).image(0).getpixel((0, 0)) == (4, 0, 0)
    table = read_table(saved(folder, {"path": ["in/c.png", "a.png"], "target": [1.0, None]}))
    assert table.class_names == ("1",)
    assert table.image(0).getpixel((0, 0)) == (2, 0, 0)
    only_paths = arrow.array(
        [{"bytes": None, "path": "b.png"}], arrow.struct([("bytes", "binary"), ("path", "string")])
    )
    table = read_table(saved(folder, {"image": only_paths}))
    assert table.paths == (folder / "b.png",)
    assert table.labels.tolist() == [-1]


def test_parquet_is_not_decoded_when_read(folder: Path) -> None:
    table = read_table(saved(folder, {"img": [b"not an image"]}), check_images=False)
    assert len(table) == 1
    with pytest.raises(InputError, match="cannot read image row 0: it is not an image"):
        table.image(0)


def test_parquet_mistakes(folder: Path) -> None:
    path = saved(folder, {"a": [1], "b": [2]})
    with pytest.raises(InputError, match="no column named image, img or path; it has a, b"):
        read_table(path)
    with pytest.raises(InputError, match="no column 'c'; it has a, b"):
        read_table(path, image_column="c")
    with pytest.raises(InputError, match=r"column 'a' of .* holds neither images nor paths but int64"):
        read_table(path, image_column="a")
    path.write_bytes(b"no parquet")
    with pytest.raises(InputError, match=r"data.parquet is not a readable parquet file"):
        read_table(path)


def test_parquet_with_labels_in_another_file(folder: Path) -> None:
    labels = folder / "labels.csv"
    labels.write_text("row,label\n1,x\n")
    path = saved(folder, {"img": [png(1), png(2)], "label": [4, 5]})
    table = read_table(path, labels=labels)
    assert table.class_names == ("x",)
    assert table.labels.tolist() == [-1, 0]


def test_parquet_without_pyarrow(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(folder, {"img": [png(1)]})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"pip install 'rowssl\[data\]'"):
        read_table(path)


@pytest.mark.shared
def test_cifar100(shared_dir: Path) -> None:
    table = read_table(shared_dir / "data" / "cifar100" / "test.parquet", check_images=False)
    assert len(table) == 10_000
    assert table.class_names[:2] == ("apple", "aquarium_fish")
    assert np.bincount(table.labels).tolist() == [100] * 100
    image = table.image(9_999)
    assert (image.mode, image.size) == ("RGB", (32, 32))
    assert table.names[0].startswith("apple")


def test_whatever_a_parquet_library_makes_of_a_file_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    (tmp_path / "x.parquet").write_bytes(b"PAR1")

    def odd(*_: object, **__: object) -> object:
        raise IndexError

    monkeypatch.setattr(parquet, "read_schema", odd)
    with pytest.raises(InputError, match="is not a readable parquet file: IndexError"):
        read_table(tmp_path / "x.parquet")
