"""Numbers of an item's runs in the paper's words, the paper's own beside them, and whether its claims held."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rowssl.bench.grid import Result, epoch_rows, read_result
from rowssl.bench.published import METHODS, paper_values
from rowssl.bench.results import Row, result_rows
from rowssl.paper.plan import Planned, Settings
from rowssl.paper.spec import Claim, Item, Line, Where

STRATEGIES = {
    "Tr-bACC": "train",
    "In-bACC (recluster+rematch)": "test recluster+rematch",
    "In-bACC (rematch)": "test rematch",
    "In-bACC": "test inductive",
}
SMALL = " (small)"  # behind a data set's name: the numbers are of a subset
COMPARED = (
    "table",
    "dataset",
    "gamma",
    "prior",
    "variant",
    "method",
    "metric",
    "group",
    "ours",
    "std",
    "seeds",
    "paper",
    "difference",
)


@dataclass(frozen=True)
class Finished:
    """A planned run and its result."""

    plan: Planned
    result: Result
    folder: Path


def finished(plans: Sequence[Planned], runs: Path) -> list[Finished]:
    """The runs that are done, in the order of the plan."""
    found = []
    for plan in plans:
        result = None if plan.cell is None else read_result(plan.cell, runs)
        if plan.cell is not None and result is not None:
            found.append(Finished(plan, result, plan.cell.folder(runs)))
    return found


def shown_method(line: Line) -> str:
    """The paper's word for the method of a line."""
    return line.shown or METHODS.get(line.method, line.method)


def item_rows(item: Item, done: Sequence[Finished], settings: Settings) -> list[Row]:
    """Every number that belongs to the item, under the names of the paper's table."""
    rows = []
    for one in done:
        data, line = one.plan.block.data, one.plan.line
        words = {
            "table": item.name, "dataset": data.dataset + (SMALL if settings.small else ""), "gamma": data.gamma,
            "prior": data.prior, "variant": line.variant, "method": shown_method(line),
        }  # fmt: skip
        for row in result_rows(one.result):
            made = _number({**row, **words}, item, one)
            if made is not None:
                rows.append(made)
        if item.kind == "phi":
            rows += _phi_rows(one, {**result_rows(one.result)[0], **words})
        if item.kind == "tsne":
            from rowssl.paper.embedding import silhouettes

            about = {**result_rows(one.result)[0], **words, "metric": "silhouette"}
            rows += [
                {**about, "group": part, "value": f"{value:.4f}"} for part, value in silhouettes(one.folder).items()
            ]
    return rows


def _number(row: Row, item: Item, one: Finished) -> Row | None:
    """A number under the item's names, or nothing if it does not belong to its table."""
    if item.kind == "strategies":
        if row["metric"] not in STRATEGIES or row["group"] != "All":
            return None
        return {**row, "variant": f"{row['variant']}, {STRATEGIES[row['metric']]}", "metric": "bACC"}
    if (row["metric"], row["group"]) not in item.columns:
        return None
    if row["metric"] == "C_hat" and one.plan.line.classes == "search":  # the search's own number
        return {**row, "value": f"{one.result.metrics['classes']['heads']:.4f}"}
    return row


def curve_of(folder: Path) -> dict[int, dict[str, float]]:
    """phi by epoch and group, from metrics.jsonl; DamagedError if a line of it is not whole."""
    return {row["epoch"]: row["phi"] for row in epoch_rows(folder) if row.get("phi")}


def _phi_rows(one: Finished, about: Row) -> list[Row]:
    """phi of every epoch it was measured at; of the last one also under a name without its number."""
    measured = curve_of(one.folder)
    rows = []
    for epoch, groups in measured.items():
        names = [f"phi, epoch {epoch}"] + (["phi, last epoch"] if epoch == max(measured) else [])
        rows += [
            {**about, "metric": name, "group": group, "value": f"{value:.4f}"}
            for name in names
            for group, value in groups.items()
        ]
    return rows


class PaperNumbers:
    """The paper's numbers of one item: those of its own table first, then what single lines point to."""

    def __init__(self, item: Item) -> None:
        self.item = item
        self.elsewhere = {line.variant: line.paper for block in item.blocks for line in block.lines if line.paper}

    def of(self, row: Row | dict[str, str]) -> float | None:
        """Beside one of our rows."""
        table, variant = self.elsewhere.get(row["variant"]) or (self.item.name, row["variant"])
        dataset = row["dataset"].removesuffix(SMALL)
        key = (dataset, row["gamma"], row["prior"], variant, row["method"], row["metric"], row["group"])
        return paper_values(table).get(key)

    def where(self, where: Where) -> float | None:
        """Of a pick of a claim, if all lines it could mean are one."""
        wanted = dict(where)
        found = set()
        for block in self.item.blocks:
            for line in block.lines:
                row = {
                    "dataset": block.data.dataset, "gamma": block.data.gamma, "prior": block.data.prior,
                    "variant": wanted.get("variant", line.variant) if self.item.kind == "strategies" else line.variant,
                    "method": shown_method(line), "metric": wanted.get("metric", ""), "group": wanted.get("group", ""),
                }  # fmt: skip
                if all(row[key] == value for key, value in wanted.items()):
                    found.add(self.of(row))
        found.discard(None)
        return found.pop() if len(found) == 1 else None


