"""How accuracy depends on the number of cached views, and what the cache saves end to end.

    python benchmarks/views.py --data-root ../shared/data --encoder ../shared/encoders/resnet50-imagenet --image-size 96
    python benchmarks/views.py --quick

A subset of CIFAR-100 (2,000 training pictures of a long-tailed split, all test pictures of `--test` per class) is trained for 20
epochs with 1, 2, 4, 8 and 16 cached views and with views made on the fly (`--views 0`), 3 seeds each. `first` is a whole run from
pixels to metrics.json with an empty cache (up to `--empty` views for each seed, beyond for seed 0), `again` one that finds the
cache: what every further seed and method costs. A ratio is the mean over the seeds that have both runs, so that each compares two
runs of one half hour. Targets: `first` at least 10 times as fast as on the fly, and In-bACC within one point of it. On the fly the
trunk sees 2 views of an image in each of the epochs, with V cached views V + 1 in all: at 20 epochs no more than 40 / (V + 1) can
be gained at first, and less than that because the test pictures are seen once in both.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rowssl.config import DataConfig, build_config
from rowssl.data.problem import Problem, load_problem
from rowssl.runs.fit import fit

TARGET, POINTS = 10.0, 1.0
HEADS = "| cached views | In-bACC % | less on the fly | first s | again s | on the fly / first | on the fly / again |"
NOT_ASKED = ("views", "seeds", "empty", "cache", "log")  # what changes no single run


def subset(problem: Problem, rows: int, test_rows: int) -> Problem:
    """Some training and test rows, evenly drawn; classes that lose all rows stay in the count."""
    rng = np.random.default_rng(5)
    keep = np.sort(rng.permutation(len(problem.table))[:rows])
    assert problem.test is not None
    assert problem.truth is not None
    assert problem.test_truth is not None
    judge = np.sort(rng.permutation(len(problem.test))[:test_rows])
    return replace(
        problem,
        table=problem.table.take(keep), targets=problem.targets[keep], truth=problem.truth[keep],
        test=problem.test.take(judge), test_truth=problem.test_truth[judge],
        whole=None, rows=None, whole_test=None, test_rows=None,
    )  # fmt: skip


def run(
    options: argparse.Namespace, problem: Problem, views: int, seed: int, cache: Path, out: Path
) -> tuple[float, dict[str, Any]]:
    """Seconds from pixels to metrics.json, and the metrics."""
    content = {
        "data": data(options),
        "encoder": {
            "name": options.encoder,
            "image_size": options.image_size,
            "tail": options.tail,
            "views": views,
            "cache": str(cache),
        },
        "method": {"name": options.method},
        "train": {"epochs": options.epochs},
        "classes": "oracle",
        "seed": seed,
    }
    shutil.rmtree(out, ignore_errors=True)
    began = time.perf_counter()
    found = fit(build_config(content), out, problem=problem, whole=False)
    return time.perf_counter() - began, found.metrics


def mean(values: dict[int, float]) -> float:
    return float(np.mean(list(values.values())))


def data(options: argparse.Namespace) -> dict[str, Any]:
    return {"name": options.data, "data_root": options.data_root}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="cifar100")
    parser.add_argument("--data-root", help="folder with the benchmark's files")
    parser.add_argument("--encoder", help="name or folder")
    parser.add_argument("--image-size", type=int, help="pixels; as the encoder has it by default")
    parser.add_argument("--tail", default="auto", help="what of the encoder is trained")
    parser.add_argument("--method", default="dts")
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--test", type=int, default=2000, help="test pictures")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--views", type=int, nargs="*", default=[1, 2, 4, 8, 16, 0])
    parser.add_argument(
        "--empty", type=int, default=2, help="up to so many views, every seed starts with an empty cache"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--cache", type=Path, help="where caches go; removed at the end")
    parser.add_argument("--log", type=Path, help="keep each run in this file, and do not repeat those that are there")
    parser.add_argument("--quick", action="store_true", help="digits, few rows, an encoder without weights")
    options = parser.parse_args()
    if options.quick:
        options.data, options.encoder, options.rows, options.test, options.epochs = "digits", "pixels", 120, 60, 1
        options.views, options.seeds = [1, 0], 1
    if options.encoder is None:
        parser.error("--encoder is needed: the number of views means little without a pretrained one")
    problem = subset(load_problem(DataConfig(**data(options))), options.rows, options.test)
    print(
        f"{options.data}, {len(problem.table):,} rows, {options.epochs} epochs, {options.seeds} seeds, encoder {options.encoder},"
    )
    print(f"{options.image_size or 'usual'} px, method {options.method}, {torch.get_num_threads()} threads\n")
    asked = {key: value for key, value in vars(options).items() if key not in NOT_ASKED}
    kept = [line for line in map(json.loads, read(options.log)) if line["asked"] == asked]
    done = {(line["views"], line["seed"]) for line in kept}
    with tempfile.TemporaryDirectory(dir=options.cache) as name:
        folder = Path(name)
        warm = argparse.Namespace(**{**vars(options), "epochs": 1})
        run(warm, subset(problem, 64, 64), 1, 0, folder / "warm", folder / "run")
        for seed in range(options.seeds):  # all numbers of views in turn, so that a busy hour falls on all of them
            for views in options.views:
                if (views, seed) in done:
                    continue
                cache = folder / f"cache-{views}"  # views do not depend on the seed of a run
                if views <= options.empty:
                    shutil.rmtree(cache, ignore_errors=True)
                which = "again" if cache.exists() else "first"
                seconds, metrics = run(options, problem, views, seed, cache, folder / "run")
                line = {"views": views, "seed": seed, which: seconds, "in_bacc": metrics["in_bacc"]["all"]}
                if which == "first" and 0 < views <= options.empty:
                    line["again"], _ = run(options, problem, views, seed, cache, folder / "run")
                kept.append(line)
                print(f"<!-- {json.dumps(line)} -->", flush=True)
                if options.log:
                    with options.log.open("a") as stream:
                        stream.write(json.dumps({**line, "asked": asked}) + "\n")
    table([line for line in kept if line["views"] in options.views])


def read(log: Path | None) -> list[str]:
    """Lines of an earlier run of this program."""
    return log.read_text().splitlines() if log and log.exists() else []


def table(lines: list[dict[str, Any]]) -> None:
    """One row for each number of views."""
    found: dict[int, dict[str, dict[int, float]]] = {}  # views -> what -> seed -> value
    for line in lines:
        for key in ("first", "again", "in_bacc"):
            values = found.setdefault(line["views"], {}).setdefault(key, {})
            if key in line:
                values[line["seed"]] = line[key]
    fly = found.get(0)
    print(f"\n{HEADS}\n{'|---' * (HEADS.count('|') - 1)}|")
    for views in sorted(found, key=lambda views: (views == 0, views)):
        kept = found[views]
        cells = [f"{mean(kept['in_bacc']):.1f} ± {np.std(list(kept['in_bacc'].values())):.1f}"]
        cells.append(f"{mean(kept['in_bacc']) - mean(fly['in_bacc']):+.1f}" if fly and views else "")
        cells += [f"{mean(kept[key]):.0f}" if kept[key] else "" for key in ("first", "again")]
        for key in ("first", "again"):
            pairs = [fly["first"][seed] / seconds for seed, seconds in kept[key].items()] if fly and views else []
            cells.append(f"{np.mean(pairs):.1f} ({min(pairs):.1f} to {max(pairs):.1f})" if pairs else "")
        print(f"| {views or 'on the fly'} | {' | '.join(cells)} |")
    print(f"\ntargets: at least {TARGET:.0f} times as fast (first), In-bACC within {POINTS:.0f} point")


if __name__ == "__main__":
    main()
