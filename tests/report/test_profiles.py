"""The picture of a split says what the split holds, in the SVG and in the terminal."""

from __future__ import annotations

import io
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.console import Console

from rowssl.data.splits import Split, make_split
from rowssl.report.charts import PALETTE
from rowssl.report.profiles import class_sizes, print_sizes, size_picture

COLOURS = {"labelled": PALETTE["known"][0], "known": PALETTE["known-pale"][0], "novel": PALETTE["novel"][0]}
SVG = "{http://www.w3.org/2000/svg}"
LABELS = np.repeat(np.arange(100), 500)
NAMES = [f"class {i}" for i in range(100)]


def bars(svg: str) -> dict[str, list[tuple[str, float]]]:
    """Tooltip and height of each bar, by colour."""
    found: dict[str, list[tuple[str, float]]] = {colour: [] for colour in COLOURS.values()}
    for rect in ElementTree.fromstring(svg).iter(f"{SVG}rect"):
        title = rect.find(f"{SVG}title")
        if title is not None:
            found[rect.attrib["fill"]].append((str(title.text), float(rect.attrib["height"])))
    return found


def printed(split: Split, labels: np.ndarray, width: int = 110, encoding: str = "utf-8") -> str:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    print_sizes(class_sizes(split, labels, NAMES), len(split.test), Console(file=stream, width=width))
    stream.flush()
    return stream.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]


def test_mismatch_is_seen_as_two_slopes() -> None:
    split = make_split(LABELS, dataset="cifar100", gamma=100, prior="mismatch")
    svg = size_picture(class_sizes(split, LABELS, NAMES))
    by_colour = bars(svg)
    labelled, known, novel = (by_colour[COLOURS[kind]] for kind in ("labelled", "known", "novel"))
    assert (len(labelled), len(known), len(novel)) == (50, 50, 50)
    assert labelled[0][0] == "class 0: 250 labelled images"
    assert known[0][0] == "class 0: 2 unlabelled images"
    heights = [height for _, height in labelled]
    assert heights == sorted(heights, reverse=True)
    assert [height for _, height in known] == heights[::-1]  # one axis for both panels
    assert heights[-1] > 5  # two images are still visible beside 250
    for text in ("labelled · 2,736", "unlabelled, novel classes · 5,499", "50 known classes", "log scale"):
        assert text in svg


def test_small_ratio_has_a_linear_axis_and_class_names() -> None:
    labels = np.repeat(np.arange(4), [10, 8, 6, 5])
    names = ["cat", "a <b> & \x00c", "eel\n", "x" * 80]
    svg = size_picture(class_sizes(make_split(labels, protocol="longtail"), labels, names))
    assert "log scale" not in svg
    texts = [element.text for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    assert "cat" in texts
    assert "a <b> & c" in texts
    assert any(text is not None and text.endswith("…") and len(text) < 40 for text in texts)
    (_, tallest), (_, next_one) = bars(svg)[COLOURS["labelled"]]
    assert tallest / next_one == pytest.approx(5 / 4, rel=1e-3)


def test_natural_sizes_are_drawn_from_large_to_small() -> None:
    labels = np.repeat(np.arange(40), np.random.default_rng(0).permutation(np.arange(2, 42)))
    split = make_split(labels, protocol="longtail")
    svg = size_picture(class_sizes(split, labels, NAMES))
    for kind in ("labelled", "novel"):
        heights = [height for _, height in bars(svg)[COLOURS[kind]]]
        assert heights == sorted(heights, reverse=True)
    assert "known ones by labelled" in svg


@pytest.mark.parametrize("setting", ["ssl", "ncd"])
def test_empty_parts_are_said(setting: str) -> None:
    split = make_split(LABELS, dataset="cifar100", setting=setting)
    svg = size_picture(class_sizes(split, LABELS, NAMES))
    assert ("no unlabelled images" in svg) == (setting == "ncd")
    assert len(bars(svg)[COLOURS["novel"]]) == (0 if setting == "ssl" else 50)
    assert ("unlabelled, novel" in printed(split, LABELS)) == (setting == "ncd")


def test_class_sizes() -> None:
    split = make_split(LABELS, dataset="cifar100", gamma=10)
    sizes = class_sizes(split, LABELS, NAMES)
    assert (sizes.labelled.sum(), sizes.unlabelled.sum(), sizes.labelled[50:].sum()) == (4903, 14733, 0)


@pytest.mark.parametrize("width", [20, 60, 80, 200])
def test_terminal(width: int) -> None:
    split = make_split(LABELS, np.arange(100), dataset="cifar100", gamma=100, prior="mismatch")
    text = printed(split, LABELS, width)
    assert all(len(line) <= width for line in text.splitlines())
    assert ("2,736" in text) == (width >= 60)
    if width >= 80:
        rows = {line[:17].strip(): line.split() for line in text.splitlines()}
        assert rows["labelled"][1:5] == ["2,736", "50", "250", "2"]
        assert rows["labelled"][-1] == "".join(sorted(rows["labelled"][-1], reverse=True))
        assert rows["unlabelled, known"][-1] == "".join(sorted(rows["unlabelled, known"][-1]))
        assert rows["test"] == ["test", "100"]


def test_terminal_without_unicode() -> None:
    split = make_split(LABELS, dataset="cifar100", gamma=100)
    assert "@" in printed(split, LABELS, encoding="ascii")
