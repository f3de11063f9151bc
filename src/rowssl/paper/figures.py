"""Pictures of an item from its runs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from rowssl.bench.cell import CLASSES, ROWS, read_sample
from rowssl.bench.charts import bars_svg
from rowssl.bench.results import Row
from rowssl.paper.page import displayed, shortened
from rowssl.paper.plan import Settings, data_content
from rowssl.paper.spec import Item, profile_name
from rowssl.paper.verdicts import SMALL, Finished, PaperNumbers, shown_method
from rowssl.report.charts import SERIES, Cloud, Curve, lines, scatter
from rowssl.report.profiles import size_picture


def pictures(
    item: Item, rows: Sequence[Row], numbers: PaperNumbers, done: Sequence[Finished], settings: Settings
) -> dict[str, str]:
    """Names of files and their content."""
    made = {
        "table": bars, "strategies": bars, "curve": curves, "phi": phi_curves, "tsne": clouds,
    }  # fmt: skip
    if item.kind == "profiles":
        return profiles(item, settings)
    found = made[item.kind](item, rows, numbers, done)
    return {name: picture for name, picture in found.items() if picture}


def bars(item: Item, rows: Sequence[Row], numbers: PaperNumbers, done: Sequence[Finished]) -> dict[str, str]:
    """In-bACC by line of the table, and by size of the classes where the table has it; Tr-bACC where it has that."""
    found = {}
    wanted = {"in_bacc": [("In-bACC", group) for group in ("All", "Old", "New")],
              "tr_bacc": [("Tr-bACC", group) for group in ("All", "Old", "New")],
              "frequency": [("In-bACC", s + w) for s in ("K", "U", "") for w in ("Many", "Med", "Few")]}  # fmt: skip
    if item.kind == "strategies":
        wanted = {split.split(" ")[0]: [c for c in item.columns if c[0] == split] for split, _ in item.columns}
    for section, entries in displayed(item, rows, numbers).items():
        section, entries = shortened(section, entries)
        ending = f"-{section.prior}" if len({row["prior"] for row in rows}) > 1 else ""
        for name, columns in wanted.items():
            columns = [column for column in columns if column in item.columns]
            if columns:
                comparable = not section.dataset.endswith(SMALL)
                found[f"{name}{ending}.svg"] = bars_svg(section, entries, columns, paper=comparable, of=item.title)
    return found


def _over_seeds(
    points: dict[float, list[float]],
) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float | None, ...]]:
    places = sorted(points)
    spread = [statistics.stdev(points[x]) if len(points[x]) > 1 else None for x in places]
    return tuple(places), tuple(statistics.fmean(points[x]) for x in places), tuple(spread)


def curves(item: Item, rows: Sequence[Row], numbers: PaperNumbers, done: Sequence[Finished]) -> dict[str, str]:
    """In-bACC over one option, with the spread over seeds and the value that is the default."""
    drawn = []
    for group, colour in (("All", "grey"), ("Old", "known"), ("New", "novel")):
        points: dict[float, list[float]] = {}
        for row in rows:
            if (row["metric"], row["group"]) == ("In-bACC", group):
                points.setdefault(float(row["variant"].partition("=")[2]), []).append(float(row["value"]))
        x, y, spread = _over_seeds(points)
        drawn.append(Curve(group, x, y, spread, colour))
    usual = next((line.variant for line in item.blocks[0].lines if line.paper), "")
    dataset = rows[0]["dataset"] if rows else ""
    title = f"In-bACC over {item.axis}, {dataset} ({rows[0]['encoder']})" if rows else item.title
    marked = float(usual.partition("=")[2]) if usual else None
    return {
        f"{item.name}.svg": lines(
            title, drawn, across=f"{item.axis} (evenly spaced)", up="In-bACC, percent", even=True, marked=marked
        )
    }


def phi_curves(item: Item, rows: Sequence[Row], numbers: PaperNumbers, done: Sequence[Finished]) -> dict[str, str]:
    """phi over training: three ways to score tailedness, and known against novel classes by prototypes."""

    def curve(name: str, score: str, group: str, colour: str, dashed: bool) -> Curve:
        points: dict[float, list[float]] = {}
        for row in rows:
            epoch = row["metric"].removeprefix("phi, epoch ")
            if row["variant"] == f"score={score}" and row["group"] == group and epoch.isdecimal():
                points.setdefault(float(epoch), []).append(float(row["value"]))
        x, y, spread = _over_seeds(points)
        return Curve(name, x, y, spread, colour, dashed)

    ways = [
        curve(f"{score}, {group}", score, group, SERIES[place], group == "head")
        for place, score in enumerate(("loss", "instance", "prototype"))
        for group in ("tail", "head")
    ]
    kinds = [
        curve(f"{kind} {group}", "prototype", f"{group}_{kind}", colour, group == "head")
        for kind, colour in (("known", "known"), ("novel", "novel"))
        for group in ("tail", "head")
    ]
    where = f"{rows[0]['dataset']} ({rows[0]['encoder']})" if rows else ""
    first = _lines(f"Tail discovery by three scores, {where}", ways)
    second = _lines(f"Tail discovery by prototypes, known and novel classes, {where}", kinds)
    return {"ways.svg": first, "known_novel.svg": second}


def _lines(title: str, drawn: Sequence[Curve]) -> str:
    return lines(title, [c for c in drawn if c.x], across="epoch", up="phi", level=(1.0, "chance"))


def clouds(item: Item, rows: Sequence[Row], numbers: PaperNumbers, done: Sequence[Finished]) -> dict[str, str]:
    """The features of the first seed's runs in two dimensions."""
    from rowssl.core.console import track
    from rowssl.paper.embedding import in_two_dimensions

    seed = min((one.plan.seed for one in done), default=0)
    first = [one for one in done if one.plan.seed == seed]
    drawn: list[tuple[str, list[Cloud]]] = []
    how = "t-SNE"
    for part, words in (("test", "test images"), ("unlabelled", "unlabelled training images")):
        panels = []
        for one in track(first, f"placing features of {words}"):
            sample = (read_sample(one.folder) or {}).get(part)
            if sample is not None and len(sample.feature):
                points, how = in_two_dimensions(sample.feature, seed=seed)
                name = one.plan.line.variant or shown_method(one.plan.line)
                panels.append(Cloud(name, points, sample.truth, sample.n_old))
        drawn.append((words, panels))
    where = f"{rows[0]['dataset']} ({rows[0]['encoder']}), seed {seed}" if rows else ""
    some = f"; {CLASSES} known and {CLASSES} novel classes at the most, {ROWS} images of each"
    return {"tsne.svg": scatter(f"{how} of features, {where}", drawn, some)}


def profiles(item: Item, settings: Settings) -> dict[str, str]:
    """Class sizes of every split whose data are at hand."""
    from rowssl.config import DataConfig
    from rowssl.core.errors import InputError
    from rowssl.data.problem import load_problem

    found: dict[str, str] = {}
    for block in item.blocks:
        try:
            problem = load_problem(DataConfig.model_validate(data_content(block.data, settings)))
        except InputError:
            continue  # the page says which are missing
        if (sizes := problem.class_sizes()) is not None:
            found[profile_name(block.data)] = size_picture(sizes)
    return found


def write_pictures(found: dict[str, str], folder: Path) -> list[str]:
    """Write them; their names."""
    from rowssl.core.files import write_text

    for name, picture in found.items():
        write_text(folder / name, picture)
    return list(found)
