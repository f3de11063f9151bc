"""From an item of the catalogue and the user's options to the cells of a grid."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rowssl.bench.grid import Cell, Variant, grid
from rowssl.core.errors import InputError
from rowssl.paper.estimates import searched
from rowssl.paper.spec import Block, Data, Item, Line

SCALES = ("full", "small")
SMALL = {"epochs": 20, "views": 2}
SEEDS = {"full": (0, 1, 2), "small": (0,)}
# As in the paper, classifiers begin at random, and with them the whole length of its training.
FROM_RANDOM: dict[str, dict[str, Any]] = {
    "simgcd": {"classifier_init": "random"},
    "dts": {"classifier_init": "random", "u_moves": "anywhere"},
}
TRUE_CLASSES = {"cifar100": 100, "imagenet100": 100, "herbarium19": 683, "cub200": 200}


@dataclass(frozen=True)
class Settings:
    """What all items of one command have in common."""

    out: Path
    seeds: tuple[int, ...] = SEEDS["full"]
    scale: str = "full"
    data_root: str | None = None
    encoder: str | None = None
    image_size: int | None = None
    tail: str | None = None
    views: int | None = None
    cache: str | None = None
    epochs: int | None = None
    preset: str | None = None  # of DTS

    @property
    def small(self) -> bool:
        return self.scale == "small"

    @property
    def runs(self) -> Path:
        """All items share their runs."""
        return self.out / "runs"

    def base(self) -> dict[str, Any]:
        """The configuration that all runs start from; only what was given, so that cells are those of `rowssl bench`."""
        views, epochs = self.views, self.epochs
        if self.small:
            views = SMALL["views"] if views is None else views
            epochs = SMALL["epochs"] if epochs is None else epochs
        encoder = {
            "name": self.encoder,
            "image_size": self.image_size,
            "tail": self.tail,
            "views": views,
            "cache": self.cache,
        }
        train: dict[str, Any] = {} if epochs is None else {"epochs": epochs}
        if self.small:
            train["evaluate_every"] = max(1, (epochs or 1) // 10)
        return {"encoder": {key: value for key, value in encoder.items() if value is not None}, "train": train}


@dataclass(frozen=True)
class Planned:
    """One run of an item. Without a cell its number of classes has to be estimated first."""

    item: Item
    block: Block
    line: Line
    seed: int
    cell: Cell | None
    like: Cell  # the same run with the true number of classes: what it costs


def planned(item: Item, settings: Settings, *, estimate: bool, on: str = "local") -> list[Planned]:
    """All runs of an item, seed by seed. With `estimate` numbers of classes are searched where they are not known yet.

    `on` is where a trunk cache that the search lacks is filled.
    """
    found = []
    for seed in settings.seeds:
        for block in item.blocks:
            if not block.lines:
                continue
            content = settings.base()
            content["data"] = data_content(block.data, settings)
            classes = class_number(block.data, settings)
            for line in block.lines:
                like = _cell(item, line, content, seed, settings, classes, None)
                count = {"true": None, "double": 2 * classes, "search": 0}[line.classes]
                if count == 0:
                    count = searched(like.config, settings.out, estimate=estimate, on=on)
                pending = line.classes == "search" and count is None
                cell = None if pending else _cell(item, line, content, seed, settings, classes, count)
                found.append(Planned(item, block, line, seed, cell, like))
    return found


def data_content(data: Data, settings: Settings) -> dict[str, Any]:
    """`data` of a configuration: the split by its protocol, or by a file that is made for it."""
    content: dict[str, Any] = dict(data.options)
    if settings.data_root is not None:
        content["data_root"] = settings.data_root
    if settings.small or data.made:
        from rowssl.paper.splits import split_file

        content["split"] = str(split_file(data, settings.data_root, settings.out / "splits", small=settings.small))
    return content


def class_number(data: Data, settings: Settings) -> int:
    """True classes of a split."""
    if not settings.small:
        return TRUE_CLASSES[data.options["name"]]
    from rowssl.paper.splits import small_classes, tables

    train, _ = tables(data.options["name"], data.options.get("variant"), settings.data_root)
    return len(small_classes(data, train)[0])


def _cell(
    item: Item, line: Line, content: dict[str, Any], seed: int, settings: Settings, classes: int, count: int | None
) -> Cell:
    options = dict(line.options)
    options |= {name: max(1, round(factor * classes)) for name, factor in line.per_class.items()}
    if settings.preset is not None and line.method == "dts":
        options = {"preset": settings.preset, **options}
    else:
        options = {**FROM_RANDOM.get(line.method, {}), **options}
    overrides: dict[str, Any] = {f"method.options.{name}": value for name, value in options.items()}
    if not settings.small:
        overrides |= {f"train.{name}": value for name, value in item.train.items()}
    if count is not None:
        overrides["classes"] = count
    data = content["data"]
    (cell,) = grid(
        content, methods=[line.method], priors=[data.get("prior")], gammas=[data.get("gamma")], seeds=[seed],
        variants=[Variant(line.variant, overrides)], table=item.name,
    )  # fmt: skip
    return cell


def choose(names: Iterable[str], items: dict[str, Item]) -> list[Item]:
    """Items by name; `all` is every one."""
    wanted = list(names)
    for name in wanted:
        if name != "all" and name not in items:
            raise InputError(f"there is no {name!r} to reproduce: choose among all, {', '.join(items)}.")
    return list(items.values()) if "all" in wanted else [items[name] for name in dict.fromkeys(wanted)]
