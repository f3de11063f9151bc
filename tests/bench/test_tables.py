"""Tables and pictures from numbers made by hand, and the paper's numbers."""

from __future__ import annotations

import csv
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from rowssl.bench import published
from rowssl.bench.charts import bars_svg
from rowssl.bench.results import (
    COLUMNS,
    MAIN,
    Entry,
    Row,
    Section,
    column_marks,
    comparison_table,
    escape,
    latex_table,
    markdown_table,
    marks,
    summarise,
    to_csv,
)
from rowssl.config import DataConfig
from rowssl.methods import METHODS

SECTION = Section("bench", "CIFAR-100-LT", "100", "match", "rowssl", "resnet50 96 px")


def row(
    method: str, value: float, seed: int = 0, metric: str = "In-bACC", group: str = "All", variant: str = ""
) -> Row:
    made = {
        **SECTION._asdict(), "variant": variant, "method": method, "metric": metric, "group": group, "value": str(value),
        "seed": str(seed), "config": f"{method}{variant}{seed}", "commit": "abc", "seconds": "60.0", "peak_memory_mb": "500",
    }  # fmt: skip
    return {name: made[name] for name in COLUMNS}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([10.0, 30.0, 20.0], ["", "best", "second"]),
        ([30.04, 30.01, 20.0, 10.0], ["best", "best", "second", ""]),  # both read 30.0
        ([30.0, 20.0, 20.0, 10.0], ["best", "second", "second", ""]),
        ([None, 5.0, 7.0], ["", "second", "best"]),
        ([30.0, 30.0], ["", ""]),  # nothing to choose between
        ([42.0], [""]),
        ([], []),
    ],
)
def test_marks(values, expected):
    assert marks(values) == expected


def test_mean_and_spread_over_seeds_by_hand():
    rows = [row("DTS", value, seed) for seed, value in enumerate((50.0, 52.0, 54.0))] + [row("GCD", 40.0)]
    entries = summarise(rows)[SECTION]
    assert list(entries) == [Entry("GCD", ""), Entry("DTS", "")]  # the paper's order, not that of the rows
    dts, gcd = (entries[Entry(name, "")]["In-bACC", "All"] for name in ("DTS", "GCD"))
    assert (dts.mean, dts.std, dts.seeds) == (52.0, 2.0, 3)  # sample deviation
    assert (gcd.mean, gcd.std, gcd.seeds) == (40.0, None, 1)
    assert (dts.paper, gcd.paper) == (48.1, 38.1)


def test_markdown_and_latex_mark_best_and_second_and_leave_gaps():
    rows = [row("k-means", 30.0), row("SimGCD", 37.0), row("SimGCD", 39.0, seed=1), row("DTS", 48.0)]
    rows += [row("k-means", 9.0, group="New"), row("DTS", 8.0, group="New")]
    entries = summarise(rows)[SECTION]
    lines = markdown_table(entries, MAIN).splitlines()
    assert lines[0] == "| method | In-bACC All | In-bACC New |"
    assert lines[2:] == [
        "| k-means | 30.0 | **9.0** |",
        "| SimGCD | <u>38.0</u> ± 1.4 | – |",
        "| DTS | **48.0** | <u>8.0</u> |",
    ]
    latex = latex_table(SECTION, entries, MAIN, "x")
    assert r"SimGCD & \underline{38.0}\,{\scriptsize$\pm$1.4} & -- \\" in latex
    assert r"DTS & \textbf{48.0} & \underline{8.0} \\" in latex
    assert r"\multicolumn{2}{c}{In-bACC}" in latex
    assert latex.count("{") == latex.count("}")
    assert column_marks(entries, [("In-bACC", "All")])["In-bACC", "All"][Entry("DTS", "")] == "best"


def test_numbers_that_are_no_percentages_and_differences_have_no_best():
    entries = summarise([row("GCD", 94.0), row("DTS", 145.25)])[SECTION]
    assert markdown_table(entries, MAIN, mark=False).splitlines()[2:] == ["| GCD | 94 |", "| DTS | 145 |"]
    latex = latex_table(SECTION, entries, MAIN, "x", caption="Differences of 5%.", mark=False, signed=True)
    assert r"GCD & $+94.0$ \\" in latex
    assert r"\caption{Differences of 5\%.}" in latex
    assert "textbf" not in latex


