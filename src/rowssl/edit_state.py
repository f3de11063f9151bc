"""What a history of edits amounts to: classes made of (parts of) heads, ids that are gone, names, moved rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rowssl.regroup import Leaf, Split


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

    def add(self, edit: Mapping[str, Any]) -> None:
        """One edit further; KeyError, TypeError or ValueError if it is none."""
        match edit["do"]:
            case "rename":
                self.live(edit["class"])
                self.names[edit["class"]] = str(edit["name"])
            case "merge":
                into, gone = edit["into"], edit["class"]
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
                    self.classes[str(label)] = (True, ())
                self.moves |= {str(row): str(target) for row, target in edit["rows"].items()}
            case other:
                raise ValueError(f"{other!r} is no edit")

    def live(self, class_id: str) -> tuple[bool, tuple[Leaf, ...]]:
        """Known and leaves of a class that is there; KeyError if it is not."""
        return self.classes[class_id]

    def split(self, class_id: str, parts: tuple[str, ...], directions: Any, temperature: float) -> None:
        """The parts take the place of the class."""
        known, leaves = self.live(class_id)
        number = len(self.splits)
        rows = tuple(tuple(float(value) for value in row) for row in directions)
        if len(rows) != len(parts) or len(parts) < 2 or not temperature > 0:
            raise ValueError("a split needs a direction for each part")
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
