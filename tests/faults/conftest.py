"""Short versions by default; `ROWSSL_FULL=1` (what `make faults` sets) runs the full counts and writes their table.

A test that counts something says so through the fixture `tally`; with the full counts the rows go to docs/reliability.md,
between the two comments that name its table.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from faults.forked import Forked

FULL = os.environ.get("ROWSSL_FULL", "") not in ("", "0")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"


@pytest.fixture(scope="session")
def full() -> bool:
    """Whether the full counts are wanted."""
    return FULL


@pytest.fixture(scope="session")
def forked() -> Iterator[Forked]:
    """A process that has imported everything, to fork commands from."""
    from faults.forked import Forked

    with Forked() as process:
        yield process


@pytest.fixture(scope="session")
def embeddings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small long-tailed problem with views and truth, as a file: 240 rows, 4 known and 4 novel classes."""
    import numpy as np

    from contract.problems import long_tailed

    problem = long_tailed(240, known=4, novel=4, dim=16, views=3)
    path = tmp_path_factory.mktemp("data") / "embeddings.npz"
    np.savez(
        path, embeddings=problem.embeddings, views=problem.views, labels=problem.targets, truth=problem.truth,
        test_embeddings=problem.test, test_truth=problem.test_truth,
    )  # fmt: skip
    return path


@pytest.fixture
def tally() -> Callable[[str, int, int], None]:
    """`tally(what, held, tried)`: a row of the table in docs/reliability.md; `held` must be all of them."""
    began = time.monotonic()

    def note(what: str, held: int, tried: int) -> None:
        if FULL and PAGE.exists():
            write_row(what, f"| {what} | {held} of {tried} | {time.monotonic() - began:.0f} |")
        assert held == tried, f"{what}: {held} of {tried}"

    return note


def write_row(what: str, row: str) -> None:
    """Lay a row over that of the page, at once: hours of tests may be interrupted. The other rows stay."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.search(r"(<!-- table -->\n\n.*?\|[-|: ]+\|\n)(.*?)(\n<!-- end of table -->)", text, flags=re.DOTALL)
    if found is None:
        return
    rows = {line.split("|")[1].strip(): line for line in found[2].splitlines() if line.count("|") > 2}
    lines = "\n".join(line for _, line in sorted({**rows, what: row}.items()))
    PAGE.write_text(text[: found.start(2)] + lines + "\n" + text[found.start(3) :], encoding="utf-8")
