"""Step -> batch. A batch is a pure function of (seed, step), so there is no sampler state to save or to lose."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from rowssl.core import distributed
from rowssl.core.memory import release, require_whole


@dataclass(frozen=True)
class Batch:
    """One training step's data: a pure function of (seed, step).

    Under torchrun `views` hold this process's share of the rows, everything else the whole batch.
    """

    views: tuple[Tensor, ...]  # trunk outputs of each view, (B, *trunk_shape)
    target: Tensor  # (B,) class id, -1 = unlabelled
    index: Tensor  # (B,) row of the training set
    step: int
    epoch: int
    epochs: int
    last_of_epoch: bool

    @property
    def both_views(self) -> Tensor:
        """All rows of the first view, then all of the second, (2B, *trunk_shape): a copy only where they do not lie so already."""
        first, second = self.views
        whole = first._base  # what the loader has cut in two
        if whole is None or whole is not second._base or whole.shape != (2 * len(first), *first.shape[1:]):
            return torch.cat(self.views)
        halves = second.storage_offset() == first.storage_offset() + first.numel()
        return whole if halves else torch.cat(self.views)


class Source(Protocol):
    """Where trunk outputs come from: a matrix of embeddings, the trunk cache, or the trunk itself on fresh views."""

    shape: tuple[int, ...]  # of one trunk output
    n_views: int  # augmented views per row; 0 = only the clean view, or any number made on the fly

    def __len__(self) -> int: ...
    def clean(self, rows: np.ndarray) -> Tensor:
        """Trunk outputs of the clean view, (n, *shape) float32."""
        ...

    def view(self, rows: np.ndarray, views: np.ndarray, epoch: int) -> Tensor:
        """Trunk outputs of augmented view `views[i]` of row `rows[i]`, (n, *shape) float32."""
        ...


def makes_views(source: Source) -> bool:
    """Whether views are made anew in every epoch, by running the trunk, and not read."""
    return bool(getattr(source, "makes_views", False))


def let_go(source: Source) -> None:
    """Pages of a file on disk that were read for some rows need not stay in memory beside what was made of them."""
    release_pages: Callable[[], None] | None = getattr(source, "release", None)
    if release_pages is not None:
        release_pages()


class ArraySource:
    """Embeddings in memory or memory-mapped, with augmented views of them when there are any."""

    def __init__(self, embeddings: np.ndarray, views: np.ndarray | None = None) -> None:
        self.embeddings, self.views = embeddings, views
        self.shape = tuple(embeddings.shape[1:])
        self.n_views = 0 if views is None else len(views)

    def __len__(self) -> int:
        return len(self.embeddings)

    def clean(self, rows: np.ndarray) -> Tensor:
        """(n, *shape) float32."""
        require_whole(self.embeddings)
        return torch.from_numpy(np.ascontiguousarray(self.embeddings[rows], dtype=np.float32))

    def view(self, rows: np.ndarray, views: np.ndarray, epoch: int) -> Tensor:
        """(n, *shape) float32; without views, the clean embedding (feature augmentation makes the two views differ)."""
        if self.views is None:
            return self.clean(rows)
        require_whole(self.views)
        return torch.from_numpy(np.ascontiguousarray(self.views[views, rows], dtype=np.float32))

    def release(self) -> None:
        """Give back the memory that pages of memory-mapped arrays take; they are read again when they are asked for."""
        for array in (self.embeddings, self.views):
            release(array)


class Remembered:
    """Features (n, D) of rows behind a stage, kept for when they are asked for again: the pretrained stage and the last other."""

    MOST = 400 * 2**20  # bytes; of more rows nothing is remembered

    def __init__(self, source: Source, pretrained: nn.Module, device: str | torch.device = "cpu") -> None:
        self.source, self.pretrained, self.device = source, pretrained, torch.device(device)
        # By "is pretrained": the stage, the values, and which of them are there.
        self._kept: dict[bool, tuple[nn.Module, Tensor, np.ndarray]] = {}

    @torch.no_grad()
    def of(self, stage: nn.Module, rows: np.ndarray) -> Tensor:
        """(n, D) float32, on the CPU."""
        key = stage is self.pretrained
        kept = self._kept.get(key)
        if kept is None or kept[0] is not stage:
            width = self._ask(stage, rows[:1]).shape[1]
            if len(self.source) * width * 4 > self.MOST:
                return self._ask(stage, rows)
            kept = self._kept[key] = stage, torch.empty(len(self.source), width), np.zeros(len(self.source), dtype=bool)
        _, values, there = kept
        missing = rows[~there[rows]]
        if len(missing):
            values[torch.from_numpy(missing)] = self._ask(stage, missing)
            there[missing] = True
        return values[torch.from_numpy(rows)]

    def _ask(self, stage: nn.Module, rows: np.ndarray) -> Tensor:
        parts = np.array_split(rows, max(1, -(-len(rows) // 1024)))
        return torch.cat([stage(self.source.clean(part).to(self.device)).cpu().float() for part in parts])


class BehindStage:
    """Remembered features as a source of rows."""

    n_views = 0

    def __init__(self, remembered: Remembered, stage: nn.Module) -> None:
        self.remembered, self.stage = remembered, stage
        self.shape = tuple(remembered.of(stage, np.arange(1)).shape[1:])

    def __len__(self) -> int:
        return len(self.remembered.source)

    def clean(self, rows: np.ndarray) -> Tensor:
        """(n, D) float32."""
        return self.remembered.of(self.stage, rows)

    def view(self, rows: np.ndarray, views: np.ndarray, epoch: int) -> Tensor:
        """There is the clean view alone."""
        return self.clean(rows)


@dataclass(frozen=True)
class FeatureAugmentation:
    """Cheap augmentation of pooled features on top of cached views, each part off at 0."""

    mix: float = 0.0  # a view is (1 - a) v + a v', v' another view of the same image, a uniform in [0, mix]
    dropout: float = 0.0  # share of dimensions set to 0 (the others scaled up)
    noise: float = 0.0  # Gaussian noise of this length relative to the feature's

    @property
    def changes(self) -> bool:
        """Whether any part is on."""
        return bool(self.mix or self.dropout or self.noise)


def _generator(*key: int) -> torch.Generator:
    """A generator that depends on nothing but the key."""
    words = np.random.SeedSequence(key).generate_state(2, np.uint32)
    return torch.Generator().manual_seed(int(words[0]) << 31 | int(words[1]) >> 1)


class Feed:
    """The training set as a method sees it: targets with -1 for unlabelled, chunks of clean features, and batches."""

    def __init__(
        self,
        source: Source,
        targets: np.ndarray,
        *,
        batch_size: int,
        epochs: int,
        seed: int,
        augmentation: FeatureAugmentation | None = None,
        device: str | torch.device = "cpu",
        tuning: Callable[[], Source] | None = None,
        tuning_seconds: float = 0.0,
        remembered: Remembered | None = None,
    ) -> None:
        self.source, self.device = source, torch.device(device)
        self.tuning = tuning  # opens the labelled rows alone, in order, with augmented views
        self.remembered = remembered
        self.tuning_seconds = tuning_seconds  # what it will take, as forecast
        self.targets = torch.from_numpy(np.asarray(targets, dtype=np.int64)).to(self.device)
        self.labelled = np.flatnonzero(targets >= 0)
        self.unlabelled = np.flatnonzero(targets < 0)
        self.batch_size = min(batch_size, max(2, len(targets)))
        self.epochs, self.seed = epochs, seed
        self.augmentation = augmentation or FeatureAugmentation()
        self.steps_per_epoch = max(1, len(targets) // self.batch_size)

    def __len__(self) -> int:
        return len(self.source)

    @property
    def steps(self) -> int:
        """Steps of the whole training."""
        return self.epochs * self.steps_per_epoch

    def chunks(self, rows: np.ndarray | None = None, size: int = 1024) -> Iterator[tuple[np.ndarray, Tensor]]:
        """Clean trunk outputs of all (or the given) rows in order."""
        rows = np.arange(len(self)) if rows is None else rows
        for part in self._parts(rows, size):
            yield part, self.source.clean(part).to(self.device)

    def view_chunks(
        self, view: int, size: int = 1024, rows: np.ndarray | None = None
    ) -> Iterator[tuple[np.ndarray, Tensor]]:
        """Augmented trunk outputs, view number `view` (modulo how many there are), of all (or the given) rows in order."""
        for part in self._parts(np.arange(len(self)) if rows is None else rows, size):
            which = np.full(len(part), view % max(1, self.source.n_views))
            yield part, self.source.view(part, which, 0).to(self.device)

    def _parts(self, rows: np.ndarray, size: int) -> Iterator[np.ndarray]:
        """Some rows at a time; what was read for them does not stay in memory."""
        for number, begin in enumerate(range(0, len(rows), size), start=1):
            yield rows[begin : begin + size]
            if number % 64 == 0:
                let_go(self.source)
        let_go(self.source)

    def draw(self, step: int) -> np.ndarray:
        """Rows of a step: with replacement, each slot labelled with probability 1/2 (weights 1 and |L|/|U|)."""
        rng = np.random.default_rng([self.seed, 11, step])
        position = rng.random(self.batch_size)
        if len(self.labelled) == 0 or len(self.unlabelled) == 0:
            return (position * len(self)).astype(np.int64)
        labelled = rng.random(self.batch_size) < 0.5
        from_labelled = self.labelled[(position * len(self.labelled)).astype(np.int64)]
        from_unlabelled = self.unlabelled[(position * len(self.unlabelled)).astype(np.int64)]
        return np.where(labelled, from_labelled, from_unlabelled)

    def batch(self, step: int) -> Batch:
        """The batch of a step; under torchrun its views are this process's share."""
        rows = self.draw(step)
        index = torch.from_numpy(rows).to(self.device)
        epoch = step // self.steps_per_epoch
        return Batch(
            views=tuple(view.to(self.device) for view in self._views(rows, epoch, step)),
            target=self.targets[index],
            index=index,
            step=step,
            epoch=epoch,
            epochs=self.epochs,
            last_of_epoch=(step + 1) % self.steps_per_epoch == 0,
        )

    def _views(self, rows: np.ndarray, epoch: int, step: int) -> tuple[Tensor, ...]:
        """Two different views of each row, augmented further in feature space where asked for."""
        here = distributed.share(len(rows))
        rng = np.random.default_rng([self.seed, 12, step])
        count = max(1, self.source.n_views)
        # Distinct views: the second is a non-zero cyclic step away from the first.
        first = rng.integers(count, size=len(rows))
        second = (first + rng.integers(1, max(2, count), size=len(rows))) % count
        mates = None
        if self.augmentation.mix:
            mates = (np.stack([first, second]) + rng.integers(1, max(2, count), size=(2, len(rows)))) % count
        if not self.augmentation.changes and not makes_views(
            self.source
        ):  # both at once, one after the other in memory
            which = np.concatenate([first[here], second[here]])
            return self.source.view(np.tile(rows[here], 2), which, epoch).chunk(2)
        views = [self.source.view(rows[here], which[here], epoch) for which in (first, second)]
        others: list[Tensor | None] = [None, None]
        if mates is not None and count == 2:  # the other view is the only one there is
            others = [views[1], views[0]]
        elif mates is not None:
            others = [self.source.view(rows[here], which[here], epoch) for which in mates]
        pairs = enumerate(zip(views, others, strict=True))
        return tuple(self._augment(view, other, len(rows), here, step, number) for number, (view, other) in pairs)

    def _augment(self, view: Tensor, mate: Tensor | None, rows: int, here: slice, step: int, number: int) -> Tensor:
        """Feature augmentation of one view; random numbers are drawn for the whole batch so that shares agree."""
        options = self.augmentation
        if not options.changes:
            return view
        generator = _generator(self.seed, 13, step, number)
        broadcast = (-1,) + (1,) * (view.dim() - 1)
        if mate is not None:
            amount = (torch.rand(rows, generator=generator) * options.mix)[here].view(broadcast)
            view = torch.lerp(view, mate, amount)
        if options.dropout:
            keep = (torch.rand(rows, *view.shape[1:], generator=generator) >= options.dropout)[here]
            view = view * keep / (1 - options.dropout)
        if options.noise:
            noise = torch.randn(rows, *view.shape[1:], generator=generator)[here]
            length = view.flatten(1).norm(dim=1).view(broadcast) / view[0].numel() ** 0.5
            view = view + options.noise * length * noise
        return view


def sample_rows(targets: np.ndarray, n_old: int, size: int, seed: int) -> np.ndarray:
    """At most about `size` rows, evenly drawn; of every known class two labelled ones (or its only one) are among them."""
    if len(targets) <= size:
        return np.arange(len(targets))
    order = np.random.default_rng([seed, 31]).permutation(len(targets))
    shuffled = targets[order]
    known = np.flatnonzero((shuffled >= 0) & (shuffled < n_old))
    known = known[np.argsort(shuffled[known], kind="stable")]  # by class, in the order that was drawn
    classes = shuffled[known]
    first_two = np.r_[True, True, classes[2:] != classes[:-2]][: len(known)]
    return np.unique(np.concatenate([order[:size], order[known[first_two]]]))