def test_the_papers_numbers_stand_beside_ours():
    rows = [row("DTS", 50.0), row("DTS", 47.0, variant="tau_max=0.2"), row("k-means", 33.3)]
    lines = comparison_table(summarise(rows)[SECTION], MAIN).splitlines()
    assert lines[2:] == ["| k-means | 33.3 / 30.3 / +3.0 |", "| DTS | 50.0 / 48.1 / +1.9 |", "| DTS, tau_max=0.2 | – |"]
    other = [{**line, "encoder": "pixels", "dataset": "digits"} for line in rows]
    assert comparison_table(next(iter(summarise(other).values())), MAIN) == ""


def test_text_from_data_is_escaped():
    assert escape("50% of a_b & {c} \\ #1") == r"50\% of a\_b \& \{c\} \textbackslash{} \#1"
    name = 'a<b>&"|x'
    entries = summarise([row("DTS", 5.0, variant=name), row("DTS", 5.0, seed=1, variant=name)])[SECTION]
    ElementTree.fromstring(bars_svg(SECTION, entries, MAIN[6:]))
    assert r"\|x" in markdown_table(entries, MAIN)


def test_picture_has_a_bar_for_each_number_a_whisker_for_each_spread_and_a_line_for_the_paper():
    rows = [row(m, v, seed) for m in ("DTS", "GCD") for seed, v in enumerate((40.0, 44.0))] + [
        row("DTS", 30.0, group="Old")
    ]
    picture = bars_svg(SECTION, summarise(rows)[SECTION], MAIN[6:])
    tree = ElementTree.fromstring(picture)
    tips = [title.text for title in tree.iter("{http://www.w3.org/2000/svg}title")]
    assert "DTS, All: 42.0 ± 2.8 (the paper's 48.1)" in tips
    assert "DTS, Old: 30.0 (the paper's 52.9)" in tips
    assert len(tips) == 1 + 3
    assert len(list(tree.iter("{http://www.w3.org/2000/svg}path"))) == 2  # whiskers
    assert picture.count('stroke-width="2.5"') == 1 + 3
    tallest = max(
        float(bar.get("height", 0)) for bar in tree.iter("{http://www.w3.org/2000/svg}rect") if bar.get("y") != "40"
    )
    assert tallest > 100
    assert bars_svg(SECTION, {Entry("DTS", ""): {}}, MAIN) == ""


def test_csv_goes_out_and_comes_back(tmp_path: Path):
    rows = [row("DTS", 12.3456, variant='a,"b"'), row("k-means", 1.0)]
    (tmp_path / "r.csv").write_text(to_csv(rows))
    with (tmp_path / "r.csv").open(newline="") as file:
        assert list(csv.DictReader(file)) == rows


def test_methods_are_called_what_the_paper_calls_them():
    assert {name: METHODS.entry(name).label for name in published.METHODS} == published.METHODS


def test_paper_numbers():
    assert len(published.paper_rows()) == 1148
    values = published.paper_values()
    assert values["CIFAR-100-LT", "100", "match", "", "DTS", "In-bACC", "New"] == 43.2
    assert values["Herbarium19", "natural", "mismatch", "", "DTS", "In-bACC", "UFew"] == 14.7
    # Two tables differ here; the main one counts unless the other is asked for.
    key = ("CIFAR-100-LT", "100", "match", "", "DTS", "Tr-bACC", "New")
    assert values[key] == 39.1
    assert published.paper_values("main")[key] == 39.1
    assert key in published.paper_values("cifar_mcar")
    assert {r["method"] for r in published.paper_rows() if r["table"] == "main"} == set(published.METHODS.values())


@pytest.mark.shared
def test_paper_numbers_are_the_shared_ones(shared_dir):
    with (shared_dir / "paper" / "results.csv").open(newline="") as file:
        reader = csv.DictReader(file)
        assert tuple(reader.fieldnames or ()) == published.COLUMNS == COLUMNS[: len(published.COLUMNS)]
        assert tuple(reader) == published.paper_rows()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (DataConfig(name="cifar100", gamma=100, prior="match", data_root="/x"), ("CIFAR-100-LT", "100")),
        (DataConfig(name="cifar100", gamma=1), ("CIFAR-100", "1")),
        (
            DataConfig(name="cifar100", gamma=100, protocol="bacon"),
            ("cifar100", "100"),
        ),  # other images: not the paper's
        (DataConfig(name="cifar100", gamma=100, known=20), ("cifar100", "100")),
        (DataConfig(name="herbarium19"), ("Herbarium19", "natural")),
        (DataConfig(name="imagenet100", protocol="bacon", variant="bacon"), ("ImageNet-100-LT", "BaCon split")),
        (DataConfig(source="/data/mine.npz"), ("mine", "")),
    ],
)
def test_which_data_are_the_papers(data, words):
    assert published.dataset_words(data, {}) == words
