"""What a method is: one module, four functions, all state in persistent buffers, one cosine classifier at the end.

Below it what methods share: what they remember between steps (momentum copy, queue, class prior), schedules, and small helpers.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args, get_origin, overload

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor, nn

from rowssl.clustering.assignment import hungarian
from rowssl.core import distributed
from rowssl.core.errors import InputError
from rowssl.data.feed import Batch, Feed, Source
from rowssl.methods.heads import CosineClassifier
from rowssl.methods.held_out import Kept

CALIBRATION_ROWS = 4096


@dataclass(frozen=True)
class Step:
    """What `Method.loss` returns: named terms for the loop to sum, and what `after_step` will need."""

    losses: dict[str, Tensor]
    extras: dict[str, Tensor] = field(default_factory=dict)


def option(default: Any, help: str, **limits: Any) -> Any:
    """A documented field of a method's `Options`; `limits` are those of `pydantic.Field`: `ge`, `gt`, `le`, `lt`."""
    return Field(default, description=help, **limits)


class Method(nn.Module):
    """Base of all methods: the trainable tail, the common classifier, and inference that looks at one row at a time.

    Parameters
    ----------
    tail : nn.Module
        Maps a trunk output (B, *trunk_shape) to the feature z (B, d); has `out_dim`.
    n_old, n_classes : int
        Number of known classes, and of all classes (heads). Targets 0..n_old-1 are known.
    n_rows : int
        Size of the training set, for methods that remember something per row.
    seed : int
        Seed of the initial weights.
    **given
        Fields of the method's `Options`.
    """

    class Options(BaseModel):
        """A method's hyper-parameters, each with a default and a help line; an unknown one is refused."""

        model_config = ConfigDict(extra="forbid", frozen=True)

    name: ClassVar[str]  # on the command line
    label: ClassVar[str]  # in tables
    options: Options
    trains: ClassVar[bool] = True  # False: nothing to optimise, `finish` does it all
    tunes: ClassVar[bool] = False  # takes features as wide as they are, and views of labelled pictures alone
    least_views: ClassVar[int] = 1  # of each image, that are cached where the user asks for no number
    remembers_rows = False  # True: `training_tailedness` says more than `tailedness` of the same rows

    def __init__(
        self, tail: nn.Module, *, n_old: int, n_classes: int, n_rows: int, seed: int = 0, **given: Any
    ) -> None:
        super().__init__()
        self.options = self.read_options(given)
        self.n_old, self.n_classes, self.n_rows, self.seed = n_old, n_classes, n_rows, seed
        self.generator = torch.Generator().manual_seed(seed)
        self.tail = tail
        self.out_dim = int(tail.out_dim)  # type: ignore[arg-type]
        self.classifier = CosineClassifier(self.out_dim, n_classes, generator=self.generator)
        self.kept: Kept | None = None  # where hidden labels judge the training

    @classmethod
    def read_options(cls, given: dict[str, Any]) -> Options:
        """The hyper-parameters with these values; InputError names the first that is unknown or cannot be."""
        try:
            return cls.Options(**given)
        except ValidationError as error:
            raise InputError(cls._refusal(error)) from error

    @classmethod
    def _refusal(cls, error: ValidationError) -> str:
        """What is wrong with the first wrong option, in one sentence."""
        first = error.errors()[0]
        name, fields = str(first["loc"][0]), cls.Options.model_fields
        if name not in fields:
            return f"Method {getattr(cls, 'name', cls.__name__)} has no option '{name}': choose among {', '.join(sorted(fields))}."
        if get_origin(fields[name].annotation) is Literal:
            choices = ", ".join(map(str, get_args(fields[name].annotation)))
            return f"Option {name} must be one of {choices}, not {first['input']!r}."
        return f"Option {name}: {first['msg'].lower()}, not {first['input']!r}."

    @staticmethod
    def wrap_tail(tail: nn.Module, options: dict[str, Any]) -> nn.Module:
        """What the method makes of an encoder's tail before it trains it, by its options: here nothing.

        Whoever loads a saved model wraps the encoder's tail in the same way before the weights go in.
        """
        return tail

    def start(self, feed: Feed) -> None:
        """Prepare state from the training set before the first step: the scale of the tail's input; clusterings."""
        calibrate = getattr(self.tail, "calibrate", None)
        if calibrate is not None:
            rows = seeded_rows(len(feed), CALIBRATION_ROWS, self.seed)
            calibrate(feed.source.clean(np.sort(rows)).to(feed.device))

    def begin_epoch(self, feed: Feed, epoch: int) -> None:
        """Before the first step of an epoch, without gradients: what a method estimates from the whole training set."""

    def loss(self, batch: Batch) -> Step:
        """Named loss terms of a batch."""
        raise NotImplementedError

    def after_step(self, batch: Batch, step: Step) -> None:
        """Update buffers after the optimiser's step."""

    def finish(self, feed: Feed) -> None:
        """End of training: non-parametric methods write centroids into the classifier."""

    def answers(self, feed: Feed) -> Iterator[str]:
        """After training: one whole model after another, each better than the one before, with a word on what follows.

        Whoever asks may write a model down before the next one takes its place; here there is one, that of `finish`.
        """
        self.finish(feed)
        yield ""

    def facts(self) -> dict[str, Any]:
        """What the method found out about its own answer, for metrics.json."""
        return {}

    def features_of(self, source: Source, rows: np.ndarray, device: torch.device) -> Tensor:
        """z of the clean view of rows, (n, d)."""
        z: Tensor = self.tail(source.clean(rows).to(device))
        return z

    def predict_logits(self, x: Tensor) -> Tensor:
        """Class scores of trunk outputs, row by row: (B, *trunk_shape) -> (B, C)."""
        logits: Tensor = self.classifier(self.tail(x))
        return logits

    def two_views(
        self, batch: Batch, projector: Callable[[Tensor], Tensor], *, project_both: bool
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Cosine logits (2B, C), view 0 before view 1, and unit embeddings h of view 0 (or both), for the whole batch."""
        z = self.tail(batch.both_views)
        o = self.classifier(z)
        h = projector(z).chunk(2) if project_both else (projector(z[: len(z) // 2]),)
        if distributed.world() > 1:
            gathered = distributed.gather(len(batch.index), *o.chunk(2), *h)
            o, h = torch.cat(gathered[:2]), gathered[2:]
        return o, h

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """While this lasts no weight and no buffer changes: what all rows have in common may be computed once."""
        yield

    @property
    def has_tailedness(self) -> bool:
        """Whether `tailedness` says anything."""
        return type(self).tailedness is not Method.tailedness

    def tailedness(self, x: Tensor) -> Tensor | None:
        """Density score of rows (low = tail), for methods that estimate one: (B, *trunk_shape) -> (B,)."""
        return None

    @torch.no_grad()
    def training_tailedness(self, feed: Feed) -> Tensor | None:
        """The same of all training rows, (N,)."""
        with self.unchanged():
            return joined((self.tailedness(x) for _, x in feed.chunks()), len(feed))

    @torch.no_grad()
    def unit_features(self, feed: Feed, view: int | None = None) -> Tensor:
        """l2-normalised z of the whole training set, clean or of an augmented view, (N, d)."""
        chunks = feed.chunks() if view is None else feed.view_chunks(view)
        return joined((F.normalize(self.tail(x), dim=1) for _, x in chunks), len(feed))


class MomentumCopy(nn.Module):
    """The key network: a copy whose parameters follow the query network by exponential moving average."""

    def __init__(self, online: nn.Module, momentum: float) -> None:
        super().__init__()
        self.module = copy.deepcopy(online)
        self.module.requires_grad_(False)
        self.momentum = momentum

    @torch.no_grad()
    def follow(self, online: nn.Module) -> None:
        """One EMA step over all parameters; buffers are copied."""
        mine = [p.detach() for p in self.module.parameters()]
        theirs = [p.detach() for p in online.parameters()]
        if mine:
            torch._foreach_lerp_(mine, theirs, 1 - self.momentum)
        for own, other in zip(self.module.buffers(), online.buffers(), strict=True):
            own.copy_(other)

    def forward(self, *inputs: Tensor) -> Tensor:
        """The copy's output."""
        output: Tensor = self.module(*inputs)
        return output


class Queue(nn.Module):
    """First-in-first-out queue of unit keys with their labels and row numbers; pointer and fill count are buffers too.

    Only `filled` leading entries are valid, so a part-filled queue has neither random negatives nor random neighbours.
    """

    keys: Tensor
    labels: Tensor
    rows: Tensor
    cursor: Tensor

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.size = size
        self.register_buffer("keys", torch.zeros(size, dim))
        self.register_buffer("labels", torch.full((size,), -1, dtype=torch.long))
        self.register_buffer("rows", torch.full((size,), -1, dtype=torch.long))
        self.register_buffer("cursor", torch.zeros(2, dtype=torch.long))  # pointer, filled

    @property
    def filled(self) -> int:
        """How many entries are valid."""
        return int(self.cursor[1])

    def valid(self) -> tuple[Tensor, Tensor, Tensor]:
        """Valid keys (n, d), labels (n,) and row numbers (n,)."""
        n = self.filled
        return self.keys[:n], self.labels[:n], self.rows[:n]

    @torch.no_grad()
    def slots(self, count: int) -> Tensor:
        """Where the next `count` entries will go, (min(count, size),)."""
        return (int(self.cursor[0]) + torch.arange(min(count, self.size), device=self.keys.device)) % self.size

    @torch.no_grad()
    def push(self, keys: Tensor, labels: Tensor, rows: Tensor) -> None:
        """Append a batch of any size; of a batch larger than the queue the last entries stay."""
        keys, labels, rows = keys[-self.size :], labels[-self.size :], rows[-self.size :]
        slots = self.slots(len(keys))
        self.keys[slots] = keys
        self.labels[slots] = labels
        self.rows[slots] = rows
        self.cursor[0] = (self.cursor[0] + len(keys)) % self.size
        self.cursor[1] = torch.clamp(self.cursor[1] + len(keys), max=self.size)

    @torch.no_grad()
    def fill_randomly(self, label: int, generator: torch.Generator) -> None:
        """The public code's start: random unit vectors that count as valid entries of class `label`."""
        self.keys.copy_(F.normalize(torch.randn(self.keys.shape, generator=generator), dim=1))
        self.labels.fill_(label)
        self.cursor[1] = self.size


class HeadPrior(nn.Module):
    """A distribution over classifier heads, (C,), that an oracle may overwrite before every epoch.

    Parameters
    ----------
    assumed : Tensor
        (C,) weights, not necessarily of sum 1: what the method takes for granted.
    oracle : bool
        Whether the true classes may be read.
    truth : Tensor or None
        (N,) true classes of the training rows; kept for an oracle only.
    """

    value: Tensor
    truth: Tensor

    def __init__(self, assumed: Tensor, *, oracle: bool, truth: Tensor | None) -> None:
        super().__init__()
        if oracle and truth is None:
            raise InputError("The true_prior oracle needs the true class of every row (oracle_truth).")
        self.oracle = oracle
        self.register_buffer("value", assumed / assumed.sum())
        kept = truth.clone() if oracle and truth is not None else torch.zeros(0, dtype=torch.long)
        self.register_buffer("truth", kept)

    def share(self, heads: Tensor, rows: Tensor, n_old: int) -> Tensor:
        """True share of the rows (n,) of each head, given the heads predicted for them: -> (C,)."""
        return true_prior_of_heads(heads, self.truth[rows], n_old, len(self.value)).to(self.value)


def true_prior_of_heads(heads: Tensor, truth: Tensor, n_old: int, n_classes: int) -> Tensor:
    """True share of the rows of each head: predicted heads (N,), true classes (N,) -> (C,), sums to 1.

    A known head is its class; novel heads are matched to novel classes by overlap. A head with no class is given half a row,
    so that the logarithm of the prior stays finite.
    """
    true_classes = max(n_classes, int(truth.max()) + 1)
    pairs = torch.bincount(heads * true_classes + truth, minlength=n_classes * true_classes)
    counts = pairs.view(n_classes, true_classes)
    rows, columns = hungarian(counts[n_old:, n_old:])
    size = counts.sum(0).float()
    prior = torch.zeros(n_classes, device=size.device)
    prior[:n_old] = size[:n_old]
    prior[n_old + torch.as_tensor(rows)] = size[n_old + torch.as_tensor(columns)]
    prior = prior.clamp_min(0.5)
    return prior / prior.sum()


def cosine(epoch: int, epochs: int, start: float, end: float) -> float:
    """From `start` at epoch 0 towards `end` at `epochs` along half a cosine."""
    return end + 0.5 * (start - end) * (1 + math.cos(math.pi * epoch / max(1, epochs)))


def teacher_temperature(epoch: int, start: float, end: float, warmup: int, shape: str = "linear") -> float:
    """tau_t: `warmup` values from `start` (first epoch) to `end`, then `end`; "linear" as coded, "cosine" as the paper says."""
    if epoch >= warmup - 1:
        return end
    done = epoch / (warmup - 1)
    return end + (start - end) * (0.5 * (1 + math.cos(math.pi * done)) if shape == "cosine" else 1 - done)


@overload
def joined(pieces: Iterable[Tensor], rows: int) -> Tensor: ...


@overload
def joined(pieces: Iterable[Tensor | None], rows: int) -> Tensor | None: ...


def joined(pieces: Iterable[Tensor | None], rows: int) -> Tensor | None:
    """Pieces of so many rows in all, one after the other; None as soon as one of them is.

    In one array from the start: to join them at the end would hold everything twice, and what is kept between the large
    results of a network that are freed leaves holes that the next ones do not fit into, gigabytes of them for a million rows.
    """
    found, done = torch.empty(0), 0
    for piece in pieces:
        if piece is None:
            return None
        if done == 0:
            found = piece.new_empty(rows, *piece.shape[1:])
        found[done : done + len(piece)] = piece
        done += len(piece)
    return found


def projector_sizes(dim: int, hidden: int | None, out: int | None) -> tuple[int, int]:
    """Projector widths: as given, else the paper's 2048 and 256 from d = 384 upward and 2 d (at most 512), 128 below."""
    wide = dim >= 384
    return hidden or (2048 if wide else min(512, 2 * dim)), out or (256 if wide else 128)


def seeded_rows(count: int, size: int, seed: int) -> np.ndarray:
    """`size` distinct rows of `count` in random order."""
    return np.random.default_rng([seed, 21]).permutation(count)[:size]
