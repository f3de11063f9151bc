"""Every method has its page, and links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rowssl.methods import METHODS, check_method

DOCS = Path(__file__).resolve().parents[1] / "docs"


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_page_with_its_options_and_refuses_what_it_does_not_know(name: str) -> None:
    page = (DOCS / "methods" / f"{name}.md").read_text(encoding="utf-8")
    for option, field in METHODS[name].Options.model_fields.items():
        assert option in page
        assert field.description
    assert name in (DOCS.parent / "README.md").read_text().lower()
    with pytest.raises(Exception, match="no option"):
        check_method(name, {"nonsense": 1})


def test_links_between_pages_lead_somewhere() -> None:
    for page in [DOCS.parent / "README.md", *DOCS.rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page}: {target}"
