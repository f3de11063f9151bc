"""Promises about the source itself."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
# The original CIFAR archives are pickles; that file reads them with an unpickler that admits arrays and plain containers.
MAY_UNPICKLE = {"cifar.py"}


@pytest.mark.parametrize("path", [*SOURCES, *sorted((ROOT / "tests").rglob("*.py"))], ids=lambda p: p.name)
def test_no_file_is_longer_than_a_person_reads(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 300


def imported(tree: ast.AST) -> set[str]:
    """Top-level names of all imported modules."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.name)
def test_nothing_is_unpickled(path: Path) -> None:
    tree = ast.parse(path.read_text())
    unsafe = {"pickle", "joblib", "dill", "cloudpickle", "shelve", "marshal"} & imported(tree)
    assert not unsafe or path.name in MAY_UNPICKLE
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "load":
            options = {option.arg: option.value for option in node.keywords}
            if isinstance(node.func.value, ast.Name) and node.func.value.id == "torch":
                flag = options.get("weights_only")
                assert isinstance(flag, ast.Constant), "torch.load must say weights_only=True"
                assert flag.value is True
            if isinstance(node.func.value, ast.Name) and node.func.value.id == "np":
                flag = options.get("allow_pickle")
                assert flag is None or (isinstance(flag, ast.Constant) and flag.value is False)


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.name)
def test_no_global_seed(path: Path) -> None:
    """Every draw has a generator of its own; a global seed would make results depend on who drew before."""
    for node in ast.walk(ast.parse(path.read_text())):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("seed", "manual_seed")
        ):
            owner = ast.unparse(node.func.value)
            assert owner not in ("torch", "random", "np.random", "numpy.random", "torch.cuda"), (
                f"{path.name}:{node.lineno}"
            )
