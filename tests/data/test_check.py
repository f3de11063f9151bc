"""What `check` finds in real folders and embeddings, and how it says so."""

from __future__ import annotations

import io
import json
import shutil
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from sklearn.datasets import load_digits

from rowssl.core.errors import InputError
from rowssl.data import check as module
from rowssl.data.check import CheckReport, check, print_report
from rowssl.data.table import Table, read_table
from rowssl.report.profiles import checked_sizes


def picture(path: Path, shade: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (6, 6), (shade, 0, 0)).save(path)


def digits(count: int = 600) -> Table:
    data = load_digits()
    rows = data.data[:count].astype(np.float32)
    return Table(data.target[:count], tuple("0123456789"), tuple(f"row {i}" for i in range(count)), embeddings=rows)


def printed(report: CheckReport, encoding: str = "utf-8", width: int = 100) -> str:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    print_report(report, Console(file=stream, width=width))
    stream.seek(0)
    return stream.read()


def kinds(report: CheckReport) -> set[str]:
    return {item.kind for item in report.suspicious}


@pytest.fixture
def messy(tmp_path: Path) -> Path:
    root = tmp_path / "in"
    for i in range(5):
        picture(root / "cat" / f"{i}.png", i)
    for i in range(3):
        picture(root / "Cat " / f"{i}.png", 20 + i)
    picture(root / "[bold]dog" / "a.png", 40)
    picture(root / "unknown" / "a.png", 41)
    picture(root / "unknown" / "b.png", 42)
    picture(root / "unlabelled" / "x.png", 50)
    shutil.copy(root / "cat" / "0.png", root / "Cat " / "copy.png")
    shutil.copy(root / "cat" / "1.png", root / "unlabelled" / "copy.png")
    (root / "cat" / "broken.png").write_bytes(b"")
    return root


def test_messy_folder(messy: Path) -> None:
    report = check(messy)
    assert (report.rows, report.labelled, report.unlabelled, report.classes) == (14, 12, 2, 4)
    assert report.class_sizes == {"Cat ": 4, "[bold]dog": 1, "cat": 5, "unknown": 2}
    assert [item.name for item in report.skipped] == ["cat/broken.png"]
    assert report.duplicates == (("Cat /copy.png", "cat/0.png"), ("cat/1.png", "unlabelled/copy.png"))
    assert [item.names for item in report.conflicts] == [("Cat /copy.png", "cat/0.png")]
    assert "'Cat ' and 'cat'" in report.conflicts[0].message
    found = {item.kind: item.names for item in report.suspicious}
    assert found == {"spelling": ("Cat ", "cat"), "like-unlabelled": ("unknown",), "single": ("[bold]dog",)}
    assert json.loads(json.dumps(report.as_dict()))["class_sizes"] == report.class_sizes


def test_messy_folder_in_words(messy: Path) -> None:
    text = printed(check(messy))
    for part in (
        "cat/broken.png: it is empty (0 bytes)",
        "'Cat ' (4), 'cat' (5)",
        "[bold]dog",
        "Cat /copy.png, cat/0.png: the same content is labelled",
        "1 class has one labelled row only",
        "█",
    ):
        assert part in text
    assert "nothing suspicious" not in text
    assert "####" in printed(check(messy), encoding="ascii")
    print_report(check(messy), Console(file=io.StringIO(), width=20))


def test_a_clean_folder(tmp_path: Path) -> None:
    for i in range(4):
        picture(tmp_path / ("a" if i % 2 else "b") / f"{i}.png", i)
    report = check(tmp_path)
    assert report.suspicious == report.conflicts == report.duplicates == report.skipped == ()
    assert "nothing suspicious" in printed(report)


def test_all_in_one_class_and_none_at_all(tmp_path: Path) -> None:
    picture(tmp_path / "images" / "a.png", 1)
    picture(tmp_path / "images" / "b.png", 2)
    assert kinds(check(tmp_path)) == {"one-class"}
    report = check(tmp_path / "images")
    assert (report.labelled, report.classes, report.class_sizes) == (0, 0, {})
    assert "nothing suspicious" in printed(report)
    ElementTree.fromstring(checked_sizes(report))


def test_a_mistake_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no images"):
        check(tmp_path)


