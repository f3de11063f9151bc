"""Look at a data set before training on it: what is there, what cannot be read, and what looks wrong."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rowssl.core.console import track
from rowssl.core.errors import InputError
from rowssl.core.text import printable
from rowssl.data.images import Skipped
from rowssl.data.table import Table, read_table

if TYPE_CHECKING:
    from rich.console import Console

NEIGHBOURS = 10
NEIGHBOUR_SHARE = 0.9  # of the neighbours carry one other label: the label of the row is doubted
NEIGHBOUR_LIMIT = 30_000  # labelled rows that are compared; more are drawn by chance
_BLOCK_VALUES = 1 << 22  # similarities held at a time
_LIKE_NO_LABEL = frozenset({"none", "n/a", "na", "unknown", "?", "unlabelled", "unlabeled", "undefined"})


@dataclass(frozen=True)
class Suspicion:
    """One thing that looks wrong: a sentence, and the classes or rows it is about."""

    kind: str
    message: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class CheckReport:
    """What `check` found; sizes count labelled rows, classes are those with at least one."""

    source: str
    kind: str
    rows: int
    labelled: int
    unlabelled: int
    classes: int
    class_sizes: dict[str, int]
    skipped: tuple[Skipped, ...]
    duplicates: tuple[tuple[str, ...], ...]
    conflicts: tuple[Suspicion, ...]
    suspicious: tuple[Suspicion, ...]

    def as_dict(self) -> dict[str, Any]:
        """The report as plain dicts, tuples, numbers and texts, ready for JSON."""
        return asdict(self)


def check(
    source: str | Path | Table,
    labels: str | Path | None = None,
    *,
    image_column: str | None = None,
    label_column: str | None = None,
    seed: int = 0,
) -> CheckReport:
    """Count, find exact duplicates, and list what is suspicious.

    Parameters
    ----------
    source, labels, image_column, label_column
        As for `read_table`; a table that was read already is accepted, too.
    seed
        Draws the rows to compare where more than `NEIGHBOUR_LIMIT` embeddings are labelled.

    Returns
    -------
    CheckReport
        Hand it to `print_report`, or take `as_dict`.
    """
    if isinstance(source, Table):
        table = source
    else:
        table = read_table(source, labels=labels, image_column=image_column, label_column=label_column)
    counts = np.bincount(table.labels[table.labels >= 0], minlength=len(table.class_names))
    sizes = {name: int(count) for name, count in zip(table.class_names, counts, strict=True) if count}
    groups = _duplicates(table)
    return CheckReport(
        source=table.source,
        kind="images" if table.has_images else "embeddings",
        rows=len(table),
        labelled=int(counts.sum()),
        unlabelled=len(table) - int(counts.sum()),
        classes=len(sizes),
        class_sizes=sizes,
        skipped=table.skipped,
        duplicates=tuple(tuple(table.names[row] for row in group) for group in groups),
        conflicts=tuple(_conflicts(table, groups)),
        suspicious=(*_doubtful_classes(sizes, len(table)), *_doubtful_rows(table, seed)),
    )


def _duplicates(table: Table) -> list[list[int]]:
    """Groups of rows with the same bytes."""
    rows: Iterable[int] = range(len(table))
    groups: dict[bytes, list[int]] = defaultdict(list)
    try:
        if table.paths is not None:
            by_size: dict[int, list[int]] = defaultdict(list)
            for row, path in enumerate(table.paths):
                by_size[path.stat().st_size].append(row)
            rows = [row for group in by_size.values() if len(group) > 1 for row in group]  # the others need no reading
        for row in track(rows, "looking for duplicates"):
            groups[_content(table, row)].append(row)
    except OSError as error:  # removed or locked since it was read
        raise InputError(f"{printable(str(error.filename))} cannot be read: {error.strerror}") from None
    return sorted(sorted(group) for group in groups.values() if len(group) > 1)


def _content(table: Table, row: int) -> bytes:
    """A digest of what is in one row."""
    if table.paths is not None:
        with open(table.paths[row], "rb") as stream:
            return hashlib.file_digest(stream, "sha256").digest()
    if table.images is not None:
        item = table.images[row]
        data = item if isinstance(item, bytes) else str(item.shape).encode() + item.tobytes()
    else:
        assert table.embeddings is not None, "a table has images or embeddings"
        data = (table.embeddings[row] + 0.0).tobytes()  # -0.0 + 0.0 = 0.0
    return hashlib.sha256(data).digest()


def _conflicts(table: Table, groups: list[list[int]]) -> Iterable[Suspicion]:
    for group in groups:
        labels = sorted({int(table.labels[row]) for row in group} - {-1})
        if len(labels) > 1:
            names = tuple(table.names[row] for row in group)
            classes = " and ".join(repr(table.class_names[label]) for label in labels)
            yield Suspicion("conflict", f"the same content is labelled {classes}", names)


def _doubtful_classes(sizes: dict[str, int], rows: int) -> Iterable[Suspicion]:
    """What the names and sizes of the classes alone give away."""
    alike: dict[str, list[str]] = defaultdict(list)
    for name in sizes:
        alike[re.sub(r"[\s_-]+", " ", name).strip().casefold()].append(name)
    for group in alike.values():
        if len(group) > 1:
            spellings = ", ".join(f"{name!r} ({sizes[name]})" for name in group)
            yield Suspicion("spelling", f"labels that differ only in case or spaces: {spellings}", tuple(group))
    if odd := tuple(name for name in sizes if name.strip().lower() in _LIKE_NO_LABEL):
        message = "a class is named as if it had no label; leave the label empty if that is meant"
        yield Suspicion("like-unlabelled", message, odd)
    if single := tuple(name for name, count in sizes.items() if count == 1):
        yield Suspicion("single", f"{_count(len(single), 'class has', 'classes have')} one labelled row only", single)
    if len(sizes) == 1 and sum(sizes.values()) == rows > 1:
        yield Suspicion("one-class", "every row carries the same label; is it really one class?", tuple(sizes))


def _doubtful_rows(table: Table, seed: int) -> Iterable[Suspicion]:
    """Labelled embeddings whose nearest labelled neighbours nearly all carry one other label."""
    rows = np.flatnonzero(table.labels >= 0)
    if len(rows) > NEIGHBOUR_LIMIT:
        rows = np.sort(np.random.default_rng([seed, len(rows)]).choice(rows, NEIGHBOUR_LIMIT, replace=False))
    if table.embeddings is None or len(rows) <= NEIGHBOURS:
        return
    features = np.asarray(table.embeddings[rows], dtype=np.float32)
    # Scaled by the largest value first: the square of a float32 may overflow.
    features = features / np.maximum(np.abs(features).max(axis=1, keepdims=True), np.float32(1e-30))
    features /= np.maximum(np.linalg.norm(features, axis=1, keepdims=True), np.float32(1e-30))
    labels = table.labels[rows]
    names = []
    step = max(1, _BLOCK_VALUES // len(rows))
    for start in track(range(0, len(rows), step), "comparing labelled rows"):
        similarity = features[start : start + step] @ features.T  # (step, labelled rows)
        own = np.arange(len(similarity))
        similarity[own, start + own] = -np.inf
        nearest = labels[np.argpartition(-similarity, NEIGHBOURS - 1, axis=1)[:, :NEIGHBOURS]]
        for i, near in enumerate(nearest):
            values, counts = np.unique(near, return_counts=True)
            winner = values[counts.argmax()]
            if winner != labels[start + i] and counts.max() >= NEIGHBOUR_SHARE * NEIGHBOURS:
                mine = table.class_names[labels[start + i]]
                names.append(f"{table.names[rows[start + i]]}: {mine}, beside {table.class_names[winner]}")
    if names:
        some = _count(len(names), "row lies", "rows lie")
        message = f"of {len(rows):,} labelled rows compared, {some} among rows of one other class"
        yield Suspicion("neighbours", message, tuple(names))


def print_report(report: CheckReport, console: Console) -> None:
    """Print the counts, the class sizes as bars, and everything that is suspicious."""
    from rich.table import Table as Grid
    from rich.text import Text

    encoding = console.encoding or "utf-8"

    def text(content: str, style: str = "") -> Text:
        """Never markup, always one line, and only what this terminal can show."""
        return Text(printable(content).encode(encoding, "backslashreplace").decode(encoding), style=style)

    console.print(text(report.source, "bold"), soft_wrap=True)
    counts = Grid(show_header=False)
    counts.add_column()
    counts.add_column(justify="right")
    for name in ("rows", "labelled", "unlabelled", "classes"):
        counts.add_row(name, f"{getattr(report, name):,}")
    counts.add_row("skipped", f"{len(report.skipped):,}")
    counts.add_row("groups of duplicates", f"{len(report.duplicates):,}")
    console.print(counts)

    bars = Grid.grid(padding=(0, 1))
    bars.add_column(max_width=28, no_wrap=True, overflow="ellipsis")
    bars.add_column(justify="right")
    bars.add_column(no_wrap=True)
    ordered, more = _cut(_by_size(report), 30)
    for name, count in ordered:
        bars.add_row(text(name), f"{count:,}", text(_bar(count / ordered[0][1], 32, encoding), "cyan"))
    console.print(bars)
    if more:
        console.print(f"and {_count(more, 'more class', 'more classes')}, down to {_by_size(report)[-1][1]:,} labelled")

    def section(title: str, lines: Sequence[str]) -> None:
        shown, hidden = _cut(lines, 8)
        console.print(text(title, "bold"), soft_wrap=True)
        for line in shown:
            console.print(text(f"  {line}"), soft_wrap=True)
        if hidden:
            console.print(f"  and {hidden:,} more")

    if report.skipped:
        title = f"{_count(len(report.skipped), 'input was', 'inputs were')} left out:"
        section(title, [f"{item.name}: {item.reason}" for item in report.skipped])
    if report.duplicates:
        title = f"{_count(len(report.duplicates), 'group', 'groups')} of exact duplicates:"
        section(title, [_list(group) for group in report.duplicates])
    if report.conflicts:
        title = f"{_count(len(report.conflicts), 'duplicate has', 'duplicates have')} conflicting labels:"
        section(title, [f"{_list(item.names)}: {item.message}" for item in report.conflicts])
    for item in report.suspicious:
        section(f"suspicious: {item.message}", item.names if item.kind != "spelling" else ())
    if not (report.skipped or report.conflicts or report.suspicious):
        console.print("nothing suspicious")


def _by_size(report: CheckReport) -> list[tuple[str, int]]:
    """Class names and sizes, the largest first; equal sizes in the order of the classes."""
    return sorted(report.class_sizes.items(), key=lambda item: -item[1])


def _bar(share: float, width: int, encoding: str) -> str:
    """A bar of `share` x `width` characters, in eighths where the terminal knows them."""
    if not encoding.lower().startswith("utf"):
        return "#" * max(1, round(share * width))
    eighths = max(1, round(share * width * 8))
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def _cut(items: Sequence[Any], limit: int) -> tuple[Sequence[Any], int]:
    """The first items and how many are left out; never "and 1 more"."""
    return (items, 0) if len(items) <= limit + 1 else (items[:limit], len(items) - limit)


def _list(names: Sequence[str]) -> str:
    shown, more = _cut(names, 5)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"
