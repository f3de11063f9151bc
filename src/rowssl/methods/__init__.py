"""The methods by name: one file each, one dict, no registry."""

from __future__ import annotations

from dataclasses import asdict
from inspect import signature
from typing import Any

from torch import nn

from rowssl.core.errors import InputError
from rowssl.methods.bacon import BaCon
from rowssl.methods.base import Method
from rowssl.methods.dts import DTS, dts_options
from rowssl.methods.gcd import GCD
from rowssl.methods.kmeans import KMeans
from rowssl.methods.opencon import OpenCon
from rowssl.methods.orca import ORCA
from rowssl.methods.promptcal import PromptCAL
from rowssl.methods.simgcd import SimGCD
from rowssl.methods.transfer import Auto, Transfer
from rowssl.methods.trssl import TRSSL

METHODS: dict[str, type[Method]] = {
    "auto": Auto,
    "transfer": Transfer,
    "kmeans": KMeans,
    "gcd": GCD,
    "orca": ORCA,
    "trssl": TRSSL,
    "opencon": OpenCon,
    "promptcal": PromptCAL,
    "bacon": BaCon,
    "simgcd": SimGCD,
    "dts": DTS,
}


def check_method(name: str, options: dict[str, Any]) -> None:
    """Refuse an unknown method or option before hours are spent on features; InputError names it."""
    if name not in METHODS:
        raise InputError(f"There is no method '{name}': choose one of {', '.join(METHODS)}.")
    if name == "dts":
        dts_options(**options)
        return
    known = {key for key, p in signature(METHODS[name].__init__).parameters.items() if p.kind is p.KEYWORD_ONLY}
    for option in options:
        if option not in known:
            raise InputError(f"Method {name} has no option '{option}': choose among {', '.join(sorted(known))}.")


def method_options(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Every option of a method with its value: as given, else its default. What a run is known by beside its configuration."""
    check_method(name, options)
    if name == "dts":
        return asdict(dts_options(**options))
    parameters = signature(METHODS[name].__init__).parameters.values()
    own = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is not p.empty}
    return {key: value for key, value in own.items() if key != "seed"} | options


def build_method(
    name: str, tail: nn.Module, options: dict[str, Any], *, n_old: int, n_classes: int, n_rows: int, seed: int
) -> Method:
    """A method on a tail."""
    if n_classes < max(2, n_old):
        raise InputError(f"{n_classes} classes are too few: there are {n_old} with labels, and at least 2 are needed.")
    return METHODS[name](tail, n_old=n_old, n_classes=n_classes, n_rows=n_rows, seed=seed, **options)