def test_labels_and_columns_are_passed_on(tmp_path: Path) -> None:
    picture(tmp_path / "a.png", 1)
    (tmp_path / "d.csv").write_text("where,kind\na.png,x\n")
    assert check(tmp_path / "d.csv", image_column="where", label_column="kind").class_sizes == {"x": 1}
    (tmp_path / "l.csv").write_text("path,label\na.png,y\n")
    assert check(tmp_path, tmp_path / "l.csv").class_sizes == {"y": 1}


def test_exact_duplicates_among_embeddings() -> None:
    table = digits(50)
    rows = np.array(table.embeddings)
    rows[7], rows[9] = rows[3], rows[3]
    rows[11, 0], rows[12] = 0.0, rows[11]
    rows[12, 0] = -0.0
    report = check(replace(table, embeddings=rows))
    assert report.duplicates == (("row 3", "row 7", "row 9"), ("row 11", "row 12"))
    assert len(report.conflicts) == 2


def test_wrong_labels_are_found_by_their_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    table = digits()
    before = [item for item in check(table).suspicious if item.kind == "neighbours"]
    assert sum(len(item.names) for item in before) < 10
    labels = table.labels.copy()
    wrong = np.arange(0, 600, 30)
    labels[wrong] = (labels[wrong] + 5) % 10
    spoilt = replace(table, labels=labels)
    (found,) = (item for item in check(spoilt).suspicious if item.kind == "neighbours")
    rows = {int(name.split(":")[0].removeprefix("row ")) for name in found.names}
    assert len(rows & set(wrong.tolist())) >= 14
    assert len(rows - set(wrong.tolist())) < 10
    monkeypatch.setattr(module, "_BLOCK_VALUES", 5_000)  # 8 rows at a time
    (again,) = (item for item in check(spoilt).suspicious if item.kind == "neighbours")
    assert again.names == found.names
    monkeypatch.setattr(module, "NEIGHBOUR_LIMIT", 300)
    (some,) = (item for item in check(spoilt).suspicious if item.kind == "neighbours")
    assert some.message.startswith("of 300 labelled rows compared")
    assert check(spoilt).suspicious == check(spoilt).suspicious


def test_neighbours_survive_zeros_and_large_values() -> None:
    rows = np.zeros((40, 3), np.float32)
    rows[:20] = 3e38
    with np.errstate(all="raise"):
        check(Table(np.arange(40) // 20, ("a", "b"), [f"row {i}" for i in range(40)], embeddings=rows))


def test_truth_stays_hidden(tmp_path: Path) -> None:
    np.savez(tmp_path / "e.npz", embeddings=np.eye(4), labels=[0, 0, -1, -1], truth=[0, 0, 1, 2])
    report = check(tmp_path / "e.npz")
    assert (report.kind, report.classes, report.class_sizes) == ("embeddings", 1, {"0": 2})


def many(classes: int) -> CheckReport:
    sizes = {f"class <{i}>": classes - i for i in range(classes)}
    return CheckReport("here", "images", 9, 9, 0, classes, sizes, (), (("a",) * 20,) * 30, (), ())


def test_long_lists_are_cut() -> None:
    text = printed(many(45))
    assert "and 15 more classes, down to 1 labelled" in text
    assert "class <29>" in text
    assert "class <30>" not in text
    assert "a, a, a, a, a and 15 more" in text
    assert "  and 22 more" in text


@pytest.mark.parametrize("classes", [1, 3, 60, 61, 300])
def test_bars_are_an_svg(classes: int) -> None:
    root = ElementTree.fromstring(checked_sizes(many(classes)))
    space = "{http://www.w3.org/2000/svg}"
    bars = [bar for bar in root.findall(f"{space}rect") if bar.find(f"{space}title") is not None]
    widths = [float(bar.get("width", 0)) for bar in bars]
    assert len(widths) == classes
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] >= 1
    if classes == 3:
        assert widths == pytest.approx([widths[0], widths[0] * 2 / 3, widths[0] / 3], abs=0.1)
    assert bars[0].findtext(f"{space}title") == f"class <0>: {classes}"
    assert (len(root.findall(f"{space}text")) > 1) == (classes <= 60)


@pytest.mark.shared
def test_real_features_hold_copies(shared_dir: Path) -> None:
    report = check(read_table(shared_dir / "data" / "cifar100-lt-features.npz"))
    assert (report.labelled, report.unlabelled, report.classes) == (2_736, 8_235, 50)
    assert report.class_sizes["0"] == 250
    assert len(report.duplicates) == 7
    assert len(report.conflicts) == 1
