"""Numbers of classes that were searched, by GCD's way, kept in OUT/estimates.json with a hash of all of them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from rowssl.bench.checksums import DamagedError, read_sealed, write_sealed
from rowssl.config import RunConfig
from rowssl.core.console import err

FILE = "estimates.json"


def searched(config: RunConfig, out: Path, *, estimate: bool, on: str = "local") -> int | None:
    """GCD's estimate of the number of classes, kept in OUT/estimates.json; None if it is not there and not wanted."""
    key, path = _key(config), out / FILE
    try:
        stored = read_estimates(path)
    except DamagedError as error:
        stored = {}
        if estimate:
            err.print(f"{error} What it held is computed again.", markup=False, soft_wrap=True)
    if key not in stored and estimate:
        stored[key] = {
            "classes": _search(config, on),
            "data": config.data.model_dump(mode="json", exclude_none=True),
            "seed": config.seed,
        }
        write_sealed(path, stored)
    return int(stored[key]["classes"]) if key in stored else None


def read_estimates(path: Path) -> dict[str, Any]:
    """By what decides them; none if there is no such file, and a DamagedError if it is not as it was written."""
    return read_sealed(path) if path.exists() else {}


def _key(config: RunConfig) -> str:
    """Of everything that decides an estimate."""
    content = [
        config.data.model_dump(mode="json"),
        config.encoder.deciding().model_dump(mode="json"),
        config.seed,
    ]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _search(config: RunConfig, on: str) -> int:
    from rowssl.core.distributed import device
    from rowssl.counting.base import count_data, run_estimator
    from rowssl.data.problem import load_problem
    from rowssl.training.features import open_features

    problem = load_problem(config.data)
    features = open_features(problem, config, device=device(config.train.device), on=on)
    data = count_data(features.train, features.encoder.tail, problem.targets, problem.n_old, seed=config.seed)
    return run_estimator("gcd", data).best
