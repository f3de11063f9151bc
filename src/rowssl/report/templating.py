"""Jinja2 templates of a package: every value is escaped, a missing one is an error, and numbers are written one way."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from rowssl.report.charts import palette_css
from rowssl.report.format import compact, count, decimal, percent, short, thousands


@cache
def templates(package: str = "rowssl.report") -> Environment:
    """The templates in the folder `templates` of a package."""
    made = Environment(
        loader=PackageLoader(package), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters |= {
        "compact": compact, "count": count, "decimal": decimal, "percent": percent, "short": short, "thousands": thousands,
    }  # fmt: skip
    # What `tojson` writes cannot end its <script>, whatever the strings inside say; NaN is no JSON.
    made.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":"), "allow_nan": False}
    made.globals["source"] = lambda name: source(name, package)
    made.globals["palette"] = Markup(palette_css())
    return made


def source(name: str, package: str = "rowssl.report") -> Markup:
    """A style or a script beside the templates, as it is."""
    return Markup(files(package).joinpath("templates", name).read_text(encoding="utf-8"))


def draw(name: str, **values: Any) -> Markup:
    """A template of the report with its values."""
    return Markup(templates().get_template(name).render(values))
