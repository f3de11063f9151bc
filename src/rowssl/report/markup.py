"""Small pieces of HTML that are safe with any text: every string that comes from data passes through here."""

from __future__ import annotations

import html
import json
import math
from typing import Any

DASH = "–"
NAME_LENGTH = 26  # what fits under a thumbnail on two lines; the end of a path says more than its beginning


def escape(text: object) -> str:
    """Text for an element or a quoted attribute."""
    return html.escape(str(text), quote=True)


def json_for_script(value: Any) -> str:
    """JSON that cannot end its `<script>` element, whatever the strings inside it say."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


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


def compact(value: float) -> str:
    """A number of any size in a few characters, for axes."""
    if 0 < abs(value) < 0.001:
        digits, _, power = f"{value:.1e}".partition("e")
        return f"{digits}e{int(power)}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def short(name: str, length: int = NAME_LENGTH) -> str:
    """The end of a long name, escaped: `…/rare/img_0042.jpg`."""
    return escape(name if len(name) <= length else "…" + name[-(length - 1) :])


def chip(known: bool) -> str:
    """The small mark that says known or novel in words as well as in colour."""
    word = "known" if known else "novel"
    return f'<span class="chip {word}">{word}</span>'


def section(identifier: str, title: str, body: str, lead: str = "") -> str:
    """One titled part of the page; nothing when the body is empty."""
    if not body:
        return ""
    lead = f'<p class="lead">{lead}</p>' if lead else ""
    return (
        f'<section id="{identifier}" aria-labelledby="{identifier}-title">'
        f'<h2 id="{identifier}-title">{title}</h2>{lead}{body}</section>\n'
    )


def clean(text: str) -> str:
    """The text without lone surrogates (from file names that are not UTF-8), which have no UTF-8 form."""
    return text.encode("utf-8", "replace").decode("utf-8")
