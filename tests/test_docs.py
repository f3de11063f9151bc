"""The code in the documentation is run as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from rowssl.methods import METHODS, check_method

DOCS = Path(__file__).resolve().parents[1] / "docs"


def code_of(page: str) -> str:
    """All Python blocks of a page, one after another."""
    return "\n".join(re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), flags=re.DOTALL))


def test_adding_a_method(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rowssl.methods.METHODS", dict(METHODS))
    space: dict[str, Any] = {"__name__": "page"}
    exec(compile(code_of("adding-a-method.md"), "adding-a-method.md", "exec"), space)
    run = space["run"]
    assert run.metrics["method"] == "meanteacher"
    assert run.metrics["in_bacc"]["old"] > 50  # chance is 10
    first, last = (sum(row["loss"].values()) for row in (run.curves[0], run.curves[-1]))
    assert last < first
    state = run.method.state_dict()
    assert any(key.startswith("teacher.") for key in state)
    assert all(torch.isfinite(value).all() for value in state.values() if value.is_floating_point())


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_page_and_refuses_what_it_does_not_know(name: str) -> None:
    assert (DOCS / "methods" / f"{name}.md").exists()
    assert name in (DOCS.parent / "README.md").read_text().lower()
    with pytest.raises(Exception, match="no option"):
        check_method(name, {"nonsense": 1})


def test_links_between_pages_lead_somewhere() -> None:
    for page in [DOCS.parent / "README.md", *DOCS.rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page}: {target}"
