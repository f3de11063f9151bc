"""Labels as people write them."""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rowssl.core.errors import InputError
from rowssl.core.text import printable
from rowssl.data.labels import UNLABELLED, encode_labels, labels_from_csv, read_csv, relative_to


def written(tmp_path: Path, content: str | bytes) -> Path:
    path = tmp_path / "labels.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def by_row(path: Path, count: int, label_column: str | None = None) -> list[str | None]:
    return labels_from_csv(path, count, by_name=None, folder=None, label_column=label_column)


@pytest.mark.parametrize(
    ("values", "ids", "names"),
    [
        (["b", "a", "", "b"], [1, 0, -1, 1], ("a", "b")),
        ([10, 9, -1, 2], [2, 1, -1, 0], ("2", "9", "10")),
        (["10", "9", "-1", None], [1, 0, -1, -1], ("9", "10")),
        ([1.0, float("nan"), 0.0], [1, -1, 0], ("0", "1")),
        (["3.0", "NaN", "12.0", "null", "<NA>", "-1.0", " "], [0, -1, 1, -1, -1, -1, -1], ("3", "12")),
        (["10", "9", "x"], [0, 1, 2], ("10", "9", "x")),
        (["007", "7"], [0, 1], ("007", "7")),
        (["2.0", "x"], [0, 1], ("2.0", "x")),
        (["cat", "Cat", "cat "], [1, 0, 2], ("Cat", "cat", "cat ")),
        ([b"a", True, "none"], [1, 0, 2], ("True", "a", "none")),
        ([], [], ()),
    ],
)
def test_encode(values: list[object], ids: list[int], names: tuple[str, ...]) -> None:
    found, found_names = encode_labels(values)
    assert found.dtype == np.int64
    assert found.tolist() == ids
    assert found_names == names


@pytest.mark.parametrize("value", [-2, 0.5, float("inf"), -3.0])
def test_numbers_that_are_no_labels(value: float) -> None:
    with pytest.raises(InputError, match=f"f.npz: the label of row 1 is {value}"):
        encode_labels([0, value], where="f.npz")


def test_byte_order_mark_and_not_utf8(tmp_path: Path) -> None:
    assert read_csv(written(tmp_path, b"\xef\xbb\xbfpath,label\na,b\n")).columns == ["path", "label"]
    with pytest.raises(InputError, match=r"labels.csv is not UTF-8 text \(row 2\); save it again"):
        read_csv(written(tmp_path, "path,label\ncafé.png,x\n".encode("latin-1")))
    with pytest.raises(InputError, match="is not UTF-8"):
        read_csv(written(tmp_path, "path,label\n".encode("utf-16")))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "has no first row"),
        ("\n\na,b\n", "has no first row"),
        ("path,label\na,b\nc\n", "row 3 has 1 cells, but its first row names 2"),
        ("path,label\n\na,b,c\n", "row 3 has 3 cells, but its first row names 2"),
        ('path,label\na,b\n"c,d\n', "not a well-formed CSV file near row 3"),
        ('path\tlabel\n"a"b\tc\n', r"near row 2: '\\t' expected after"),  # the separator by its name
    ],
)
def test_malformed(tmp_path: Path, content: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        read_csv(written(tmp_path, content))


def test_separators_and_line_ends(tmp_path: Path) -> None:
    for separator in ",;\t":
        table = read_csv(written(tmp_path, f"row{separator}label\r\n0{separator}x\r\n"))
        assert table.rows == [(2, ["0", "x"])]


def test_missing_columns_are_named(tmp_path: Path) -> None:
    path = written(tmp_path, "picture,kind\na.png,x\n")
    with pytest.raises(InputError, match=r"no column named label or labels .*'picture', 'kind'"):
        by_row(path, 1)
    with pytest.raises(InputError, match=r"no column 'colour'; .*'picture', 'kind'"):
        by_row(path, 1, "colour")
    with pytest.raises(InputError, match="no column named row or index"):
        by_row(path, 1, "kind")
    with pytest.raises(InputError, match="no column named path or file"):
        labels_from_csv(path, 1, by_name={"a.png": 0}, folder=tmp_path, label_column="kind")


def test_by_row_number(tmp_path: Path) -> None:
    assert by_row(written(tmp_path, "row,label\n2,x\n0,y\n"), 4) == ["y", None, "x", None]
    for wrong in ("4", "-1", "1.5", "x", ""):
        with pytest.raises(InputError, match=r"row 2 names row .* numbered from 0 to 3"):
            by_row(written(tmp_path, f"row,label\n{wrong},x\n"), 4)
    with pytest.raises(InputError, match="row 3 labels '1' as 'y', but row 2 labels it as 'x'"):
        by_row(written(tmp_path, "row,label\n1,x\n1,y\n"), 4)


def test_one_label_for_each_row(tmp_path: Path) -> None:
    assert by_row(written(tmp_path, "label\nx\n\n-1\ny\n"), 4) == ["x", None, None, "y"]
    assert by_row(written(tmp_path, "label\nx\n\n\n"), 1) == ["x"]
    with pytest.raises(InputError, match="has 2 labels for 3 rows"):
        by_row(written(tmp_path, "label\nx\ny\n"), 3)


def test_relative_to(tmp_path: Path) -> None:
    assert relative_to("./a//b.png", tmp_path) == "a/b.png"
    assert relative_to(str(tmp_path / "a" / "b.png"), tmp_path) == "a/b.png"


label = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@settings(deadline=None)  # it writes files
@given(st.lists(label, max_size=12))
def test_any_text_survives_a_csv(labels: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "labels.csv"
        with open(path, "w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            writer.writerow(["row", "label"])
            writer.writerows(enumerate(labels))
        found = by_row(path, len(labels))
    assert found == [None if text.strip().lower() in UNLABELLED else printable(text) for text in labels]
    ids, names = encode_labels(labels)
    assert [-1 if text is None else 0 for text in found] == np.minimum(ids, 0).tolist()
    assert len(set(names)) == len(names)
