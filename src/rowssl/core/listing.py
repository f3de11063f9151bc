"""What the files of a folder offer, by name: read from their source, so that a list costs no import.

A file offers a class that has a `name` (its help line is the first line of its docstring), or what the keys of its dict `NAMES`
say (the values are help lines). Users add files of their own in the folders of `ROWSSL_PLUGINS`.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterator, MutableMapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from rowssl.core.errors import InputError
from rowssl.core.text import printable

T = TypeVar("T")
PLUGINS = "ROWSSL_PLUGINS"  # folders with methods/, benchmarks/ and encoders/, separated as in PATH
OFFERS = re.compile(r"^(NAMES|    name)\b[^=\n]*=", re.MULTILINE)  # most files offer nothing, and are not parsed


class Entry(NamedTuple):
    """A name, what it is called in tables, its help line, and where it is: an attribute of a module, or the module itself."""

    name: str
    label: str
    help: str
    module: str
    attribute: str = ""


def with_plugins(path: Sequence[str], room: str) -> list[str]:
    """The folders of a package, followed by those that users have for it."""
    folders = [folder for folder in os.environ.get(PLUGINS, "").split(os.pathsep) if folder]
    return [*path, *(os.path.join(os.path.abspath(folder), room) for folder in folders)]


class Listing(MutableMapping[str, T]):
    """Names of a package's folders and what they stand for, which is imported when it is asked for.

    Parameters
    ----------
    package : str
        Its `__path__` is listed, again when it changes.
    first : sequence of str
        Names, or files, at the top of the list; the others follow by file.
    """

    def __init__(self, package: str, first: Sequence[str] = ()) -> None:
        self.package, self.first = package, first
        self.added: dict[str, T] = {}
        self._read: tuple[list[str], dict[str, Entry]] = ([], {})

    @property
    def entries(self) -> dict[str, Entry]:
        """What the files offer."""
        folders = list(sys.modules[self.package].__path__)
        if folders != self._read[0]:
            self._read = folders, self._list(folders)
        return self._read[1]

    def _list(self, folders: Sequence[str]) -> dict[str, Entry]:
        found: dict[str, Entry] = {}
        files: dict[str, Path] = {}
        for file in (file for folder in folders for file in sorted(Path(folder).glob("*.py"))):
            if file.stem in files and file.stem != "__init__":
                raise InputError(f"{shown(file)} has the name of {shown(files[file.stem])}: give it another one.")
            files[file.stem] = file
            for entry in offers(file, f"{self.package}.{file.stem}"):
                if entry.name in found:
                    raise InputError(
                        f"{shown(file)} offers {entry.name!r}, which is there already: choose another name."
                    )
                found[entry.name] = entry

        def order(entry: Entry) -> int:
            places = [
                self.first.index(one) for one in (entry.name, entry.module.rpartition(".")[2]) if one in self.first
            ]
            return min(places, default=len(self.first))

        return {entry.name: entry for entry in sorted(found.values(), key=order)}

    def entry(self, name: str) -> Entry:
        """What is known of a name without importing it; of what was added at run time, what its class says."""
        if name in self.added:
            kind: Any = self.added[name]
            line = (kind.__doc__ or "").strip().partition("\n")[0]
            return Entry(name, getattr(kind, "label", name), line, kind.__module__, kind.__name__)
        return self.entries[name]

    def __getitem__(self, name: str) -> T:
        if name in self.added:
            return self.added[name]
        entry = self.entries[name]
        try:
            module = import_module(entry.module)
        except ImportError as error:
            raise InputError(f"{name} cannot be used: {error}.") from error
        return getattr(module, entry.attribute) if entry.attribute else module  # type: ignore[return-value]

    def __setitem__(self, name: str, value: T) -> None:
        self.added[name] = value

    def __delitem__(self, name: str) -> None:
        del self.added[name]

    def __contains__(self, name: object) -> bool:
        return name in self.added or name in self.entries

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self.entries, *self.added]))

    def __len__(self) -> int:
        return len(list(iter(self)))


def offers(file: Path, module: str) -> Iterator[Entry]:
    """What a source file offers."""
    try:
        source = file.read_text(encoding="utf-8")
        if not OFFERS.search(source):
            return
        body = ast.parse(source).body
    except (OSError, ValueError, SyntaxError) as error:
        raise InputError(f"{shown(file)} cannot be read as Python: {printable(str(error))}.") from error
    for node in body:
        if isinstance(node, ast.ClassDef):
            own = dict(assignments(node.body))
            name, label = constant(own.get("name")), constant(own.get("label"))
            if name:
                line = (ast.get_docstring(node) or "").partition("\n")[0]
                yield Entry(name, label or name, line, module, node.name)
    names = dict(assignments(body)).get("NAMES")
    if isinstance(names, ast.Dict):
        for key, value in zip(names.keys, names.values, strict=True):
            if constant(key):
                yield Entry(constant(key), constant(key), constant(value), module)


def assignments(body: Sequence[ast.stmt]) -> Iterator[tuple[str, ast.expr | None]]:
    """`name = value` and `name: type = value`."""
    for node in body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        for target in targets:
            if isinstance(target, ast.Name):
                yield target.id, node.value  # type: ignore[attr-defined]


def constant(node: ast.expr | None) -> str:
    """A text that stands in the source as such, else an empty one."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def shown(path: Path) -> str:
    return printable(str(path))
