"""The files of a finished grid: results.csv, results.md, results.tex and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rowssl.bench.charts import bars_svg
from rowssl.bench.engine import Outcome
from rowssl.bench.results import Row, Section, result_rows, summarise, to_csv
from rowssl.bench.tables import FREQUENCY, MAIN, latex_page, markdown_page

PICTURES = (("in_bacc", MAIN[6:]), ("frequency", FREQUENCY[:6]), ("tr_bacc", MAIN[3:6]))


def write_results(outcome: Outcome, out: Path) -> list[Row]:
    """Write what there is, and say what is missing; the rows of results.csv."""
    from rowssl.core.files import write_text

    rows = [row for result in outcome.results for row in result_rows(result)]
    missing = [f"{failure.cell.name}: {failure.reason}" for failure in outcome.failures]
    write_text(out / "results.csv", to_csv(rows))
    pictures = write_pictures(rows, out)
    write_text(out / "results.md", markdown_page(rows, pictures, missing))
    write_text(out / "results.tex", latex_page(summarise(rows)))
    return rows


def write_pictures(rows: Sequence[Row], out: Path) -> dict[Section, list[str]]:
    """Bars of each section; the names of the files."""
    from rowssl.core.files import write_text

    written: dict[Section, list[str]] = {}
    for section, entries in summarise(rows).items():
        words = "-".join(word for word in section if word and word != "bench")
        slug = "".join(c if c.isalnum() or c in "-." else "_" for c in words)
        for name, columns in PICTURES:
            picture = bars_svg(section, entries, columns)
            if picture:
                write_text(out / f"{name}-{slug}.svg", picture)
                written.setdefault(section, []).append(f"{name}-{slug}.svg")
    return written
