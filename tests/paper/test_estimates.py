"""Searched numbers of classes: kept with a hash, named and searched again where the file is damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rowssl.config import RunConfig, build_config
from rowssl.paper import plan
from rowssl.paper.plan import searched


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The seeds that were searched for, in order; the number found is 50 and the seed."""
    asked: list[int] = []

    def search(config: RunConfig, on: str) -> int:
        asked.append(config.seed)
        return 50 + config.seed

    monkeypatch.setattr(plan, "_search", search)
    return asked


def numbers(out: Path, *, estimate: bool = True) -> list[int | None]:
    """As one command asks for them."""
    configs = [build_config({"data": {"name": "digits"}, "seed": seed}) for seed in (0, 1)]
    return [searched(config, out, estimate=estimate) for config in configs]


def test_they_are_searched_once(tmp_path: Path, searches: list[int]) -> None:
    assert numbers(tmp_path, estimate=False) == [None, None]
    assert numbers(tmp_path) == numbers(tmp_path) == numbers(tmp_path, estimate=False) == [50, 51]
    assert searches == [0, 1]


@pytest.mark.parametrize("place", ["{", '"classes": 5', '": {', '"seed": ', '"self', '"self": "', "}"])
def test_damage_is_named_and_they_are_searched_again(place: str, tmp_path: Path, searches: list[int], capsys) -> None:
    numbers(tmp_path)
    file = tmp_path / "estimates.json"
    content = bytearray(file.read_bytes())
    content[content.index(place.encode()) + len(place) - 1] ^= 1
    file.write_bytes(content)
    capsys.readouterr()
    assert numbers(tmp_path, estimate=False) == [None, None]  # a list of what there is to do says nothing of it
    assert capsys.readouterr().err == ""
    assert numbers(tmp_path) == [50, 51]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{file} is damaged: ")
    assert searches == [0, 1, 0, 1]
    assert numbers(tmp_path, estimate=False) == [50, 51]


@pytest.mark.parametrize(
    "content", [[], {"0123456789abcdef": 5}, {"0123456789abcdef": {"data": {}, "seed": 0}}, {"selg": "0"}]
)
def test_what_no_version_wrote_is_damage(content: object, tmp_path: Path, searches: list[int], capsys) -> None:
    (tmp_path / "estimates.json").write_text(json.dumps(content))
    assert numbers(tmp_path) == [50, 51]
    assert capsys.readouterr().err.count("estimates.json is damaged") == 1
