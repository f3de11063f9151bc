"""Whether a claim held: the difference of two numbers, seed by seed, and its spread."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rowssl.bench.results import Row
from rowssl.paper.spec import Claim, Where

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
