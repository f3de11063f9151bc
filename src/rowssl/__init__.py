"""Realistic open-world semi-supervised learning. `import rowssl` is cheap: torch is imported when something needs it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rowssl.api import count, evaluate, fit, load
    from rowssl.bench.compare import compare
    from rowssl.core.errors import InputError
    from rowssl.methods import METHODS
    from rowssl.runs.run import Run
    from rowssl.sklearn import OpenWorldClassifier

__version__ = "0.1.0"
__all__ = [
    "METHODS", "InputError", "OpenWorldClassifier", "Run", "__version__", "compare", "count", "evaluate", "fit", "load",
]  # fmt: skip
_HOME = {
    "fit": "api", "load": "api", "count": "api", "evaluate": "api", "compare": "bench.compare", "Run": "runs.run",
    "OpenWorldClassifier": "sklearn", "METHODS": "methods", "InputError": "core.errors",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Public names are imported when they are first asked for."""
    if name not in _HOME:
        raise AttributeError(f"module 'rowssl' has no attribute {name!r}")
    globals()[name] = value = getattr(import_module(f"rowssl.{_HOME[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
