"""Mean and spread over seeds of finished runs, as a Markdown table.

    python benchmarks/table.py RUNS/*/metrics.json

Runs are grouped by what their folder's name says before the last dash (`dts-match-0`, `dts-match-1`, ... are one row).
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path

COLUMNS = ("tr_acc", "tr_bacc", "in_bacc", "in_bacc_rematch", "in_bacc_recluster_rematch")


def spread(values: list[float]) -> str:
    """Mean and sample standard deviation; one run has no spread."""
    mean = statistics.mean(values)
    return f"{mean:.1f} ± {statistics.stdev(values):.1f}" if len(values) > 1 else f"{mean:.1f}"


def main() -> None:
    groups: dict[str, list[dict]] = defaultdict(list)
    for argument in sys.argv[1:]:
        path = Path(argument)
        groups[path.parent.name.rpartition("-")[0]].append(json.loads(path.read_text()))
    print("| run | seeds | " + " | ".join(f"{c} All / Old / New" for c in COLUMNS) + " | heads used | minutes |")
    print("|" + "---|" * (len(COLUMNS) + 4))
    for name, runs in sorted(groups.items()):
        cells = [" / ".join(spread([r[c][g] for r in runs]) for g in ("all", "old", "new")) for c in COLUMNS]
        seeds = ", ".join(str(r["seed"]) for r in sorted(runs, key=lambda r: r["seed"]))
        used = spread([r["classes"]["estimated"] for r in runs])
        minutes = spread([r["seconds"] / 60 for r in runs])
        print(f"| {name} | {seeds} | " + " | ".join(cells) + f" | {used} | {minutes} |")


if __name__ == "__main__":
    main()
