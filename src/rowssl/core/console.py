"""One progress display for everything that may last longer than two seconds: what, how far, how long still.

On a terminal it is a bar; in a log file it is a line every `EVERY` seconds, so that an overnight run can be followed too.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from types import TracebackType
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

T = TypeVar("T")
EVERY = 20.0
SHOWN = 0.2  # seconds between two moves of a bar

# Results go to standard output, everything that merely accompanies them to standard error.
out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


class Bar:
    """One task with an ETA: `with bar("training", total=200) as b: b.advance(note="loss 1.2")`."""

    def __init__(self, description: str, total: int | None, *, enabled: bool = True) -> None:
        self.description, self.total, self.enabled = description, total, enabled
        self.done, self.origin, self.note = 0.0, 0.0, ""
        self.began = self.spoke = time.monotonic()
        self.moved: float | None = None
        self.display: Progress | None = None

    def __enter__(self) -> Bar:
        if self.enabled and err.is_terminal and not err.quiet:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(bar_width=28),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("eta"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"),
            )
            self.display = Progress(*columns, console=err, transient=True)
            self.display.start()
            self.task = self.display.add_task(self.description, total=self.total, note="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.display is not None:
            self.display.stop()

    def move(self, to: float) -> None:
        """To a place, which may lie between two steps. May be called often; the first place is where the work begins."""
        now = time.monotonic()
        if self.moved is None:
            self.origin, self.began = to, now
        elif now - self.moved < SHOWN:
            return
        self.moved = now
        self.advance(to=to)

    def advance(self, by: int = 1, *, to: float | None = None, note: str | None = None) -> None:
        """One step further, or to a place; `note` is shown behind."""
        self.done = self.done + by if to is None else to
        self.note = self.note if note is None else note
        if self.display is not None:
            self.display.update(self.task, completed=self.done, note=self.note)
        elif self.enabled and time.monotonic() - self.spoke > EVERY:
            self.spoke = time.monotonic()
            err.print(self.line(), markup=False, soft_wrap=True)

    def line(self) -> str:
        """The display as one line of a log."""
        elapsed = time.monotonic() - self.began
        place = f"{self.done:,.0f}" if self.done == int(self.done) else f"{self.done:,.2f}"
        text, moved = f"{self.description}: {place}", self.done - self.origin
        if self.total:
            left = f", about {clock(elapsed / moved * (self.total - self.done))} to go" if moved else ""
            text += f" of {self.total:,}, {clock(elapsed)} gone{left}"
        return f"{text}  {self.note}".rstrip()


def clock(seconds: float) -> str:
    """1:02:03 or 2:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def bar(description: str, total: int | None = None, *, enabled: bool = True) -> Bar:
    """A progress display on standard error."""
    return Bar(description, total, enabled=enabled)


def track(items: Iterable[T], description: str, *, total: int | None = None, enabled: bool = True) -> Iterator[T]:
    """Yield from `items` under a progress display."""
    if total is None and isinstance(items, Sized):
        total = len(items)
    with bar(description, total, enabled=enabled) as progress:
        for item in items:
            yield item
            progress.advance()


@contextmanager
def quiet(enabled: bool = True) -> Iterator[None]:
    """Nothing on standard error meanwhile, for a library that is called from a program."""
    before = err.quiet
    err.quiet = before or enabled
    try:
        yield
    finally:
        err.quiet = before
