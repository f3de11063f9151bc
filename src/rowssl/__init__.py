"""Realistic open-world semi-supervised learning. `import rowssl` is cheap: torch is imported when something needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rowssl.sklearn import OpenWorldClassifier

__version__ = "0.1.0"
__all__ = ["OpenWorldClassifier", "__version__"]


def __getattr__(name: str) -> Any:
    """Public names are imported when they are first asked for."""
    if name == "OpenWorldClassifier":
        from rowssl.sklearn import OpenWorldClassifier

        return OpenWorldClassifier
    raise AttributeError(f"module 'rowssl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), "OpenWorldClassifier"])
