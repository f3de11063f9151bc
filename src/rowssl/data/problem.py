"""From a configuration to an open-world problem: rows, targets a method may see, and a truth it may not."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from rowssl.config import DataConfig
from rowssl.core.errors import InputError
from rowssl.core.text import printable
from rowssl.data.profiles import ClassSizes
from rowssl.data.table import Table


@dataclass(frozen=True)
class Problem:
    """Targets are places in `class_names`: known classes first (0..n_old-1), then the classes only the truth knows."""

    table: Table  # the training rows, labelled and unlabelled
    targets: np.ndarray  # (N,) what a method sees: -1 = unlabelled
    class_names: tuple[str, ...]  # known, then novel where the truth names them
    n_old: int
    truth: np.ndarray | None = None  # (N,) for evaluation alone
    test: Table | None = None
    test_truth: np.ndarray | None = None
    recipe: dict[str, object] | None = None
    # Where the rows come from a larger table, that table and their places in it: splits of one table share its cache.
    whole: Table | None = None
    rows: np.ndarray | None = None
    whole_test: Table | None = None
    test_rows: np.ndarray | None = None
    data: DataConfig | None = None  # where it was read from

    @property
    def true_classes(self) -> int:
        """Number of classes, if the truth is known."""
        return len(self.class_names)

    def unlabelled(self) -> np.ndarray:
        """Rows the transductive numbers are about: unlabelled, truth known."""
        hidden = self.targets < 0
        return np.flatnonzero(hidden if self.truth is None else hidden & (self.truth >= 0))

    def labelled_counts(self, classes: int) -> np.ndarray:
        """Labelled rows of each of so many classes, (C,)."""
        return np.bincount(self.targets[self.targets >= 0], minlength=classes)

    def class_counts(self) -> dict[str, np.ndarray]:
        """Training images per class by basis: labelled, unlabelled, total. Needs the truth."""
        assert self.truth is not None
        size = self.true_classes
        labelled = self.labelled_counts(size)
        unlabelled = np.bincount(self.truth[self.unlabelled()], minlength=size)
        return {"labelled": labelled, "unlabelled": unlabelled, "total": labelled + unlabelled}

    def class_sizes(self) -> ClassSizes | None:
        """Training images of each true class, if the truth is known."""
        if self.truth is None:
            return None
        labelled, unlabelled = (
            np.bincount(self.truth[rows & (self.truth >= 0)], minlength=self.true_classes)
            for rows in (self.targets >= 0, self.targets < 0)
        )
        return ClassSizes(self.class_names, labelled, unlabelled, self.n_old)


def load_problem(data: DataConfig, *, skipped: Collection[str] | None = None) -> Problem:
    """Read the data and decide who is labelled.

    `skipped` names the images that another process found unreadable: none is looked at then, and these are left out.
    """
    if (data.name is None) == (data.source is None):
        raise InputError("Give either a SOURCE (folder, CSV, parquet or embeddings) or --data NAME of a benchmark.")
    return replace(_from_benchmark(data) if data.name is not None else _from_table(data, skipped), data=data)


def _from_benchmark(data: DataConfig) -> Problem:
    from rowssl.data.benchmarks import load_benchmark
    from rowssl.data.splits import Split, make_split

    assert data.name is not None
    train, test = load_benchmark(data.name, data.data_root, variant=data.variant)
    if data.split is not None:
        split = Split.load(data.split, n_train=len(train), n_test=len(test))
    else:
        split = make_split(
            train.labels,
            test.labels,
            protocol=data.protocol,
            dataset=data.name,
            known=data.known,
            gamma=data.gamma,
            prior=data.prior,
            labelled_share=data.labelled_share,
            setting=data.setting,
            mismatch=data.mismatch,
            n_max=data.n_max,
            seed=data.split_seed,
            class_names=train.class_names,
        )
    rows = np.sort(np.concatenate([split.labelled, split.unlabelled]))
    truth = split.targets(train.labels[rows])
    return Problem(
        table=train.take(rows),
        targets=np.where(np.isin(rows, split.labelled), truth, -1),
        class_names=tuple(train.class_names[c] for c in split.classes),
        n_old=len(split.known_classes),
        truth=truth,
        test=test.take(split.test),
        test_truth=split.targets(test.labels[split.test]),
        recipe={**split.recipe, "seed": split.seed, "sha256": split.sha256()},
        whole=train,
        rows=rows,
        whole_test=test,
        test_rows=split.test,
    )


def _from_table(data: DataConfig, skipped: Collection[str] | None) -> Problem:
    from rowssl.data.table import read_table

    assert data.source is not None
    table = read_table(
        data.source,
        labels=data.labels,
        image_column=data.image_column,
        label_column=data.label_column,
        check_images=skipped is None,
    )
    if skipped:
        table = table.take([row for row, name in enumerate(table.names) if name not in skipped])
    bad, everything = len(table.skipped), len(table.skipped) + len(table)
    if bad > data.max_bad * everything:
        first = table.skipped[0]
        raise InputError(
            f"{bad:,} of {everything:,} images in {printable(data.source)} cannot be read "
            f"(the first: {first.name}: {first.reason}): `rowssl check` lists them, "
            f"and --max-bad {min(1, bad / everything + 0.005):.2f} goes on without them."
        )
    if len(table) < 4:
        raise InputError(f"{data.source} has {len(table)} readable rows: at least 4 are needed.")
    known = np.unique(table.labels[table.labels >= 0])
    true = np.unique(table.truth[table.truth >= 0]) if table.truth is not None else known
    order = np.concatenate([known, np.setdiff1d(true, known)]).astype(np.int64)
    place = np.full(len(table.class_names) + 1, -1, dtype=np.int64)  # the last entry is for label -1
    place[order] = np.arange(len(order))
    test = table.test
    return Problem(
        table=table,
        targets=place[table.labels],
        class_names=tuple(table.class_names[c] for c in order),
        n_old=len(known),
        truth=None if table.truth is None else np.where(table.labels >= 0, place[table.labels], place[table.truth]),
        test=test,
        test_truth=None if test is None or table.truth is None else place[test.labels],
    )
