"""Numbers and names in the few characters that a page, a picture or a line of text has for them."""

from __future__ import annotations

import math
from typing import Any

DASH = "–"
NAME_LENGTH = 26  # what fits under a thumbnail on two lines; the end of a path says more than its beginning


def finite(value: Any) -> float | None:
    """The number as a float, or None for what is no finite number."""
    if value is None or isinstance(value, (str, bytes)):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def count(number: int, singular: str, plural: str | None = None) -> str:
    """`1 class`, `1,234 images`."""
    word = singular if number == 1 else (plural or singular + "s")
    return f"{number:,} {word}"


def percent(value: Any, digits: int = 0) -> str:
    """A share between 0 and 1 as `87 %`, with a narrow space."""
    number = finite(value)
    return DASH if number is None else f"{100 * number:.{digits}f}\u202f%"


def decimal(value: Any, digits: int = 2) -> str:
    """A number with a fixed number of digits, or a dash."""
    number = finite(value)
    return DASH if number is None else f"{number:.{digits}f}"


def thousands(number: int) -> str:
    """`1,234`."""
    return f"{number:,}"


def compact(value: float) -> str:
    """A number of any size in a few characters, for axes."""
    if 0 < abs(value) < 0.001:
        digits, _, power = f"{value:.1e}".partition("e")
        return f"{digits}e{int(power)}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def short(name: str, length: int = NAME_LENGTH) -> str:
    """The end of a long name: `…/rare/img_0042.jpg`."""
    return name if len(name) <= length else "…" + name[-(length - 1) :]


def clean(text: str) -> str:
    """The text without lone surrogates (from file names that are not UTF-8), which have no UTF-8 form."""
    return text.encode("utf-8", "replace").decode("utf-8")
