"""The methods by name: each a class with a `name` in a file of this folder, or of `methods/` in a folder of `ROWSSL_PLUGINS`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rowssl.core.errors import InputError
from rowssl.core.listing import Listing, with_plugins

if TYPE_CHECKING:
    from torch import nn

    from rowssl.methods.base import Method

__path__ = with_plugins(__path__, "methods")
METHODS: Listing[type[Method]] = Listing(__name__, first=("auto", "transfer"))


def check_method(name: str, options: dict[str, Any]) -> None:
    """Refuse an unknown method or option before hours are spent on features; InputError names it."""
    if name not in METHODS:
        raise InputError(f"There is no method '{name}': choose one of {', '.join(METHODS)}.")
    METHODS[name].read_options(options)


def method_options(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Every option of a method with its value: as given, else its default. A run's identity holds them."""
    check_method(name, options)
    return METHODS[name].read_options(options).model_dump()


def build_method(
    name: str, tail: nn.Module, options: dict[str, Any], *, n_old: int, n_classes: int, n_rows: int, seed: int
) -> Method:
    """A method on a tail."""
    if n_classes < max(2, n_old):
        raise InputError(f"{n_classes} classes are too few: there are {n_old} with labels, and at least 2 are needed.")
    return METHODS[name](tail, n_old=n_old, n_classes=n_classes, n_rows=n_rows, seed=seed, **options)
