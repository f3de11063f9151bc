"""How many of the first ten proposals of `rowssl suggest` are right, with too many classes (merges) and too few (splits).

    python benchmarks/proposals.py               # collections of ../shared/data, digits
    python benchmarks/proposals.py --sub 10      # and ten random parts of every collection
    python benchmarks/proposals.py --sub 10 --fit     # learn the weights of rowssl/runs/suggest.py anew on all of these

The closed form is given 1.3 or 0.8 times the true number of classes. A merge is right where both classes have the same majority, a
split where its parts have different ones. Collections are those of count_trials.py.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from count_trials import Trial, trials

from rowssl.counting.hidden import components
from rowssl.methods.transfer import first_centroids, in_metric, nearest_centroid, spherical_rounds
from rowssl.runs.suggest import LEAST_PART, MERGE, SMALLEST, SPLIT, USUAL, compare, compared, learnt, same_class

FIRST = 10
FACTORS = {"merge": 1.3, "split": 0.8}


@dataclass(frozen=True)
class Case:
    """What was compared in a run, whether it is of one class, and what the run's known classes look like."""

    seen: np.ndarray
    same: np.ndarray
    unlike: np.ndarray
    alike: np.ndarray


def case(trial: Trial, kind: str) -> Case:
    """A run of the closed form with the wrong number of classes."""
    n_old, truth = int(trial.target.max()) + 1, trial.truth
    classes = max(n_old + 1, round(FACTORS[kind] * len(np.unique(truth))))
    target = torch.from_numpy(trial.target)
    x = in_metric(components(F.normalize(torch.from_numpy(trial.x).float(), dim=1)), trial.target)
    head = nearest_centroid(x, spherical_rounds(x, target, first_centroids(x, target, n_old, classes)))
    group = torch.where(target >= 0, target, head).numpy()
    whole, parts, pairs, sides = compared(x, group, classes, n_old)
    groups, asked = (parts, sides) if kind == "split" else (whole, pairs[~(pairs < n_old).all(1)])
    if kind == "split":
        sizes = parts.size[sides]
        asked = sides[(sizes.sum(1) >= SMALLEST) & (sizes.min(1) >= LEAST_PART)]
    table = np.zeros((len(groups.size), int(truth.max()) + 1))
    np.add.at(table, (groups.group, truth), 1)
    majority = table.argmax(1)
    known = (pairs < n_old).all(1)
    return Case(
        compare(groups, asked), majority[asked[:, 0]] == majority[asked[:, 1]],
        compare(whole, pairs[known]), compare(parts, sides[sides[:, 0] < 2 * n_old]),
    )  # fmt: skip


def judged(one: Case, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Probability of the first proposals and whether they are right."""
    shift = learnt(one.unlike, one.alike) - USUAL
    same = same_class(one.seen, (MERGE if kind == "merge" else SPLIT) + shift)
    probability, right = (same, one.same) if kind == "merge" else (1 - same, ~one.same)
    first = np.argsort(-probability, kind="stable")[:FIRST]
    return probability[first], right[first]


def fit(cases: dict[str, list[Case]]) -> None:
    """Print the weights that these cases give."""
    from sklearn.linear_model import LogisticRegression

    def weights(seen: np.ndarray, same: np.ndarray, each: np.ndarray | None = None) -> list[float]:
        model = LogisticRegression(C=2.0).fit(seen, same, sample_weight=each)
        return [round(float(value), 2) for value in (*model.intercept_, *model.coef_[0])]

    for kind, some in cases.items():
        print(kind, weights(np.concatenate([c.seen for c in some]), np.concatenate([c.same for c in some])))
    every = [one for some in cases.values() for one in some if len(one.unlike) and len(one.alike)]
    seen = np.concatenate([part for one in every for part in (one.unlike, one.alike)])
    size = np.array([len(part) for one in every for part in (one.unlike, one.alike)])
    print("usual", weights(seen, np.repeat(np.arange(len(size)) % 2, size), np.repeat(20 / size, size)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sub", type=int, default=0, help="random parts of every collection")
    parser.add_argument("--fit", action="store_true")
    options = parser.parse_args()
    cases: dict[str, list[Case]] = {kind: [] for kind in FACTORS}
    told: dict[str, list[tuple[tuple[np.ndarray, np.ndarray], ...]]] = {}
    for trial in trials(options.sub):
        both = tuple(case(trial, kind) for kind in FACTORS)
        for kind, one in zip(FACTORS, both, strict=True):
            cases[kind].append(one)
        told.setdefault(trial.name, []).append(tuple(judged(c, k) for k, c in zip(FACTORS, both, strict=True)))
    if options.fit:
        fit(cases)
        return
    print(
        "| collection and labels | runs | merges right of the first 10 | said | splits right | said |\n|---|---|---|---|---|---|"
    )
    everything = [row for rows in told.values() for row in rows]
    for name, rows in (*told.items(), ("**all**", everything)):
        cells = []
        for place in range(len(FACTORS)):
            right = [10 * row[place][1].mean() for row in rows]
            cells.append(f"{np.mean(right):.1f} | {10 * np.mean([row[place][0].mean() for row in rows]):.1f}")
        print(f"| {name} | {len(rows)} | {' | '.join(cells)} |")
    print("\n| probability said | merges | right | splits | right |\n|---|---|---|---|---|")
    for low in (0.0, 0.25, 0.5, 0.75):
        cells = []
        for place in range(len(FACTORS)):
            said, right = (np.concatenate([row[place][i] for row in everything]) for i in (0, 1))
            here = (said >= low) & (said < low + 0.25 + (low == 0.75))
            cells.append(f"{here.sum()} | {100 * right[here].mean():.0f} %" if here.any() else "0 | ")
        print(f"| {100 * low:.0f} to {100 * low + 25:.0f} % | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
