"""A small table that shows itself: as HTML in a notebook, as text on a terminal, and as a pandas DataFrame where that is there."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib import import_module
from typing import Any

from rowssl.core.errors import InputError

SHOWN = 60  # rows


class Frame:
    """Columns and rows.

    Parameters
    ----------
    columns, rows
        Names, and one value per column in every row.
    pictures
        HTML (a small picture or several) beside each row in a notebook.
    """

    def __init__(
        self, columns: Sequence[str], rows: Sequence[Sequence[Any]], pictures: Mapping[int, str] | None = None
    ) -> None:
        self.columns, self.rows = tuple(columns), [tuple(row) for row in rows]
        self.pictures = pictures or {}

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (dict(zip(self.columns, row, strict=True)) for row in self.rows)

    def to_pandas(self) -> Any:
        """A pandas DataFrame."""
        return need_pandas().DataFrame(self.rows, columns=list(self.columns))

    def __repr__(self) -> str:
        rows = [list(self.columns), *self._cells()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        right = [all(_number(row[place]) for row in self.rows) for place in range(len(self.columns))]
        lines = [
            "  ".join(
                cell.rjust(width) if number else cell.ljust(width)
                for cell, width, number in zip(row, widths, right, strict=True)
            ).rstrip()
            for row in rows
        ]
        return "\n".join([*lines, *self._more()])

    def _cells(self) -> list[list[str]]:
        """The rows that are shown, as text; shares of one have two digits after the point, other numbers one."""
        columns = list(zip(*self.rows, strict=True))
        digits = [2 if all(abs(v) <= 1 for v in column if isinstance(v, float)) else 1 for column in columns]
        return [[shown(value, n) for value, n in zip(row, digits, strict=True)] for row in self.rows[:SHOWN]]

    def _more(self) -> list[str]:
        return [f"and {len(self) - SHOWN:,} more"] if len(self) > SHOWN else []

    def _repr_html_(self) -> str:
        """A table for notebooks, with the pictures beside its rows."""
        head = "".join(f"<th>{escape(name)}</th>" for name in self.columns) + ("<th></th>" if self.pictures else "")
        body = "".join(
            "<tr>"
            + "".join(f"<td>{escape(cell)}</td>" for cell in row)
            + (f"<td>{self.pictures.get(place, '')}</td>" if self.pictures else "")
            + "</tr>"
            for place, row in enumerate(self._cells())
        )
        more = "".join(f"<p>{line}</p>" for line in self._more())
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def need_pandas() -> Any:
    """The module, or one sentence that it is missing."""
    try:
        return import_module("pandas")
    except ImportError:
        raise InputError("A DataFrame needs the package pandas: pip install pandas.") from None


def shown(value: Any, digits: int = 1) -> str:
    """A value as people read it."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.{digits}f}" if isinstance(value, float) else str(value)


def _number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
