"""The part of the report that says how far the answer can be trusted."""

from __future__ import annotations

import re

import pytest

from rowssl.report.page import ReportData
from rowssl.report.sections import trust as section
from rowssl.report.thumbnails import Pictures

TRIED = [
    {"candidate": "tuned, rho 0.15", "hidden_classes": 81.23, "behind_best": 0.4, "standard_error": 1.2, "chosen": True},
    {"candidate": "class means <b>", "hidden_classes": 70.0, "behind_best": 11.6, "standard_error": 2.0, "chosen": False},
]  # fmt: skip
EXPECTED = {"expected": 82.6, "low": 75.1, "high": 90.0}
RELIABILITY = {"known": [[0.9, 1.0, 1], [0.6, 0.5, 40]], "novel": []}


def trust_section(trust: object, pictures: bool = True) -> str:
    nothing = dict.fromkeys(("positions", "metrics", "curves", "confusion", "class_names_truth", "row_tailedness"))
    empty = dict.fromkeys(("classes", "row_names", "row_class", "row_known_label", "row_confidence", "review"), ())
    data = ReportData("", {}, trust=trust, thumbnail=lambda _: None, **empty, **nothing)  # type: ignore[arg-type]
    return str(section.render(data, Pictures(full={0: "data:"} if pictures else {})))


def words(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub("<[^>]*>", " ", html))


def test_everything_is_said_once() -> None:
    page = trust_section({"tried": TRIED, "expected": EXPECTED, "reliability": RELIABILITY})
    said = words(page)
    assert "83 % of the unlabelled images are expected to be right (75 to 90 %)" in said
    assert said.count("chosen") == 1
    assert "tuned, rho 0.15 chosen 81.2 0.4 ± 1.2" in said
    assert "class means &lt;b&gt; 70.0 11.6 ± 2.0" in said
    assert "the end of the network was trained" in said
    assert page.count("<circle") == 2
    assert "right 100 %, 1 image</title>" in page  # not 1 images
    assert "novel classes off by" not in said  # there is no answer to judge


def test_rows_of_a_matrix_are_no_images() -> None:
    page = trust_section({"tried": TRIED[1:], "expected": EXPECTED, "reliability": RELIABILITY}, pictures=False)
    assert "image" not in page
    assert "network was trained" not in page  # none of them was


def test_what_cannot_be_judged_says_so_and_methods_that_do_not_judge_say_nothing() -> None:
    assert "cannot be told" in trust_section({"tried": [], "expected": None, "reliability": None})
    assert "cannot be told" in trust_section(
        {"tried": TRIED, "expected": {"expected": float("nan"), "low": 1, "high": 2}}
    )
    assert trust_section({"seconds": 3.0}) == trust_section(None) == ""


def test_metrics_of_another_form_are_left_out() -> None:
    said = {"tried": [3, {"candidate": ["<i>"]}], "expected": [1], "reliability": {"known": [[1, 2], "x"], "novel": 5}}
    page = trust_section(said)
    assert "&lt;i&gt;" in page
    assert "<circle" not in page
    assert "cannot be told" in page
    assert trust_section({"tried": 3}) == trust_section({"tried": []})


@pytest.mark.parametrize(
    "trust",
    [None, [], "x", 7, {"tried": 3}, {"tried": [1, "x", {}]}, {"reliability": []}, {"reliability": {"known": 5}},
     {"reliability": {"known": [[1], "x", ["<", None, 3], [float("nan"), 1, 2]]}}],
)  # fmt: skip
def test_anything_may_stand_in_the_file(trust: object) -> None:
    page = trust_section(trust)
    assert "<circle" not in page
    assert "nan" not in page
