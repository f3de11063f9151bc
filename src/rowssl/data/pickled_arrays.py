"""Read dictionaries of arrays from pickle files without unpickling: CIFAR was published as pickles and in no other form.

A pickle is a program for a small stack machine, and the usual machine may call any function that the program names. The one here
has lists, dictionaries, tuples, numbers and texts, and three names: those with which numpy writes an array. They stand for notes
of what was said, never for the functions of that name. All it can make is checked afterwards, and nothing is ever called.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rowssl.core.errors import InputError
from rowssl.core.text import printable

NESTED = 10_000  # tuples in a file; an array has five of them, and too deep a nest of them would exhaust the C stack
OPERATIONS = 4_000_000  # in a file, each of which may take a hundred bytes; the largest real one has about 400,000
KINDS = {f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)}


@dataclass
class _Name:
    """A name of numpy that the file may use."""

    name: str


@dataclass
class _Type:
    """What the file says of a number type."""

    code: str
    order: str = "|"


@dataclass
class _Array:
    """What the file says of an array."""

    value: np.ndarray | None = None


_NAMES = {
    ("numpy", "ndarray"): "ndarray",
    ("numpy", "dtype"): "dtype",
    ("numpy.core.multiarray", "_reconstruct"): "array",  # as the published archives say
    ("numpy._core.multiarray", "_reconstruct"): "array",  # as numpy 2 says
}


def read_pickled_arrays(data: bytes, where: str) -> dict[str, Any]:
    """The dictionary in a pickle, arrays and byte strings in it; InputError for anything else."""
    try:
        content = _Machine().run(data)
    except (ValueError, KeyError, IndexError, TypeError, OverflowError, MemoryError, RecursionError) as error:
        reason = printable(" ".join(str(error).split()))[:120] or type(error).__name__
        raise InputError(f"{printable(where)} is not a file of the CIFAR archive and was refused: {reason}") from None
    if not isinstance(content, dict):
        raise InputError(f"{printable(where)} is not a file of the CIFAR archive: it holds no dictionary")
    return {text_of(key): value.value if isinstance(value, _Array) else value for key, value in content.items()}


def text_of(value: Any) -> str:
    """A byte string or a text as text; anything else is none."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value if isinstance(value, str) else ""