def comparison_csv(rows: Sequence[Row], numbers: PaperNumbers) -> str:
    """Ours (mean over seeds), the paper's and the difference, one number a row."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in COMPARED[:8]), []).append(row)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COMPARED)
    for key, same in groups.items():
        values = [float(row["value"]) for row in same]
        mean, stated = statistics.fmean(values), numbers.of(same[0])
        spread = f"{statistics.stdev(values):.4f}" if len(values) > 1 else ""
        beside = ["", ""] if stated is None else [f"{stated:g}", f"{mean - stated:.4f}"]
        writer.writerow([*key, f"{mean:.4f}", spread, len(values), *beside])
    return text.getvalue()


PaperOf = Callable[[Where], float | None]
CONFIDENCE = 0.9  # of ten differences that do not exist one is taken for real


@dataclass(frozen=True)
class Verdict:
    """What our runs say of a claim.

    Attributes
    ----------
    state : yes, no, not told apart, one seed (which cannot tell), or no numbers.
    difference, spread : mean and sample standard deviation of left - right over seeds; one seed has no spread.
    seeds : that have both numbers.
    paper : the paper's difference, where it states one.
    against : which of several on the right was the strongest, and which of them have no numbers.
    """

    claim: Claim
    state: str
    difference: float | None = None
    spread: float | None = None
    seeds: int = 0
    paper: float | None = None
    against: str = ""

    @property
    def sentence(self) -> str:
        """In words."""
        digits = 2 if dict(self.claim.left).get("metric", "").startswith("phi") else 1
        paper = "" if self.paper is None else f" (paper: {self.paper:+.1f})"
        if self.difference is None:
            return f"{self.claim.says}: no numbers{paper}."
        amount = f"{self.difference:+.{digits}f}" + ("" if self.spread is None else f" ± {self.spread:.{digits}f}")
        against = f" against {self.against}" if self.against else ""
        seeds = f" over {self.seeds} seeds" if self.seeds > 1 else ", which has no spread to judge it by"
        return f"{self.claim.says}: {self.state}, {amount}{against}{paper}{seeds}."


def judge(claim: Claim, rows: Sequence[Row], *, classes: int, paper_of: PaperOf) -> Verdict:
    """Compare seed by seed; told apart is a difference whose t interval does not reach the claim's limit, see `margin`."""
    left = _values(rows, claim.left)
    rights = _rights(claim, classes)
    if isinstance(rights, float):
        differences = {seed: value - rights for seed, value in left.items()}
        base, against, beside = paper_of(claim.left), "", 100.0 if claim.right == "C" else rights
        paper = claim.stated if claim.stated is not None else None if base is None else base - beside
    else:
        found = {where: _values(rows, where) for where in rights}
        common = set(left).intersection(*(set(values) for values in found.values() if values))
        present = {where: values for where, values in found.items() if values}
        paper = claim.stated if claim.stated is not None else _paper_difference(claim, rights, paper_of)
        if not present or not common:
            return Verdict(claim, "no numbers", paper=paper)
        # A claim of being above has to stand against the highest of the others, one of being below against that as well:
        # "below the best other" is how the paper says it.
        strongest = max(present, key=lambda where: statistics.fmean(present[where][seed] for seed in common))
        differences = {seed: left[seed] - present[strongest][seed] for seed in sorted(common)}
        absent = [_word(where, rights) for where in rights if where not in present]
        against = _word(strongest, rights) + (f" (without {', '.join(absent)})" if absent else "")
    if not differences:
        return Verdict(claim, "no numbers", paper=paper)
    mean = statistics.fmean(differences.values())
    spread = statistics.stdev(differences.values()) if len(differences) > 1 else None
    over = claim.sign * mean - claim.least
    if spread is None:
        state = "one seed"
    elif abs(over) <= margin(spread, len(differences)):
        state = "not told apart"
    else:
        state = "yes" if over > 0 else "no"
    return Verdict(claim, state, mean, spread, len(differences), paper, against)


def margin(spread: float, seeds: int) -> float:
    """Half of the two-sided interval of a mean of that many differences with that sample standard deviation."""
    from scipy.stats import t

    return float(t.ppf((1 + CONFIDENCE) / 2, seeds - 1)) * spread / seeds**0.5


def _rights(claim: Claim, classes: int) -> float | tuple[Where, ...]:
    if claim.right == "C":
        return float(classes)
    if isinstance(claim.right, (int, float)):
        return float(claim.right)
    several = bool(claim.right) and isinstance(claim.right[0][0], tuple)
    return tuple(claim.right) if several else (claim.right,)  # type: ignore[arg-type, return-value]


def _paper_difference(claim: Claim, rights: tuple[Where, ...], paper_of: PaperOf) -> float | None:
    left, others = paper_of(claim.left), [paper_of(where) for where in rights]
    stated = [value for value in others if value is not None]
    return None if left is None or not stated else left - max(stated)


def _values(rows: Sequence[Row], where: Where) -> dict[int, float]:
    """By seed."""
    return {int(row["seed"]): float(row["value"]) for row in rows if all(row[key] == value for key, value in where)}


def _word(strongest: Where, rights: tuple[Where, ...]) -> str:
    """What tells the strongest from the others, if there are others."""
    if len(rights) == 1:
        return ""
    same = set(rights[0]).intersection(*map(set, rights))
    return ", ".join(value for key, value in strongest if (key, value) not in same)


def summary(verdicts: Sequence[Verdict]) -> str:
    """How many held."""
    words = {"yes": "held", "no": "did not hold", "not told apart": "not told apart", "one seed": "of one seed",
             "no numbers": "without numbers"}  # fmt: skip
    counts = {state: sum(v.state == state for v in verdicts) for state in words}
    return ", ".join(f"{number} {words[state]}" for state, number in counts.items() if number) or "no claims"
