"""The pages of an item: tables of ours, the paper's and the difference in Markdown and LaTeX, and the claims in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rowssl.bench.grid import epoch_seconds
from rowssl.bench.published import SOURCE
from rowssl.bench.results import (
    Column,
    Entries,
    Entry,
    Row,
    Section,
    Stat,
    Summary,
    comparison_table,
    latex_table,
    markdown_table,
    summarise,
)
from rowssl.paper.plan import Settings
from rowssl.paper.spec import Item, profile_name
from rowssl.paper.splits import CLASSES, IMAGES, TESTS
from rowssl.paper.verdicts import CONFIDENCE, Finished, PaperNumbers, Verdict, shown_method, summary

LEVELS = ("C_hat", "phi")  # where more is not better


def displayed(item: Item, rows: Sequence[Row], numbers: PaperNumbers) -> Summary:
    """Rows as lines and columns of the table. How a test set is judged becomes a column of its own."""
    ready = []
    for row in rows:
        stated = numbers.of(row)
        row = {**row, "stated": "" if stated is None else str(stated)}
        if item.kind == "strategies":
            split, _, how = row["variant"].partition(", ")
            row |= {"metric": split, "group": how, "variant": "", "protocol": ""}
        ready.append(row)
    found = summarise(ready, lambda row: float(row["stated"]) if row["stated"] else None)
    return {section: _in_order(item, entries) for section, entries in found.items()}


def _in_order(item: Item, entries: Entries) -> dict[Entry, dict[Column, Stat]]:
    """Lines as the item has them."""
    wanted = [(shown_method(line), line.variant) for block in item.blocks for line in block.lines]
    if item.kind == "strategies":
        wanted = [(method, "") for method, _ in wanted]
    order = {entry: place for place, entry in reversed(list(enumerate(wanted)))}
    return {
        entry: dict(entries[entry])
        for entry in sorted(entries, key=lambda e: order.get((e.method, e.variant), len(order)))
    }


def _parts(item: Item) -> list[tuple[Column, ...]]:
    """The columns in tables that fit on a page: numbers that are no accuracies, All/Old/New, Many/Med/Few."""
    levels = tuple(c for c in item.columns if c[0].startswith(LEVELS))
    rest = [c for c in item.columns if c not in levels]
    by_size = [c for c in rest if c[1][:1] in "KU" and c[1][1:] in ("Many", "Med", "Few")]
    return [part for part in (levels, tuple(c for c in rest if c not in by_size), tuple(by_size)) if part]


def claims_page(item: Item, verdicts: Sequence[Verdict], settings: Settings) -> str:
    """claims.md: which of the paper's claims held here."""
    if not verdicts:
        return f"# {item.title}: claims\n\nThe paper states nothing that could be computed.\n"
    parts = [
        f"# {item.title}: claims\n\nOf {SOURCE}, {item.source}. {summary(verdicts)[:1].upper()}{summary(verdicts)[1:]}.\n",
        "A difference is that of the means, ± the sample standard deviation of the differences seed by seed. Not told apart: "
        f"the {CONFIDENCE:.0%} t interval of the mean difference holds zero (or the limit that a claim names). One seed has "
        "no spread, and its difference tells nothing about a claim. Against several methods the best of them by these very runs "
        "counts, which makes a claim of being above all of them a little harder than it should be.\n",
    ]
    if settings.small:
        parts.append("**A small subset: this shows that the comparison runs, and nothing about the claims.**\n")
    parts.append("".join(f"- {verdict.sentence}\n  *{verdict.claim.source}*\n" for verdict in verdicts))
    return "\n".join(parts)


