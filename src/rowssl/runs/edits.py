"""What people made of the classes: renames, merges, splits and moved images, as a history that only grows.

`edits.json` holds the edits in order; what they amount to is a pure function of that list and the classes as trained, so an undo
is one more entry that takes the last edit back. Class ids stay stable: a merged id goes on as another name of the class it joined.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rowssl.core.errors import InputError
from rowssl.core.files import own_hash, read_json, write_text
from rowssl.core.text import printable
from rowssl.runs.folder import model_folder, read_model_facts, run_folder
from rowssl.runs.regroup import Leaf, Regroup, Split

if TYPE_CHECKING:
    import torch

EDITS_FORMAT = 1
MOST_LEAVES = 4096  # of one class
MOST_MADE = 2**15  # classes that edits make, their leaves, and the splits these went through, all together
LONGEST_TEXT = 4096  # characters of the name of a class or row
FILE = "edits.json"
LONGEST_NAME = 200  # characters of a name
SHARE_CONTRAST = 3.0  # log-odds of the nearer part for a typical row of a split class


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
    if not isinstance(text, str) or not text.isprintable() or len(text) > LONGEST_TEXT:
        raise ValueError("a name is text on one line")
    return text


@dataclass(frozen=True)
class Applied:
    """Rows in terms of the edited classes: place in `Edits.classes`, score, place of the second choice."""

    label: np.ndarray
    confidence: np.ndarray
    second: np.ndarray


@dataclass(frozen=True)
class Edits:
    """The classes of a model as people see them; every change gives a new one.

    Attributes
    ----------
    class_ids, n_known, model
        The classes as trained, and the identity of the run that trained them.
    history
        Edits in order, undone ones and undos included.
    width
        Length of a feature of the model, where it is known.
    """

    class_ids: tuple[str, ...]
    n_known: int
    model: str = ""
    history: tuple[dict[str, Any], ...] = ()
    width: int | None = None

    @classmethod
    def load(cls, run: str | Path) -> Edits:
        """The edits of a run (or model) directory; none if there is no `edits.json`."""
        plain = cls.of(read_model_facts(run))
        alone = model_folder(run).resolve().name != "model"  # a copy of the model without its run
        return plain if alone else plain.reread(run_folder(run))

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Edits:
        """No edits yet, of the model that has these (checked) facts."""
        return cls(tuple(facts["classes"]), facts["n_known"], facts["identity"], width=facts["encoder"].get("out_dim"))

    def reread(self, folder: Path) -> Edits:
        """The edits of the same model that are in a run directory now."""
        path = folder / FILE
        edits = replace(self, history=read_history(path, self.model) if path.exists() else ())
        edits.check()
        return edits

    def check(self) -> None:
        """A history that cannot be followed is refused here, not later."""
        if any(self.width is not None and len(split.directions[0]) != self.width for split in self.state.splits):
            raise InputError(f"{FILE}: a class was split by features of another length than the model's: move it away.")
        for target in set(self.moves.values()):
            if (
                target not in self.state.classes
                and target not in self.state.joined
                and target not in self.state.divided
            ):
                raise self._unknown(target)

    def save(self, run: Path) -> None:
        """Write `edits.json`, whole or not at all."""
        content = {"format": EDITS_FORMAT, "model": self.model, "history": list(self.history)}
        write_text(run / FILE, json.dumps({**content, "self": own_hash(content)}, indent=1, ensure_ascii=False))

    @cached_property
    def effective(self) -> tuple[dict[str, Any], ...]:
        """The edits that hold, undone ones left out."""
        done: list[dict[str, Any]] = []
        for edit in self.history:
            if isinstance(edit, dict) and edit.get("do") == "undo":
                del done[-1:]
            else:
                done.append(edit)
        return tuple(done)

    @cached_property
    def state(self) -> State:
        """What the history amounts to."""
        heads = enumerate(self.class_ids)
        state = State({one: (head < self.n_known, (Leaf(head),)) for head, one in heads})
        for number, edit in enumerate(self.effective, start=1):
            try:
                state.add(edit)
            except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
                reason = printable(str(error))[:120]
                raise InputError(
                    f"{FILE}: edit {number} cannot be followed ({reason}): mend it, or remove it."
                ) from error
        return state

    @cached_property
    def classes(self) -> tuple[EditedClass, ...]:
        """The classes there are, known ones first, otherwise in the order of training."""
        found = [EditedClass(i, self.state.names.get(i, i), *content) for i, content in self.state.classes.items()]
        return tuple(sorted(found, key=lambda one: not one.known))

    @cached_property
    def names(self) -> dict[str, str]:
        """Id -> name of every class there is."""
        return {one.id: one.name for one in self.classes}

    @cached_property
    def place(self) -> dict[str, int]:
        """Id -> place in `classes`."""
        return {one.id: place for place, one in enumerate(self.classes)}

    @property
    def regroups(self) -> bool:
        """Whether a row may be in another class than the model's; a new name alone moves none."""
        return bool(self.moves) or [one.leaves for one in self.classes] != [
            (Leaf(head),) for head in range(len(self.class_ids))
        ]

    @property
    def moves(self) -> dict[str, str]:
        """Row name -> class a person moved it to (an id of that time: see `resolve`)."""
        return self.state.moves

    def resolve(self, class_id: str, feature: np.ndarray | None = None) -> str:
        """The class that goes by an id today; for a split class the part nearest to a unit feature (d,)."""
        state = self.state
        while class_id not in state.classes:
            if class_id in state.joined:
                class_id = state.joined[class_id]
            elif class_id not in state.divided:
                raise self._unknown(class_id)
            else:
                number, parts = state.divided[class_id]
                if feature is None:
                    raise InputError(f"Class {class_id} was split into {' and '.join(parts)}: say which.")
                class_id = parts[int(np.argmax(np.asarray(state.splits[number].directions) @ feature))]
        return class_id

    def find(self, text: str) -> str:
        """The id of the class a person means by an id, an id of old, or a name."""
        text = text.strip()
        state = self.state
        if text in state.classes or text in state.joined or text in state.divided:
            return self.resolve(text)
        named = [one for one, name in state.names.items() if name == text]
        for one in sorted(named, key=lambda one: one not in state.classes):
            return self.resolve(one)
        raise self._unknown(text)

    def _unknown(self, text: str) -> InputError:
        hint = self.suggestion(text)
        return InputError(f"There is no class {text!r}{hint}{'?' if 'did you mean' in hint else '.'}")

    def suggestion(self, text: str) -> str:
        """`: did you mean ...?`, or the first few classes there are."""
        spelled = {one.id: one.id for one in self.classes}
        spelled |= {one.name: f"{one.id} ({one.name})" for one in self.classes if one.name != one.id}
        lower = {key.lower(): shown for key, shown in spelled.items()}
        near = list(dict.fromkeys(lower[key] for key in difflib.get_close_matches(text.lower(), lower, 3, 0.5)))
        if near:
            return f": did you mean {' or '.join(near)}"
        shown = ", ".join(one.id for one in self.classes[:8])
        return f": the classes are {shown}{', ...' if len(self.classes) > 8 else ''}"

    def _with(self, **edit: Any) -> Edits:
        stamped = {"time": datetime.now(UTC).isoformat(timespec="seconds"), **edit}
        return replace(self, history=(*self.history, stamped))

    def rename(self, which: str, name: str) -> Edits:
        """Call a class something; its id stays."""
        one, name = self.find(which), name.strip()
        if not name or len(name) > LONGEST_NAME or not name.isprintable():
            raise InputError(f"A name is 1 to {LONGEST_NAME} printable characters on one line.")
        others = {other.name for other in self.classes if other.id != one} | set(self.state.classes) - {one}
        if name in others or (name in self.state.joined and self.resolve(name) != one):
            raise InputError(f"Another class is called {name!r} already: choose another name, or merge the two.")
        return self._with(do="rename", **{"class": one}, name=name)

    def merge(self, into: str, other: str) -> Edits:
        """The images of `other` become images of `into`; the id of `other` goes on to mean `into`."""
        one, gone = self.find(into), self.find(other)
        if one == gone:
            raise InputError(f"{into} and {other} are the same class already.")
        return self._with(do="merge", into=one, **{"class": gone})

    def split(self, which: str, features: np.ndarray, parts: int = 2) -> Edits:
        """Divide a class by k-means on the unit features (n, d) of its training rows; the largest part comes first."""
        from rowssl.clustering.kmeans import kmeans

        one = self.find(which)
        features = np.asarray(features, dtype=np.float32)
        if not 2 <= parts <= len(features):
            raise InputError(f"Class {one} has {len(features)} images and cannot be split into {parts} parts.")
        centres = np.asarray(kmeans(features, parts, seed=0, to_the_end=True).centers, dtype=np.float64)
        directions = centres / np.maximum(np.linalg.norm(centres, axis=1, keepdims=True), 1e-12)
        sizes = np.bincount((features @ directions.T).argmax(1), minlength=parts)
        if (sizes == 0).any():
            raise InputError(
                f"Class {one} cannot be split into {parts} parts: its images look too much alike to the model."
            )
        directions = directions[np.argsort(-sizes, kind="stable")]
        cosine = np.sort(features @ directions.T, axis=1)
        temperature = max(float((cosine[:, -1] - cosine[:, -2]).mean()) / SHARE_CONTRAST, 1e-6)
        taken = {*self.class_ids, *self.state.classes, *self.state.joined, *self.state.divided}
        free = (f"{one}.{number}" for number in range(1, len(taken) + parts + 1))
        ids = [name for name in free if name not in taken][:parts]
        short = [[float(f"{value:.7g}") for value in row] for row in directions]
        return self._with(do="split", **{"class": one}, parts=ids, directions=short, temperature=temperature)

    def move(self, rows: Mapping[str, str], new: Sequence[str] = ()) -> Edits:
        """Put training rows (by name) into classes, by id or name; classes in `new` are made first."""
        made = replace(self, history=(*self.history, {"do": "move", "rows": {}, "new": list(new)})) if new else self
        known = {which: made.find(which) for which in set(rows.values())}
        target = {row: known[which] for row, which in rows.items()}
        return self._with(do="move", rows=target, **({"new": list(new)} if new else {}))

    def undo(self) -> Edits:
        """Take the last edit that holds back; again for the one before it."""
        if not self.effective:
            raise InputError("There is no edit to undo.")
        return self._with(do="undo")

    def regroup(self) -> Regroup:
        """The edits as a module: head probabilities and unit features to class scores and classes."""
        return Regroup([one.leaves for one in self.classes], self.state.splits)

    def apply(
        self,
        probability: torch.Tensor,
        feature: torch.Tensor,
        head: np.ndarray | None = None,
        names: Sequence[str] = (),
    ) -> Applied:
        """Rows in terms of the edited classes.

        Parameters
        ----------
        probability, feature
            Of the heads as trained (N, C), and unit features (N, d).
        head
            (N,) the head each row belongs to, by default the most probable one.
        names
            Names of training rows; those that a person moved are where they were moved to, with confidence 1.
        """
        import torch

        with torch.no_grad():
            given = None if head is None else torch.from_numpy(np.asarray(head, dtype=np.int64))
            scores, chosen = (part.cpu().numpy() for part in self.regroup()(probability, feature, given))
        label, rows = chosen.astype(np.int64), np.arange(len(chosen))
        confidence = scores[rows, label]
        others = scores.copy()
        others[rows, label] = -1.0
        second = others.argmax(1)
        for row in (i for i, name in enumerate(names) if name in self.moves) if self.moves else ():
            to = self.place[self.resolve(self.moves[names[row]], feature[row].cpu().numpy())]
            if to != label[row]:
                second[row] = label[row]  # what the model would have said
            label[row], confidence[row] = to, 1.0
        return Applied(label, confidence, second)


def describe(one: dict[str, object]) -> str:
    """An edit of the history in a few words."""
    match one.get("do"):
        case "rename":
            return f"{one.get('class')} renamed to {one.get('name')}"
        case "merge":
            return f"{one.get('class')} merged into {one.get('into')}"
        case "split":
            parts = one.get("parts")
            return (
                f"{one.get('class')} split into {' and '.join(map(str, parts)) if isinstance(parts, list) else parts}"
            )
        case "move":
            rows = one.get("rows")
            first = next(iter(rows.items())) if isinstance(rows, dict) and rows else ("", "")
            more = f" and {len(rows) - 1} more" if isinstance(rows, dict) and len(rows) > 1 else ""
            return f"{first[0]} moved to {first[1]}{more}"
        case other:
            return str(other)
