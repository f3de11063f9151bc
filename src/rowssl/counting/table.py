"""`rowssl count`: the estimates of one data set side by side, as a table; their picture is `report/count_chart.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rowssl.config import RunConfig
from rowssl.core.distributed import device
from rowssl.core.frame import Frame
from rowssl.counting.base import AUTO, ESTIMATORS, CountEstimate, count_data, estimate_all
from rowssl.data.problem import Problem, load_problem
from rowssl.training.features import open_features

if TYPE_CHECKING:
    from rich.console import Console

IDEAS = {
    "hidden": "known classes hidden in turn, and counted",
    "density": "clusters, in units of what a known class holds",
    "gcd": "k-means that agrees best with the labels",
    "balanced": "the same, every class counting alike",
    "heads": "heads in use after a short training with twice as many",
}
PICTURES = (".html", ".svg")


@dataclass(frozen=True, repr=False)
class Counts:
    """What `rowssl count` found; the estimate that `--classes auto` uses is the first."""

    estimates: list[CountEstimate]
    rows: int
    labelled: int
    n_old: int
    encoder: str
    true_classes: int | None = None  # where the data know it; no estimator does

    @property
    def frame(self) -> Frame:
        """A line for each estimator."""
        columns = ("estimator", "classes", "low", "high", "seconds", "idea")
        return Frame(columns, [(o.name, o.best, o.low, o.high, o.seconds, IDEAS[o.name]) for o in self.estimates])

    def __repr__(self) -> str:
        return repr(self.frame)

    def _repr_html_(self) -> str:
        return self.frame._repr_html_()

    @property
    def used(self) -> CountEstimate:
        """The one `--classes auto` takes."""
        return self.estimates[0]


def count_source(
    config: RunConfig,
    *,
    max_classes: int | None = None,
    names: Sequence[str] = ESTIMATORS,
    problem: Problem | None = None,
) -> Counts:
    """Read the data of a configuration (or take `problem`), compute (or find) its features, and ask every estimator."""
    problem = problem or load_problem(config.data)
    known_truth = problem.truth is not None and bool((problem.truth >= 0).all())
    # The test rows play no part; their features would only take time.
    problem = replace(problem, test=None, test_truth=None, whole_test=None, test_rows=None)
    features = open_features(problem, config, device=device(config.train.device))
    data = count_data(
        features.train, features.encoder.tail, problem.targets, problem.n_old, seed=config.seed, max_classes=max_classes
    )
    return Counts(
        estimate_all(data, names),
        rows=len(problem.table),
        labelled=int((problem.targets >= 0).sum()),
        n_old=problem.n_old,
        encoder=features.choice,
        true_classes=problem.true_classes if known_truth else None,
    )


def print_counts(counts: Counts, console: Console) -> None:
    """One line for each estimator, the used one marked; notes and the truth below."""
    from rich.table import Table

    known = f"{counts.n_old} known class{'' if counts.n_old == 1 else 'es'}"
    console.print(f"{counts.rows:,} rows, {counts.labelled:,} labelled in {known}", markup=False)
    console.print(f"encoder {counts.encoder}", markup=False, soft_wrap=True)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("estimator", no_wrap=True)
    for heading in ("classes", "interval", "seconds"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("idea")
    for one in counts.estimates:
        table.add_row(
            one.name, f"{one.best:,}", f"{one.low:,} to {one.high:,}", f"{one.seconds:.1f}",
            "used" if one.name == AUTO else "", IDEAS[one.name],
            style="bold" if one.name == AUTO else "",
        )  # fmt: skip
    console.print(table)
    for one in counts.estimates:
        if one.note:
            console.print(f"{one.name}: {one.note}", markup=False, soft_wrap=True)
    if counts.true_classes is not None:
        console.print(f"the data themselves say {counts.true_classes:,}; no estimator was told", markup=False)