def results_page(
    item: Item, rows: Sequence[Row], numbers: PaperNumbers, verdicts: Sequence[Verdict], pictures: Sequence[str],
    missing: Sequence[str], done: Sequence[Finished], settings: Settings,
) -> str:  # fmt: skip
    """results.md of an item."""
    parts = [f"# {item.title}\n\n{item.source} of {SOURCE}.{' ' + item.note if item.note else ''}\n"]
    if settings.small:
        parts.append(
            f"**A small subset** (`--scale small`): at most {CLASSES} classes, {IMAGES} training and {TESTS} test images of a "
            "class, an imbalance ratio of at most half the largest class, few epochs. Its "
            "numbers are not comparable with the paper's, which stand beside them only to show the form.\n"
        )
    if rows:
        commits, runs = sorted({row["commit"] for row in rows}), {row["config"]: float(row["seconds"]) for row in rows}
        seeds = sorted({int(row["seed"]) for row in rows})
        parts.append(
            f"{len(runs)} runs, {sum(runs.values()) / 60:.1f} minutes together, seeds {', '.join(map(str, seeds))}, encoder "
            f"{', '.join(sorted({row['encoder'] for row in rows}))}, {trained(done, settings)}; commit {', '.join(commits)}"
            f"{' (**not all runs are of one commit**)' if len(commits) > 1 else ''}. "
            f"{'Mean' if item.kind == 'phi' else 'In percent, mean'} ± standard deviation over seeds"
            f"{'.' if item.kind == 'phi' else '. **Best**, <u>second best</u>.'}\n"
        )
    if missing:
        parts.append("**Missing:**\n\n" + "".join(f"- {line}\n" for line in missing))
    found = displayed(item, rows, numbers)
    for section, entries in found.items():
        parts.append(f"## {section.title}\n")
        for columns in _parts(item):
            mark = not columns[0][0].startswith(LEVELS)
            parts.append(markdown_table(entries, columns, mark=mark, unmarked=unmarked(item)))
        beside = [comparison_table(entries, columns) for columns in _parts(item)]
        if any(beside):
            parts += [f"Ours / the paper's ({SOURCE}, with its own encoder) / difference:\n", *beside]
    above = headings(item)
    for name in pictures:
        parts += [f"## {heading}\n"] if (heading := above.get(name)) else []
        parts.append(f"![{heading or name}]({name})\n")
    if verdicts:
        parts.append(claims_page(item, verdicts, settings).replace("# ", "## ", 1))
    return "\n".join(part for part in parts if part)


def headings(item: Item) -> dict[str, str]:
    """What stands above pictures that show one split each, by their file names."""
    return {profile_name(b.data): b.data.title for b in item.blocks} if item.kind == "profiles" else {}


def trained(done: Sequence[Finished], settings: Settings) -> str:
    """Epochs, tail, views and options of the runs: what else differs from the paper's."""
    configs = [one.plan.cell.config for one in done if one.plan.cell is not None]
    epochs = sorted({len(epoch_seconds(one.folder)) for one in done} - {0})
    tails = sorted({c.encoder.tail for c in configs})
    asked = {c.encoder.views for c in configs}
    views = [str(n) for n in sorted(n for n in asked if n is not None)] + ["by the epochs"] * (None in asked)
    words = [f"{' or '.join(map(str, epochs))} epochs"] if epochs else []
    words += [f"tail {' or '.join(tails)}", f"cached views: {' or '.join(views)}"]
    words += ["options as the methods have them" if settings.preset is None else f"DTS preset {settings.preset}"]
    return ", ".join(words)


def unmarked(item: Item) -> set[Entry]:
    """Lines that are not compared with the others."""
    return {Entry(shown_method(line), line.variant) for block in item.blocks for line in block.lines if not line.marked}


def latex_page(item: Item, rows: Sequence[Row], numbers: PaperNumbers) -> str:
    """results.tex: for every section ours, the paper's and the difference."""
    parts = []
    for place, (section, entries) in enumerate(displayed(item, rows, numbers).items(), start=1):
        stated = _changed(entries, lambda stat: stat.paper)
        difference = _changed(entries, lambda stat: None if stat.paper is None else stat.mean - stat.paper)
        for number, columns in enumerate(_parts(item), start=1):
            label, named = f"{item.name}-{place}-{number}", f"{item.title}: {section.title}"
            mark = not columns[0][0].startswith(LEVELS)
            for ending, lines, words in (
                ("", entries, f"Ours, encoder {section.encoder}"),
                ("-paper", stated, f"The paper's ({SOURCE})"),
                ("-difference", difference, "Ours minus the paper's"),
            ):
                signed = ending == "-difference"
                caption = f"{named}. {words}."
                parts.append(
                    latex_table(
                        section,
                        lines,
                        columns,
                        label + ending,
                        caption=caption,
                        mark=mark and not signed,
                        signed=signed,
                        unmarked=unmarked(item),
                    )
                )
    return "\n".join(part for part in parts if part)


def _changed(entries: Entries, value: Callable[[Stat], float | None]) -> dict[Entry, dict[Column, Stat]]:
    """The same lines with other numbers; lines without any are left out."""
    made = {
        entry: {
            column: Stat(number, None, stat.seeds)
            for column, stat in stats.items()
            if (number := value(stat)) is not None
        }
        for entry, stats in entries.items()
    }
    return {entry: stats for entry, stats in made.items() if stats}


def shortened(section: Section, entries: Entries) -> tuple[Section, dict[Entry, dict[Column, Stat]]]:
    """Names that fit under bars: `(a)` for `(a) momentum=no ...`, the variant alone where all methods are one."""
    one = len({entry.method for entry in entries}) == 1
    made: dict[Entry, dict[Column, Stat]] = {}
    for entry, stats in entries.items():
        variant = entry.variant.split(" ")[0] if entry.variant.startswith("(") else entry.variant
        made[Entry(variant, "") if one and variant else Entry(entry.method, variant)] = dict(stats)
    return section, made
