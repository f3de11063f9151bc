"""The part of the report on trust: what it shows, and that nothing in it can break the page."""

from __future__ import annotations

import pytest

from rowssl.report.trust import reliability, trust_section

TRIED = [
    {
        "candidate": "frozen, rho 0.15",
        "hidden_classes": 80.0,
        "behind_best": 0.0,
        "standard_error": 0.0,
        "chosen": True,
    },
    {"candidate": "<b>x</b>", "hidden_classes": 70.25, "behind_best": 9.75, "standard_error": 3.0, "chosen": False},
]


def test_candidates_and_bins_are_shown() -> None:
    page = trust_section({"tried": TRIED, "reliability": {"known": [[0.25, 0.2, 10], [0.9, 0.95, 90]], "novel": []}})
    assert page.count("<tr>") == 3
    assert page.count("chosen</small>") == 1
    assert "&lt;b&gt;x" in page
    assert "<b>x" not in page
    assert page.count("<circle") == 2
    assert "off by 5 points" in page  # (10 x 5 + 90 x 5) / 100
    assert "novel classes" not in page


@pytest.mark.parametrize(
    "trust",
    [None, [], "x", 7, {}, {"tried": 3}, {"tried": [1, "x", {}]}, {"reliability": []}, {"reliability": {"known": 5}},
     {"reliability": {"known": [[1], "x", ["<", None, 3], [float("nan"), 1, 2]]}}],
)  # fmt: skip
def test_anything_may_stand_in_the_file(trust: object) -> None:
    page = trust_section(trust)  # type: ignore[arg-type]
    assert "<circle" not in page
    assert "nan" not in page


def test_nothing_known_is_nothing_shown() -> None:
    assert trust_section({}) == ""
    assert reliability({"known": [], "novel": []}) == ""
