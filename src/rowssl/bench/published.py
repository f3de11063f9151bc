"""The paper's own numbers, and which of them stand beside a run of ours.

`published.csv` holds every number of the tables of arXiv:2405.20829, one a row.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from rowssl.config import DataConfig

SOURCE = "arXiv:2405.20829"
COLUMNS = ("table", "dataset", "gamma", "prior", "variant", "method", "metric", "group", "value")
METHODS = {
    "kmeans": "k-means",
    "orca": "ORCA",
    "gcd": "GCD",
    "trssl": "TRSSL",
    "opencon": "OpenCon",
    "promptcal": "PromptCAL",
    "simgcd": "SimGCD",
    "bacon": "BaCon",
    "dts": "DTS",
}  # in the order of the paper's tables
Key = tuple[str, str, str, str, str, str, str]  # dataset, gamma, prior, variant, method, metric, group


@cache
def paper_rows() -> tuple[dict[str, str], ...]:
    """All numbers as they stand in the file, `value` as text."""
    text = files("rowssl.bench").joinpath("published.csv").read_text(encoding="utf-8")
    return tuple(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))


@cache
def paper_values(table: str | None = None) -> dict[Key, float]:
    """Numbers by what they are; where several tables state one, the first (the main table) counts."""
    values: dict[Key, float] = {}
    for row in paper_rows():
        if table in (None, row["table"]):
            dataset, gamma, prior, variant, method, metric, group = (row[name] for name in COLUMNS[1:-1])
            values.setdefault((dataset, gamma, prior, variant, method, metric, group), float(row["value"]))
    return values


def paper_value(row: Mapping[str, Any]) -> float | None:
    """The paper's number beside one of our rows, if it states one for the same data, prior, method, metric and group."""
    key = (row["dataset"], row["gamma"], row["prior"], row["variant"], row["method"], row["metric"], row["group"])
    return paper_values().get(key)


def dataset_words(data: DataConfig, recipe: Mapping[str, Any]) -> tuple[str, str]:
    """Data set and imbalance ratio in the paper's words, if this is a split that the paper reports on; else in ours.

    Parameters
    ----------
    recipe : of the split, with the ratio as it was applied.
    """
    ratio = recipe.get("gamma", data.gamma)
    gamma = "natural" if ratio is None else f"{float(ratio):g}"
    name = data.name or Path(data.source or "").stem
    if data.name is None:
        return name, "" if ratio is None else gamma
    usual = data.model_copy(update={"data_root": None, "gamma": None, "prior": None, "variant": None})
    if usual == DataConfig(name=name):  # protocol rowssl, and every other choice as it is by default
        if name == "cifar100":
            return ("CIFAR-100" if gamma == "1" else "CIFAR-100-LT"), gamma
        if name == "herbarium19":
            return "Herbarium19", gamma
    if name == "imagenet100" and data.protocol == "bacon" and data.variant == "bacon":
        return "ImageNet-100-LT", "BaCon split"
    return name, gamma
