"""Imports go downward only: a room of the package knows the rooms below it, and none above or beside it."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src" / "rowssl"
LAYERS = (
    {"core"}, {"config"}, {"data"}, {"clustering"}, {"encoders"}, {"methods"}, {"training"}, {"evaluation"}, {"counting"},
    {"runs"}, {"report"}, {"api"}, {"bench", "serve", "sklearn"}, {"paper"}, {"cli"},
)  # fmt: skip
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}


def imported(path: Path) -> set[str]:
    """Dotted names below `rowssl` of what a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: imports are written whole"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.removeprefix("rowssl.") for name in found if name.startswith("rowssl.")}


def upward() -> list[str]:
    """Every import of a room that is not below, as `importer -> imported`."""
    wrong = set()
    for path in SOURCE.rglob("*.py"):
        own = path.relative_to(SOURCE).with_suffix("").parts
        if own[0] in ("__init__", "__main__"):  # the face of the package
            continue
        for name in imported(path):
            room = name.split(".")[0]
            if room != own[0] and room in LEVEL and LEVEL[room] >= LEVEL[own[0]]:
                wrong.add(f"{'.'.join(own)} -> {name}")
    return sorted(wrong)


def test_every_module_is_in_a_room() -> None:
    assert {path.stem for path in SOURCE.iterdir() if not path.name.startswith("__")} <= LEVEL.keys() | {"py"}


def test_imports_go_downward() -> None:
    assert not upward(), "\n" + "\n".join(upward())
