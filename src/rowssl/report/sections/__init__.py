"""The sections of the report, one file each, found by listing this folder.

A section has `TITLE`, `LEAD` (a sentence below the title, or nothing), `ORDER` (its place on the page, small first) and
`render(data, pictures)`, which gives its HTML, or nothing where there is nothing to show. What it gives as plain text is escaped.
The name of the file is the section's address on the page.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from types import ModuleType


def found() -> list[ModuleType]:
    """The modules of this folder in the order of the page."""
    modules = [import_module(f"{__name__}.{one.name}") for one in pkgutil.iter_modules(__path__)]
    return sorted(modules, key=lambda module: (module.ORDER, module.__name__))
