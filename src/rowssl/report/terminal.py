"""What a fit says of its own answer on the terminal: the candidates and how often it is expected to be right."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table


def print_trust(metrics: dict[str, Any], console: Console) -> None:
    """A table of what was tried, and one sentence on what to expect; nothing for methods that do not judge themselves."""
    tried = metrics.get("tried") or []
    if tried:
        table = Table("tried on hidden known classes", "right, %", "behind the best", "", title_justify="left")
        for one in tried:
            numbers = f"{one['hidden_classes']:.1f}", f"{one['behind_best']:.1f} ± {one['standard_error']:.1f}"
            table.add_row(one["candidate"], *numbers, "chosen" if one["chosen"] else "")
        console.print(table)
    if empty := metrics.get("without_pictures"):
        said = ", ".join(empty[:5]) + (" and others" if len(empty) > 5 else "")
        console.print(f"no unlabelled picture was found for {said}", markup=False, soft_wrap=True)
    expected = metrics.get("expected")
    if expected:
        console.print(
            f"expected to be right: {expected['expected']:.0f} % of the unlabelled pictures "
            f"({expected['low']:.0f} to {expected['high']:.0f} %), by classes that were hidden on purpose",
            markup=False, soft_wrap=True,
        )  # fmt: skip
    elif "tried" in metrics:
        console.print(
            "how often this is right cannot be told: fewer than four known classes have two labels",
            markup=False,
            soft_wrap=True,
        )
