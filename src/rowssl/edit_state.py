"""What a history of edits amounts to: classes made of (parts of) heads, ids that are gone, names, moved rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf, isfinite
from pathlib import Path
from typing import Any

from rowssl.checkpoint import own_hash
from rowssl.errors import InputError
from rowssl.plain_files import read_json
from rowssl.regroup import Leaf, Split

EDITS_FORMAT = 1
MOST_LEAVES = 4096  # of one class
MOST_MADE = 2**15  # classes that edits make, their leaves, and the splits these went through, all together
LONGEST = 4096  # characters of the name of a class or row


@dataclass(frozen=True)
class EditedClass:
    """A class after all edits: its id, what to call it, whether it had labels, and the (parts of) heads it consists of."""

    id: str
    name: str
    known: bool
    leaves: tuple[Leaf, ...]

    @property
    def kind(self) -> str:
        """`known` or `novel`."""
        return "known" if self.known else "novel"


@dataclass
class State:
    """What a history amounts to."""

    classes: dict[str, tuple[bool, tuple[Leaf, ...]]]  # id -> known, leaves
    joined: dict[str, str] = field(default_factory=dict)  # merged id -> the id it joined
    divided: dict[str, tuple[int, tuple[str, ...]]] = field(
        default_factory=dict
    )  # split id -> number, ids of the parts
    names: dict[str, str] = field(default_factory=dict)  # id -> the name a person gave, also of ids that are gone
    moves: dict[str, str] = field(default_factory=dict)  # row name -> class id at that time
    splits: list[Split] = field(default_factory=list)
    made: int = 0  # of `MOST_MADE`

    def add(self, edit: Mapping[str, Any]) -> None:
        """One edit further; KeyError, TypeError or ValueError if it is none."""
        match edit["do"]:
            case "rename":
                self.live(edit["class"])
                self.names[edit["class"]] = _on_one_line(edit["name"])
            case "merge":
                into, gone = edit["into"], edit["class"]
                if into == gone:
                    raise ValueError(f"{gone} cannot join itself")
                known, leaves = self.live(into)
                other_known, other = self.live(gone)
                self.classes[into] = (known or other_known, leaves + other)
                del self.classes[gone]
                self.joined[gone] = into
                named = self.names.get(gone, gone if other_known else None)
                if named and into not in self.names and not known:  # a name is not lost to a mere number
                    self.names[into] = named
            case "split":
                self.split(edit["class"], tuple(edit["parts"]), edit["directions"], float(edit["temperature"]))
            case "move":
                for label in edit.get("new", ()):
                    self.count(1)
                    self.classes[self.unused(label)] = (True, ())
                self.moves |= {_on_one_line(row): str(target) for row, target in edit["rows"].items()}
            case other:
                raise ValueError(f"{other!r} is no edit")

    def live(self, class_id: str) -> tuple[bool, tuple[Leaf, ...]]:
        """Known and leaves of a class that is there; KeyError if it is not."""
        return self.classes[class_id]

    def unused(self, class_id: Any) -> str:
        """An id that no class has or had: with one that comes back, ids could lead to each other for ever."""
        if class_id in self.classes or class_id in self.joined or class_id in self.divided:
            raise ValueError(f"{class_id} is a class already")
        return _on_one_line(class_id)

    def count(self, made: int) -> None:
        """So many classes, leaves and steps more; ValueError if a model with all of them would take too much memory."""
        self.made += made
        if self.made > MOST_MADE:
            raise ValueError("there are too many parts of classes and new classes")

    def split(self, class_id: str, parts: tuple[str, ...], directions: Any, temperature: float) -> None:
        """The parts take the place of the class."""
        known, leaves = self.live(class_id)
        number = len(self.splits)
        rows = tuple(tuple(float(value) for value in row) for row in directions)
        if len(rows) != len(parts) or len(parts) < 2 or not 0 < temperature < inf:
            raise ValueError("a split needs a direction for each part")
        if len({len(row) for row in rows}) != 1 or not all(isfinite(value) for row in rows for value in row):
            raise ValueError("a direction is not as long as the others, or not finite")
        if len({self.unused(part) for part in parts}) < len(parts):
            raise ValueError("two parts have one id")
        if len(leaves) * len(parts) > MOST_LEAVES:  # parts that are merged and split again multiply
            raise ValueError(f"{class_id} was split and merged too many times")
        self.count(len(parts) * (1 + sum(len(leaf.path) + 2 for leaf in leaves)))
        self.splits.append(Split(rows, temperature))
        self.divided[class_id] = (number, parts)
        before = self.classes
        self.classes = {}
        for one, content in before.items():
            if one != class_id:
                self.classes[one] = content
                continue
            for place, part in enumerate(parts):
                self.classes[part] = (
                    known,
                    tuple(replace(leaf, path=(*leaf.path, (number, place))) for leaf in leaves),
                )


def read_history(path: Path, model: str) -> tuple[dict[str, Any], ...]:
    """The edits in an `edits.json` that belongs to a model; whether they can be followed is not looked at yet."""
    content = read_json(path)
    try:
        history, version, found = tuple(content["history"]), content["format"], content["model"]
        own, said = own_hash(content), content.get("self")
        json.dumps(history, ensure_ascii=False).encode()  # half a surrogate can be read, but not be written again
    except (AttributeError, KeyError, TypeError, RecursionError, UnicodeEncodeError) as error:
        raise InputError(f"{path} cannot be read as a history of edits: mend it, or move it away.") from error
    if version != EDITS_FORMAT:
        shown = version if isinstance(version, int) else "unknown"
        raise InputError(f"{path} has format {shown}, this version of rowssl reads format {EDITS_FORMAT}.")
    if found != model:
        raise InputError(f"{path} belongs to another model than the one in {path.parent}: move it away.")
    if "self" in content and said != own:
        raise InputError(f"{path} is not as it was written: move it away or, if you changed it, take out `self`.")
    for number, one in enumerate(history, start=1):
        if not isinstance(one, dict):
            raise InputError(f"{path}: edit {number} is none: mend it, or remove it.")
    return history


def _on_one_line(text: Any) -> str:
    """A name that can be shown anywhere; ValueError for what is none."""
    if not isinstance(text, str) or not text.isprintable() or len(text) > LONGEST:
        raise ValueError("a name is text on one line")
    return text
