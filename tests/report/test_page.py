"""The report: one file, safe with any text, small, whole or absent, and alive in a real browser."""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rowssl.core.errors import ImageError, InputError
from rowssl.data.profiles import ClassSizes
from rowssl.report import sections
from rowssl.report.page import POLICY, ClassCard, ReportData, write_report

VOID = {"meta", "input", "br", "img", "link", "hr"}
NASTY = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(2)>&amp;"
METRICS = {
    **{key: {"all": 61.25, "old": 70.0, "new": float("nan")} for key in ("tr_acc", "tr_bacc", "in_bacc")},
    "in_bacc_groups": {"labelled": {"known": {"many": 80.0, "med": None, "few": 12.5}, "novel": {}}},
}


class Tree(HTMLParser):
    """Collects tags and checks that every element that opens also closes, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.scripts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), f"repeated attribute in {tag}"
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        (self.scripts if self.open and self.open[-1] == "script" else self.text).append(data)


def parse(path: Path) -> Tree:
    tree = Tree()
    tree.feed(path.read_text(encoding="utf-8"))
    tree.close()
    assert not tree.open
    identifiers = [attributes["id"] for _, attributes in tree.tags if "id" in attributes]
    assert len(identifiers) == len(set(identifiers))
    links = [attributes["href"] or "" for _, attributes in tree.tags if "href" in attributes]
    assert {link.removeprefix("#") for link in links} <= set(identifiers), "a link leads nowhere"
    return tree


def uri(pixels: np.ndarray, kind: str = "PNG") -> str:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, quality=80)
    return f"data:image/{kind.lower()};base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def make(rows: int = 60, classes: int = 4, known: int = 2, **changes: Any) -> ReportData:
    """A report on random pictures; class sizes fall off as in a long tail."""
    rng = np.random.default_rng([7, rows])
    weights = 0.7 ** np.arange(classes)
    row_class = np.sort(rng.choice(classes, rows, p=weights / weights.sum()))
    cards = []
    for k in range(classes):
        members = np.flatnonzero(row_class == k)
        three = [tuple(int(i) for i in rng.permutation(members)[:12]) for _ in range(3)]
        name = f"class {k}" if k < known else f"novel-{k:02d}"
        cards.append(ClassCard(name, name, k < known, len(members), min(k < known, len(members)), 0.8, 0.3, *three))
    tones = rng.integers(0, 256, (rows, 3), dtype=np.uint8)
    data = ReportData(
        title="Garden birds",
        facts={"Method": "k-means", "Seed": "0"},
        classes=tuple(cards),
        row_names=[f"birds/{i:05d}.png" for i in range(rows)],
        row_class=row_class,
        row_known_label=row_class == 0,
        row_confidence=rng.random(rows),
        row_tailedness=rng.random(rows),
        positions=rng.normal(size=(rows, 2)),
        thumbnail=lambda row: uri(np.broadcast_to(tones[row], (24, 24, 3))),
        review=tuple(range(min(rows, 30))),
        metrics=METRICS,
        curves=[{"epoch": i + 1, "loss": 1 / (i + 1), "tr_acc": {"all": 50 + i}} for i in range(5)],
        confusion=np.eye(classes, classes + 1, dtype=int) * 5,
        class_names_truth=[card.name for card in cards],
        skipped=(("birds/broken.png", "not an image"),),
        sizes=ClassSizes(
            tuple(card.name for card in cards), np.full(classes, 2), np.arange(classes)[::-1] + 3, min(known, classes)
        ),
    )
    return replace(data, **changes)


def test_summary_order_and_content(tmp_path: Path) -> None:
    path = write_report(make(), tmp_path / "deep" / "report.html")
    tree, text = parse(path), path.read_text(encoding="utf-8")
    assert "4 classes found in 60 images: 2 known, 2 novel." in tree.text
    sections = [attributes["id"] for tag, attributes in tree.tags if tag == "section"]
    assert sections == ["classes", "map", "review", "metrics", "training", "sizes", "facts", "unreadable"]
    sizes = [int(attributes["data-size"] or -1) for tag, attributes in tree.tags if "data-size" in attributes]
    assert len(sizes) == 4
    assert sizes == sorted(sizes, reverse=True)
    for part in ("Tr-ACC", "In-bACC", "61.2", "12.5", "k-means", "not an image", "tr_acc · all", "Most uncertain"):
        assert part in text
    assert "nan" not in "".join(tree.text)


def test_a_file_in_the_folder_is_a_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "weather.py").write_text(
        'TITLE, LEAD, ORDER = "Weather <b>", "Of the day.", 15\n\n'
        'def render(data, pictures):\n    return f"{len(data.classes)} clouds <i>"\n'
    )
    monkeypatch.setattr(sections, "__path__", [*sections.__path__, str(tmp_path)])
    tree = parse(write_report(make(), tmp_path / "report.html"))
    monkeypatch.delitem(sys.modules, "rowssl.report.sections.weather")
    order = [attributes["id"] for tag, attributes in tree.tags if tag == "section"]
    assert order[:3] == ["classes", "weather", "map"]
    assert tree.text.count("Weather <b>") == 2  # the link and the title
    assert "Of the day." in tree.text
    assert "4 clouds <i>" in "".join(tree.text), "plain text is escaped"


def test_links_are_called_what_the_parts_are(tmp_path: Path) -> None:
    data = make(trust={"tried": [], "problem": "Nearly all rows are in <one> class."})
    path = write_report(data, tmp_path / "report.html")
    tree, text = parse(path), path.read_text(encoding="utf-8")
    assert "trust" in {attributes["id"] for tag, attributes in tree.tags if tag == "section"}
    assert '<a href="#trust">How sure</a>' in text
    assert '<p class="warning" role="alert">Nearly all rows are in &lt;one&gt; class.</p>' in text


def test_no_reference_leaves_the_file(tmp_path: Path) -> None:
    path = write_report(make(), tmp_path / "report.html")
    text, tree = path.read_text(encoding="utf-8"), parse(path)
    assert not re.search(r"https?://|//www|@import|<link|<iframe|<base", text)
    for tag, attributes in tree.tags:
        assert not {"srcset", "action", "data", "poster", "ping", "onclick", "onload"} & set(attributes)
        assert (attributes.get("src") or "data:").startswith("data:"), tag
        assert (attributes.get("href") or "#").startswith("#"), tag
    assert all(target.startswith("data:image/") for target in re.findall(r"url\(([^)]{0,30})", text))
    policies = [a["content"] for t, a in tree.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert (
        policies
        == [POLICY]
        == ["default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"]
    )


def test_everything_from_data_is_escaped(tmp_path: Path) -> None:
    data = make()
    cards = tuple(
        replace(c, id=f"{NASTY}{k}", name=NASTY, matched_to=NASTY, recall=0.5) for k, c in enumerate(data.classes)
    )
    data = replace(
        data,
        title=NASTY,
        facts={NASTY: NASTY},
        classes=cards,
        row_names=[f"{i}{NASTY}" for i in range(60)],
        skipped=((NASTY, NASTY),),
        curves=[{"epoch": i, NASTY: i} for i in range(3)],
        metrics={**METRICS, NASTY: {"all": 1.0}, "in_bacc_groups": {NASTY: {"known": {"many": 1}}}},
        class_names_truth=[NASTY] * 4,
        sizes=ClassSizes((NASTY,) * 4, np.array([3, 2, 0, 0]), np.array([1, 1, 4, 2]), 2),
    )
    tree = parse(write_report(data, tmp_path / "report.html"))
    assert sum(tag == "script" for tag, _ in tree.tags) == 2
    assert not any("onerror" in attributes for _, attributes in tree.tags)
    assert not any(tag == "img" for tag, _ in tree.tags)
    assert json.loads(tree.scripts[0])["name"][3] == f"3{NASTY}"
    assert NASTY in tree.text


def test_json_keeps_any_text_and_never_ends_its_element(tmp_path: Path) -> None:
    names = [NASTY, "\u2028<!--", "é", *(f"{i}]]>" for i in range(57))]
    text = write_report(make(row_names=names), tmp_path / "report.html").read_text(encoding="utf-8")
    content = re.search(r'id="data">(.*?)</script>', text, re.S)
    assert content
    assert not set("<>&") & set(content[1])
    assert json.loads(content[1])["name"] == names


def test_a_name_that_is_not_unicode_is_written(tmp_path: Path) -> None:
    data = make(rows=60)
    names = ["bad\udcff.png", *list(data.row_names)[1:]]
    assert "bad?.png" in write_report(replace(data, row_names=names), tmp_path / "r.html").read_text(encoding="utf-8")


def test_a_thumbnail_that_is_no_plain_image_is_not_embedded(tmp_path: Path) -> None:
    def thumbnail(row: int) -> str | None:
        if row % 3 == 0:
            raise ImageError(f"row {row} has gone")
        return "data:image/svg+xml,<svg onload=alert(1)>" if row % 3 == 1 else uri(np.zeros((9, 5, 3), np.uint8))

    text = write_report(make(thumbnail=thumbnail), tmp_path / "report.html").read_text(encoding="utf-8")
    assert "alert" not in text
    assert {int(row) % 3 for row in re.findall(r"^\.t(\d+)\{", text, re.M)} == {2}


def test_each_picture_is_embedded_once(tmp_path: Path) -> None:
    text = write_report(make(), tmp_path / "report.html").read_text(encoding="utf-8")
    embedded = re.findall(r"data:image/png;base64,[A-Za-z0-9+/=]+", text)
    assert len(embedded) == len(set(embedded)) > 20


@pytest.mark.parametrize(
    "changes",
    [
        {"metrics": None, "confusion": None, "class_names_truth": None},
        {"positions": None},
        {"thumbnail": lambda row: None},
        {"row_tailedness": None},
        {"known": 4},
        {"known": 0},
        {"classes": 1, "known": 1},
        {"rows": 1, "classes": 1, "known": 0},
        {"rows": 5, "classes": 9},
        {"rows": 0, "classes": 1, "known": 1},
        {"facts": {}, "skipped": (), "sizes": None, "curves": [], "review": (), "metrics": {}},
        {"curves": [{"epoch": 1, "loss": 1.0}]},
        {"curves": [{"loss": float("nan")}, {"loss": float("inf")}, {"other": "text"}]},
        {"row_confidence": np.full(60, np.nan), "positions": np.full((60, 2), np.nan)},
        {"row_class": np.full(60, -1)},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_parts_that_are_absent_are_left_out(tmp_path: Path, changes: dict[str, Any]) -> None:
    data = make(**changes)
    tree = parse(write_report(data, tmp_path / "report.html"))
    shown = {attributes["id"] for tag, attributes in tree.tags if tag == "section"}
    assert ("map" in shown) == (data.positions is not None and len(data.row_names) > 0)
    assert ("metrics" in shown) == bool(data.metrics or data.confusion is not None)
    assert ("training" in shown) == (len(data.curves or ()) == 5)
    assert ("review" in shown) == bool(data.review)
    words = "".join(tree.text)
    assert ("all known" in words) == (changes.get("known") in (1, 4))
    if "thumbnail" in changes:
        assert "60 rows" in words
        assert not any("pic" in (attributes.get("class") or "").split() for _, attributes in tree.tags)


def grainy(side: int, grain: float) -> Callable[[int], str]:
    """Photograph-like pictures: smooth shapes plus grain."""

    def thumbnail(row: int) -> str:
        rng = np.random.default_rng([row])
        smooth = Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)).resize((side, side), Image.BICUBIC)
        noise = rng.normal(0, grain, (side, side, 1))
        return uri((np.asarray(smooth) + noise).clip(0, 255).astype(np.uint8), "JPEG")

    return thumbnail


def test_ten_thousand_images_stay_under_15_megabytes(tmp_path: Path) -> None:
    samples = [grainy(96, 8)(row) for row in range(64)]
    assert 3_000 < np.mean([len(sample) for sample in samples]) < 8_000  # what a 96 px photograph takes
    names = [f"photos/wildlife/camera_{i % 7}/IMG_2024{i:06d}.jpg" for i in range(10_000)]
    data = make(10_000, 100, 50, row_names=names, thumbnail=lambda row: samples[row % 64], review=tuple(range(500)))
    path = write_report(data, tmp_path / "report.html")
    assert path.stat().st_size < 15_000_000
    text = path.read_text(encoding="utf-8")
    tiles = json.loads(re.search(r'id="data">(.*?)</script>', text)[1])["tile"]
    assert len(set(tiles)) == 10_000, "every image has a picture on the map"
    assert min(tiles) == 0
    full = {int(row) for row in re.findall(r"^\.t(\d+)\{", text, re.M)}
    assert {card.typical[0] for card in data.classes if card.typical} <= full, "every class keeps its best picture"


def test_the_budget_holds_for_pictures_that_do_not_compress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rowssl.report.page.REPORT_BYTES", 900_000)
    data = make(1_500, 20, 10, thumbnail=grainy(48, 80))
    path = write_report(data, tmp_path / "report.html")
    assert path.stat().st_size < 950_000
    text = path.read_text(encoding="utf-8")
    assert re.search(r"^\.t\d+\{", text, re.M)
    assert "background-position" in text  # galleries beyond the first cut show the tile


def test_the_file_is_whole_or_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_report(make(), tmp_path / "report.html")
    before = path.read_bytes()
    assert write_report(make(), path).read_bytes() == before  # the same data give the same bytes

    def fail(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(InputError, match=r"report\.html cannot be written: no space left"):
        write_report(make(title="Other"), path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


def test_columns_of_different_lengths_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="60 row names but 3 entries in row_class"):
        write_report(make(row_class=[0, 1, 2]), tmp_path / "report.html")
    assert not list(tmp_path.iterdir())


def test_the_script_runs_in_a_browser(tmp_path: Path) -> None:
    if not (browser := shutil.which("chromium") or shutil.which("google-chrome")):
        pytest.skip("no Chromium on this machine")
    path = write_report(make(), tmp_path / "report.html")
    flags = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-sync"
    flags += f" --disable-component-update --virtual-time-budget=2000 --user-data-dir={tmp_path / 'profile'} --dump-dom"
    run = subprocess.run(
        [browser, *flags.split(), f"{path.as_uri()}#class-1"], capture_output=True, text=True, timeout=120
    )
    legend = re.search(r'<div id="map-legend".*?</div>', run.stdout, re.S)
    assert legend, run.stderr[-500:]
    assert legend[0].count("<button") == 4, "the script drew the legend of the map"
    assert re.search(r'<details class="class known" id="class-1"[^>]* open', run.stdout), "the link opened its class"