class _Machine:
    """The stack machine."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []  # where lists of operands begin
        self.memo: dict[int, Any] = {}
        self.tuples = 0

    def run(self, data: bytes) -> Any:
        """What the program leaves."""
        for number, (operation, argument, _) in enumerate(pickletools.genops(data)):
            if number >= OPERATIONS:
                raise ValueError("it has more operations than a file of arrays")
            if operation.name == "STOP":
                return self.stack.pop()
            step = _STEPS.get(operation.name)
            if step is None:
                raise ValueError(f"it has the operation {operation.name}, which no file of arrays needs")
            step(self, argument)
        raise ValueError("it has no end")

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def text(self, value: str) -> None:
        """Byte strings of Python 2 come decoded."""
        self.stack.append(value.encode("latin-1"))

    def since_mark(self) -> list[Any]:
        """Take everything after the last mark off the stack."""
        place = self.marks.pop()
        items = self.stack[place:]
        del self.stack[place:]
        return items

    def make_tuple(self, count: int | None) -> None:
        self.tuples += 1
        if self.tuples > NESTED:
            raise ValueError("it has more tuples than a file of arrays")
        items = self.since_mark() if count is None else [self.stack.pop() for _ in range(count)][::-1]
        self.stack.append(tuple(items))

    def append(self, items: list[Any]) -> None:
        if not isinstance(self.stack[-1], list):
            raise ValueError("it appends to what is no list")
        self.stack[-1].extend(items)

    def set_items(self, items: list[Any]) -> None:
        if not isinstance(self.stack[-1], dict) or len(items) % 2:
            raise ValueError("it fills what is no dictionary")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, bytes | str | int):
                raise ValueError("a key is no text")
            self.stack[-1][key] = value

    def make_dictionary(self) -> None:
        items = self.since_mark()
        self.stack.append({})
        self.set_items(items)

    def name(self, module: Any, name: Any) -> None:
        known = _NAMES.get((module, name))
        if known is None:
            raise ValueError(f"it asks for {module}.{name}")
        self.stack.append(_Name(known))

    def call(self) -> None:
        """Note what numpy would be asked for."""
        arguments, function = self.stack.pop(), self.stack.pop()
        if isinstance(function, _Name) and function.name == "array":
            self.stack.append(_Array())
        elif isinstance(function, _Name) and function.name == "dtype":
            self.stack.append(_Type(_checked(text_of(arguments[0]), KINDS)))
        else:
            raise ValueError("it calls what cannot be called")

    def build(self) -> None:
        """Complete the note of a type (version, byte order, ...) or of an array (version, shape, type, order, bytes)."""
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, _Type):
            target.order = _checked(text_of(state[1]), {"|", "<", ">", "="})
        elif isinstance(target, _Array):
            _, shape, kind, fortran, content = state
            if not isinstance(kind, _Type) or not isinstance(content, bytes) or len(shape) > 4:
                raise ValueError("it holds an array of something else than numbers")
            flat = np.frombuffer(content, np.dtype(kind.order + kind.code))
            target.value = flat.reshape(shape, order="F" if fortran else "C")
        else:
            raise ValueError("it completes what needs no completion")

    def keep(self, place: int | None) -> None:
        self.memo[len(self.memo) if place is None else place] = self.stack[-1]


def _checked(text: str, allowed: set[str]) -> str:
    if text not in allowed:
        raise ValueError(f"it holds an array of {text[:20]!r}")
    return text


def _ignore(machine: _Machine, argument: Any) -> None:
    pass


_STEPS: dict[str, Callable[[_Machine, Any], None]] = {
    "PROTO": _ignore,
    "FRAME": _ignore,
    "MARK": lambda m, _: m.marks.append(len(m.stack)),
    "NONE": lambda m, _: m.push(None),
    "NEWTRUE": lambda m, _: m.push(True),
    "NEWFALSE": lambda m, _: m.push(False),
    "EMPTY_LIST": lambda m, _: m.push([]),
    "EMPTY_DICT": lambda m, _: m.push({}),
    "EMPTY_TUPLE": lambda m, _: m.push(()),
    "DICT": lambda m, _: m.make_dictionary(),
    "LIST": lambda m, _: m.push(m.since_mark()),
    "APPEND": lambda m, _: m.append([m.stack.pop()]),
    "APPENDS": lambda m, _: m.append(m.since_mark()),
    "TUPLE": lambda m, _: m.make_tuple(None),
    "TUPLE1": lambda m, _: m.make_tuple(1),
    "TUPLE2": lambda m, _: m.make_tuple(2),
    "TUPLE3": lambda m, _: m.make_tuple(3),
    "SETITEM": lambda m, _: m.set_items([m.stack.pop(), m.stack.pop()][::-1]),
    "SETITEMS": lambda m, _: m.set_items(m.since_mark()),
    "GLOBAL": lambda m, both: m.name(*both.split(" ", 1)),
    "STACK_GLOBAL": lambda m, _: m.name(*[m.stack.pop(), m.stack.pop()][::-1]),
    "REDUCE": lambda m, _: m.call(),
    "BUILD": lambda m, _: m.build(),
    "MEMOIZE": lambda m, _: m.keep(None),
}
for _name in ("BININT", "BININT1", "BININT2", "LONG1", "INT", "LONG"):
    _STEPS[_name] = _Machine.push
for _name in ("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"):
    _STEPS[_name] = _Machine.push
for _name in ("BINSTRING", "SHORT_BINSTRING"):
    _STEPS[_name] = _Machine.text
for _name in ("PUT", "BINPUT", "LONG_BINPUT"):
    _STEPS[_name] = _Machine.keep
for _name in ("GET", "BINGET", "LONG_BINGET"):
    _STEPS[_name] = lambda m, place: m.push(m.memo[place])
