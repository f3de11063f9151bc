"""Run the cells of a grid: what is finished stays, what was killed goes on, what fails is tried again and reported.

The trunk outputs of all data are computed here first, once; the processes of the cells then only read them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from signal import Signals

from rowssl.bench.cell import FILE, NON_FINITE, REFUSED, DamagedError
from rowssl.bench.grid import Cell, Result, open_result, read_result
from rowssl.bench.runners import Runner, open_runner
from rowssl.core.console import bar, err
from rowssl.core.errors import InputError
from rowssl.core.files import lock, write_text

RETRIES = 1
PATIENCE = 10.0  # seconds that the processes of a killed grid get to notice it


@dataclass(frozen=True)
class Failure:
    """A cell that has no result, and why."""

    cell: Cell
    folder: Path
    reason: str


@dataclass(frozen=True)
class Outcome:
    """Of a grid: the results there are, in the order of the cells, and what failed."""

    results: list[Result]
    failures: list[Failure]


def run_cells(
    cells: Sequence[Cell],
    runs: Path,
    *,
    workers: int | None = None,
    on: str = "local",
    report: bool = False,
    retries: int = RETRIES,
) -> Outcome:
    """Run what is not finished yet, and once more what is finished and damaged.

    Parameters
    ----------
    cells
        Several may stand for the same run; it is made once.
    runs
        Folder of the run directories. Grids may share it, one at a time.
    workers
        Processes at a time, by default one for each GPU, else for each core; 0 runs the cells in this process.
    on
        `local`, `ray` or `ray://address`.
    report
        Also write `report.html` and `model/` of each run.
    retries
        Further attempts at a cell that failed, after all others had theirs.
    """
    distinct = {cell.folder(runs): cell for cell in cells}
    found = {folder: whole_result(cell, runs) for folder, cell in distinct.items()}
    todo = {folder: cell for folder, cell in distinct.items() if found[folder] is None}
    failures: list[Failure] = []
    if todo:
        busy = f"another command is at work in {runs}: wait for it, or choose another --out."
        with lock(runs / ".lock", busy=busy, seconds=PATIENCE):
            check(list(todo.values()))
            prepare(list(todo.values()), [result for result in found.values() if result is not None], runs, on=on)
            runner = open_runner(on, workers, report=report)
            err.print(
                f"{len(found)} cells: {len(found) - len(todo)} finished, {len(todo)} to run, "
                f"{min(runner.slots, len(todo))} at a time",
                markup=False,
            )
            failures = run_queue(todo, runs, runner, retries, progress=workers != 0)
    results = [read_result(cell, runs) for cell in cells]
    return Outcome([result for result in results if result is not None], failures)


def whole_result(cell: Cell, runs: Path) -> Result | None:
    """Of a cell that is finished and whole; of another one the damaged file is named, since the cell is run again for it."""
    try:
        return open_result(cell, runs)
    except DamagedError as error:
        err.print(f"{error} Its cell is run again.", markup=False, soft_wrap=True)
        return None


def run_queue(
    todo: dict[Path, Cell], runs: Path, runner: Runner, retries: int, *, progress: bool = True
) -> list[Failure]:
    """Keep the runner busy until every cell has ended; whoever stops this stops all processes."""
    waiting, attempts, failures = deque(todo), Counter[Path](), list[Failure]()
    try:
        with bar("cells", len(todo), enabled=progress) as display:
            while waiting or runner.busy:
                while waiting and runner.busy < runner.slots:
                    folder = waiting.popleft()
                    attempts[folder] += 1
                    # Whatever is killed from here on, a cell that is run again is not taken for the damaged one before it.
                    (folder / FILE).unlink(missing_ok=True)
                    write_text(folder / "config.json", todo[folder].config.model_dump_json(indent=1))
                    runner.submit(folder)
                ended = 0
                for folder, code in runner.wait():
                    if read_result(todo[folder], runs) is not None:
                        ended += 1
                    elif attempts[folder] <= retries and code not in (REFUSED, NON_FINITE):
                        waiting.append(folder)
                        err.print(f"once more: {folder.name}: {reason(folder, code)}", markup=False, soft_wrap=True)
                    else:
                        ended += 1
                        failures.append(Failure(todo[folder], folder, reason(folder, code)))
                display.advance(ended, note=f"{len(failures)} failed" if failures else None)
    finally:
        runner.stop()
    return failures


def reason(folder: Path, code: int) -> str:
    """Why a process ended, in one line: the last it said, or what killed it."""
    if code < 0:
        name = Signals(-code).name if -code in set(Signals) else f"signal {-code}"
        return f"killed by {name}" + (" (often a lack of memory)" if name == "SIGKILL" else "")
    with suppress(OSError):
        said = (folder / "log.txt").read_text(encoding="utf-8", errors="replace").split("\n")
        last = next((line.strip() for line in reversed(said) if line.strip()), "")
        if last:
            return last.removeprefix("rowssl: ")
    return f"exit code {code}, and it said nothing"


def check(cells: Sequence[Cell]) -> None:
    """Refuse what a grid cannot do before anything is computed; a method's options are looked at when a cell is named."""
    for cell in cells:
        if cell.config.start is not None:
            raise InputError("start names a run to go on from, which one run may do: the cells of a grid begin anew.")


def prepare(cells: Sequence[Cell], finished: Sequence[Result], runs: Path, *, on: str = "local") -> None:
    """Compute the trunk outputs of all rows of all cells, which all processes then share; `on` as for the cells.

    Priors and imbalance ratios take different rows of a table; each adds to one cache what the others did not have. The same
    look at the data tells whether finished cells saw these data and this encoder; an InputError names one that did not.
    """
    from rowssl.core.distributed import device
    from rowssl.data.problem import load_problem
    from rowssl.training.features import open_features
    from rowssl.training.plan import views_follow

    seen: dict[tuple[str, str], tuple[str, str]] = {}
    filled: set[tuple[object, ...]] = set()
    for cell in cells:
        cache = (*_inputs(cell), *views_follow(cell.config))
        if cache not in filled:
            filled.add(cache)
            problem = load_problem(cell.config.data)
            # Trunk outputs do not depend on their reduction, which every run makes for itself.
            whole = cell.config.encoder.model_copy(update={"reduce": 0})
            config = cell.config.model_copy(update={"encoder": whole})
            opened = open_features(problem, config, device=device(config.train.device), on=on)
            seen[_inputs(cell)] = (problem.table.fingerprint(), opened.encoder.fingerprint)
    for result in finished:
        made_from = (result.facts["table"], result.facts["encoder"]["sha256"])
        if seen.get(_inputs(result.cell), made_from) != made_from:
            folder = result.cell.folder(runs)
            raise InputError(f"{folder} was run on other data or another encoder: choose another --out or remove it.")


def _inputs(cell: Cell) -> tuple[str, str]:
    return cell.config.data.model_dump_json(), cell.config.encoder.model_dump_json()
