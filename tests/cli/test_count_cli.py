"""`rowssl count`: the table, the picture, the refusals; and the number that `fit --classes auto` prints."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from contract.problems import long_tailed
from rowssl.config import build_config
from rowssl.counting.base import CountEstimate, estimate_classes
from rowssl.counting.table import count_source
from rowssl.data.problem import load_problem
from rowssl.report.charts import ticks
from rowssl.report.count_chart import count_page, count_svg
from rowssl.runs.fit import class_count
from rowssl.training.features import open_features


@pytest.fixture(autouse=True)
def short_training(monkeypatch) -> None:
    """The head estimator trains for two epochs."""
    monkeypatch.setattr("rowssl.counting.heads.EPOCHS", (2, 2))


@pytest.fixture
def embeddings(tmp_path) -> Path:
    """A long-tailed problem of 12 classes, 6 of them known, as a file."""
    problem = long_tailed(300, seed=2)
    path = tmp_path / "embeddings.npz"
    np.savez(path, embeddings=problem.embeddings, labels=problem.targets)
    return path


def test_embeddings_give_a_table_and_a_picture(run, embeddings, tmp_path):
    picture = tmp_path / "search.svg"
    code, text, err = run("count", embeddings, "--out", picture)
    assert code == 0, err
    for name in ("hidden", "density", "gcd", "balanced", "heads"):
        assert re.search(rf"^{name} +\d+ +\d+ to \d+ +\d+\.\d", text, re.MULTILINE), text
    assert re.findall(r"^(\w+) .*\d +used ", text, re.MULTILINE) == ["hidden"]
    assert "300 rows, 64 labelled in 6 known classes" in text
    root = ElementTree.fromstring(picture.read_text())
    assert root.tag.endswith("svg")


def test_an_html_page_asks_nothing_of_the_network(run, embeddings, tmp_path):
    page = tmp_path / "search.html"
    code, _, err = run("count", embeddings, "--only", "density,gcd", "--out", page, "--max-classes", 30)
    assert code == 0, err
    text = page.read_text()
    assert "default-src 'none'" in text
    assert not re.search(r"(?:src|href)=", text)
    assert "heads" not in text


def test_a_folder_of_pictures_and_a_table_of_labels(run, tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    lines = ["path,label"]
    for i in range(36):
        colour = np.array([[230, 20, 20], [20, 230, 20], [20, 20, 230]])[i % 3]
        pixels = np.clip(colour + rng.integers(-15, 15, (10, 10, 3)), 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{i:02d}.png")
        if i % 3 < 2 and i < 24:
            lines.append(f"{i:02d}.png,{'red' if i % 3 == 0 else 'green'}")
    (tmp_path / "labels.csv").write_text("\n".join(lines))
    code, text, err = run(
        "count", tmp_path / "photos", "--labels", tmp_path / "labels.csv", "--encoder", "pixels", "--views", 1,
        "--only", "density",
    )  # fmt: skip
    assert code == 0, err
    found = re.search(r"^density +(\d+)", text, re.MULTILINE)
    assert found is not None
    assert 2 <= int(found.group(1)) <= 4


def test_a_benchmark_tells_its_own_number_but_no_estimator(run):
    code, text, err = run(
        "count", "--data", "digits", "--protocol", "longtail", "--known", 5, "--gamma", 10, "--encoder", "pixels",
        "--views", 1, "--only", "density",
    )  # fmt: skip
    assert code == 0, err
    assert "the data themselves say 10" in text


def test_mistakes_are_one_sentence(run, embeddings, tmp_path):
    for arguments, words in (
        (("count",), "SOURCE"),
        (("count", tmp_path / "absent.npz"), "absent.npz"),
        (("count", embeddings, "--out", "picture.pdf"), ".html or .svg"),
        (("count", embeddings, "--only", "brent"), "brent"),
        (("count", embeddings, "--max-classes", 3), "--max-classes 3"),
    ):
        code, _, err = run(*arguments)
        assert code == 2, arguments
        assert words in err
        assert len(err.strip().splitlines()) == 1
        assert "Traceback" not in err


def test_fit_and_count_agree(embeddings):
    config = build_config({"data": {"source": str(embeddings)}, "classes": "auto"})
    problem = load_problem(config.data)
    features = open_features(problem, config)
    classes, how = class_count(config, problem, features)
    used = count_source(config, names=("density",)).used
    again = estimate_classes(features.train, features.encoder.tail, problem.targets, problem.n_old)
    assert classes == used.best == again.best
    assert f"between {used.low} and {used.high}" in how


def test_the_picture_marks_choice_and_interval():
    estimates = [
        CountEstimate(14, 11, 18, {5: 0.1, 9: 0.8, 20: 0.3}, name="density", marked=9, note="<b>&"),
        CountEstimate(7, 6, 8, {5: 0.1, 7: 0.4, 20: 0.2}, name="gcd", marked=7),
        CountEstimate(9, 9, 9, {}, name="heads"),
    ]
    svg = count_svg(estimates, n_old=5, rows=100, labelled=20)
    ElementTree.fromstring(svg)
    assert "interval: 6 to 8" in svg
    assert "5 known" in svg
    assert svg.count("<path") == 2  # an estimate without a search has no panel
    assert "&lt;b&gt;&amp;" in count_page(estimates, n_old=5, rows=100, labelled=20)


@pytest.mark.parametrize(("low", "high"), [(0, 1), (2, 2), (5, 40), (50, 1000), (0, 7.3)])
def test_ticks_are_whole_and_inside(low, high):
    found = ticks(low, high, 6, whole=True)
    assert 1 <= len(found) <= 8
    assert all(tick == int(tick) for tick in found)
    assert all(low <= tick <= max(high, low) for tick in found)
