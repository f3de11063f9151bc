"""Transfer: what the known classes teach about "one class" is transferred to the classes nobody has named.

The end of the network is tuned on the labels for seconds, where it can be. The rest is a closed form: a metric in which the
known classes are round and of one size, Ward's tree for a start, and a few rounds of k-means on the sphere in which labelled
rows keep their class. Hidden known classes choose the metric and say how confident an answer may be. The equations are in
docs/methods/transfer.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rowssl.clustering.kmeans import kmeans, semi_supervised_kmeans
from rowssl.clustering.tree import free_clusters, ward_tree, weighted_ward_tree
from rowssl.core import distributed
from rowssl.data.feed import Feed, Remembered, Source
from rowssl.encoders.tails import AdapterTail
from rowssl.methods.base import Method, joined, option, seeded_rows
from rowssl.methods.heads import TEMPERATURE
from rowssl.methods.kmeans import BEYOND
from rowssl.methods.rehearsal import (
    Confidence,
    Fold,
    Trial,
    calibrate,
    folds,
    rehearsal_rows,
    reliability,
    score,
    try_out,
)
from rowssl.methods.tuning import Tuning, tune

DIMS = 512  # principal components that are kept
SAMPLE = 50_000  # rows that the components are found from
MOST = 30  # labelled rows that a class counts for in W
EXACT = 12_000  # rows; above, Ward's tree is built over micro-clusters
MICRO, MICRO_SAMPLE = 4_096, 65_536  # micro-clusters, and the rows they are found from
HALF = 100_000  # rows; above, what is kept of each is float16
PIECE = 16_384  # rows that are compared with the centroids together
RHOS = (0.05, 0.15, 0.4, 1.0)
USUAL = ((40, 0.15), (10, 0.4), (0, 1.0))  # rho from so many degrees of freedom of W on
USUAL_TUNED = 0.4  # at least, behind a tuned stage: it has learnt a part of the metric
ROUNDS = 10


class MetricTail(nn.Module):
    """Features of the encoder -> unit x in which every known class looks alike: (B, *trunk_shape) -> (B, d).

    x = unit(T unit(V (unit(f^p) - m))): a power, principal components V around the mean m, and T = W^-1/2. Everything but
    the encoder's own tail is fitted in closed form and stored in buffers.
    """

    root: Tensor  # () 1 where p = 1/2
    mean: Tensor  # (D,)
    components: Tensor  # (D, d)
    whiten: Tensor  # (d, d)

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        width = int(inner.out_dim)  # type: ignore[arg-type]
        # Pooled features are taken as they are: an adapter has nothing to learn here.
        self.inner = nn.Identity() if isinstance(inner, AdapterTail) else inner
        self.out_dim = min(width, DIMS)
        self.register_buffer("root", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("components", torch.eye(width, self.out_dim))
        self.register_buffer("whiten", torch.eye(self.out_dim))

    def powered(self, x: Tensor) -> Tensor:
        """unit(f^p), (B, *trunk_shape) -> (B, D)."""
        return self.powered_of(self.inner(x))

    def powered_of(self, f: Tensor) -> Tensor:
        """The same of the encoder's features, (B, D) -> (B, D)."""
        return F.normalize(torch.where(self.root > 0, f.clamp_min(0).sqrt(), f), dim=1)

    def components_of(self, powered: Tensor) -> Tensor:
        """unit(V (f - m)), (B, D) -> (B, d)."""
        return F.normalize((powered - self.mean) @ self.components, dim=1)

    def of_features(self, f: Tensor) -> Tensor:
        """x of the encoder's features, (B, D) -> (B, d)."""
        return F.normalize(self.components_of(self.powered_of(f)) @ self.whiten, dim=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.of_features(self.inner(x))


def middle(powered: Tensor, target: Tensor) -> Tensor:
    """Halfway between the mean of all rows (N, D) and the mean of the known classes' means, (D,).

    Around the mean of all rows alone, a class with nearly all of them would lie in every direction.
    """
    classes = target.unique()
    means = [powered[target == one].mean(0) for one in classes[classes >= 0]]
    return (powered.mean(0) + torch.stack(means).mean(0)) / 2 if means else powered.mean(0)


def principal_components(powered: Tensor, dims: int, mean: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Centre (D,), the mean if not given, and leading principal components (D, dims) of rows (N, D) around it.

    What N rows cannot span is zero.
    """
    mean = powered.mean(0) if mean is None else mean
    covariance = ((powered - mean).T @ (powered - mean)).double() / len(powered)
    _, vectors = torch.linalg.eigh(covariance)
    kept = min(dims, max(1, len(powered) - 1))
    components = vectors[:, -kept:].flip(1)
    largest = components.abs().argmax(0)  # signs that do not depend on the library
    components = components * components[largest, torch.arange(kept)].sign()
    return mean, F.pad(components.float(), (0, dims - kept))


def whitening_of(y: Tensor, target: Tensor, rho: float | None) -> Tensor | None:
    """T of rows (n, d) with their classes, -1 = unlabelled; None without a metric, or where no class has two labels."""
    labelled = target >= 0
    if rho is None or not labelled.any():
        return None
    within = within_covariance(y[labelled], target[labelled])
    return None if within is None else whitening(within, rho)


def in_metric(y: Tensor, target: Tensor, rho: float | None) -> Tensor:
    """Rows in the metric of the labelled ones among them, unit; as they are where there is none: (n, d) -> (n, d)."""
    whiten = whitening_of(y, target, rho)
    return y if whiten is None else F.normalize(y @ whiten, dim=1)


def within_covariance(y: Tensor, target: Tensor) -> Tensor | None:
    """W of labelled rows (n, d) around their class means, a class counting as at most 30 rows; None where no class has two."""
    count = torch.bincount(target)
    size = len(count)
    means = torch.zeros(size, y.shape[1]).index_add_(0, target, y) / count.clamp_min(1)[:, None]
    weight = torch.where(count > 1, count.clamp_max(MOST) / (count - 1).clamp_min(1), torch.zeros(size))
    total = float(count[count > 1].clamp_max(MOST).sum())
    if not total:
        return None
    centred = y - means[target]
    return (centred.T @ (centred * weight[target][:, None])) / total


def whitening(within: Tensor, rho: float) -> Tensor:
    """W^-1/2 after W <- (1 - rho) W + rho tr(W)/d I, scaled so that rho = 1 is the identity."""
    d = len(within)
    size = within.trace().double() / d
    if rho >= 1 or float(size) <= 0:
        return torch.eye(d)
    shrunk = (1 - rho) * within.double() / size + rho * torch.eye(d, dtype=torch.float64)
    values, vectors = torch.linalg.eigh(shrunk)
    return (vectors * values.clamp_min(1e-9).rsqrt() @ vectors.T).float()


def first_centroids(
    x: Tensor, target: Tensor, n_old: int, n_classes: int, seed: int = 0, *, exact: int = EXACT, count: int = MICRO
) -> Tensor:
    """Means of the known classes, and of the largest clusters without a labelled row in a cut of Ward's tree: (C, d), unit.

    Above `exact` rows the tree is one of `count` micro-clusters; one that holds a labelled row counts as labelled. Directions of
    classes for which no rows are left are zero.
    """
    labelled = target >= 0
    sums = torch.zeros(n_classes, x.shape[1]).index_add_(0, target[labelled], x[labelled].float())
    free = n_classes - n_old
    if free and len(x) > 1:
        if len(x) <= exact:
            clusters = free_clusters(ward_tree(x), labelled.numpy(), free)
        else:
            some = np.sort(seeded_rows(len(x), MICRO_SAMPLE, seed))
            micro = kmeans(x[torch.from_numpy(some)].float(), count, seed=seed, n_init=1, max_iter=10)
            nearest = nearest_centroid(x, F.normalize(micro.centers, dim=1))
            size = torch.bincount(nearest, minlength=count)
            held = torch.bincount(nearest[labelled], minlength=count) > 0
            used = (size > 0).nonzero()[:, 0]
            tree = weighted_ward_tree(micro.centers[used].numpy(), size[used].numpy().astype(np.float64))
            place = torch.full((count,), -1)
            groups = free_clusters(tree, held[used].numpy(), free)
            for number, group in enumerate(groups):
                place[used[torch.from_numpy(group)]] = number
            of_row = place[nearest]
            clusters = [(of_row == number).nonzero()[:, 0].numpy() for number in range(len(groups))]
            clusters.sort(key=len, reverse=True)
        for number, rows in enumerate(clusters):
            sums[n_old + number] = x[torch.from_numpy(rows)].sum(0, dtype=torch.float32)
    return F.normalize(sums, dim=1)


def plain_centroids(x: Tensor, target: Tensor, n_old: int, n_classes: int, seed: int = 0) -> Tensor:
    """Means of the known classes and k-means of the rest: (C, d), unit."""
    free = int((target < 0).sum())
    k = min(n_classes, n_old + free)
    rows = np.sort(seeded_rows(len(x), SAMPLE, seed))
    found = semi_supervised_kmeans(x[rows].float(), target[rows], k, seed=seed, n_init=3)
    return F.pad(F.normalize(torch.as_tensor(found.centers), dim=1), (0, 0, 0, n_classes - k))


def nearest_centroid(x: Tensor, centroids: Tensor) -> Tensor:
    """The centroid with the largest cosine, (N,); a direction of zero is never the nearest."""
    gone = torch.where(centroids.norm(dim=1) > 0, 0.0, -2.0)
    parts = [torch.addmm(gone, part.float(), centroids.T).argmax(1) for part in x.split(PIECE)]
    return torch.cat(parts)


def spherical_rounds(x: Tensor, target: Tensor, centroids: Tensor, rounds: int = ROUNDS) -> Tensor:
    """k-means on the sphere from given centroids, labelled rows held in their class: (C, d), unit."""
    held = target >= 0
    before = None
    for _ in range(rounds):
        label = torch.where(held, target, nearest_centroid(x, centroids))
        if before is not None and torch.equal(label, before):
            break
        sums = torch.zeros_like(centroids)
        for rows, part in zip(label.split(PIECE), x.split(PIECE), strict=True):
            sums.index_add_(0, rows, part.float())
        empty = sums.norm(dim=1) < 1e-12
        centroids = torch.where(empty[:, None], centroids, F.normalize(sums, dim=1))
        before = label
    return centroids


@dataclass(frozen=True)
class Candidate:
    """One way to the answer, which hidden known classes judge."""

    rho: float | None  # None: no metric at all, features as they are
    tuned: bool = False  # the last stage, on the labels

    def __str__(self) -> str:
        if self.rho is None:
            return "class means + k-means, as they are"
        return f"{'tuned' if self.tuned else 'frozen'}, rho {self.rho:g}"


class Transfer(Method):
    """Known classes tell what one class looks like; classes without a name are looked for in that metric."""

    name: ClassVar[str] = "transfer"
    label: ClassVar[str] = "transfer"

    trains: ClassVar[bool] = False
    tunes: ClassVar[bool] = True
    plain: ClassVar[bool] = False  # whether the plain candidate takes part

    class Options(Method.Options):
        """Hyper-parameters of Transfer."""

        rho: float | None = option(None, "shrinkage of W; None: chosen on hidden known classes")
        tune: bool = option(True, "train the encoder's last stage on the labels, where the tail is one")
        rounds: int = option(ROUNDS, "rounds of k-means on the sphere at the most")

    options: Options

    def __init__(self, tail: nn.Module, **arguments: Any) -> None:
        super().__init__(self.wrap_tail(tail, {}), **arguments)
        self.ends: float | None = None  # on the monotonic clock: no tuning that would end later
        self.trials: dict[Candidate, list[Trial]] = {}
        self.tried: list[dict[str, Any]] = []  # every candidate with its score
        self.chosen: Candidate | None = None
        self.confidence: Confidence | None = None
        self.reliability: dict[str, list[list[float]]] = {}
        self._remembered: Remembered | None = None
        self.note = ""

    @staticmethod
    def wrap_tail(tail: nn.Module, options: dict[str, Any]) -> nn.Module:
        """The tail with the metric on top."""
        return MetricTail(tail)

    @property
    def metric(self) -> MetricTail:
        assert isinstance(self.tail, MetricTail)
        return self.tail

    def finish(self, feed: Feed) -> None:
        """All answers, one after the other; the last one stays."""
        for _ in self.answers(feed):
            pass

    @torch.no_grad()
    def answers(self, feed: Feed) -> Iterator[str]:
        """The closed form on the stage as pretrained, and after it on the stage tuned on the labels."""
        self._remembered = feed.remembered
        rhos = RHOS if self.options.rho is None else (self.options.rho,)
        frozen = ([Candidate(None)] if self.plain else []) + [Candidate(rho) for rho in rhos]
        target = feed.targets.cpu()
        self.trials = self._rehearse(feed, target, frozen)
        # What nobody can judge is not tuned: a stage that learnt to tell two classes apart may have lost all others.
        has_stage = any(True for _ in self.metric.inner.parameters())
        can_tune = self.options.tune and has_stage and self.trials and feed.tuning is not None
        tuned = [Candidate(rho, tuned=True) for rho in rhos] if can_tune else []
        self.chosen = self._choose(frozen, target)
        self.answer(feed, target)
        if tuned and not self._in_time(feed):
            self.note = f"tuning would take about {feed.tuning_seconds:.0f} s more, which the time limit does not leave"
            tuned = []
        yield "the last stage is now tuned on the labels" if tuned else self.note
        if tuned:
            assert feed.tuning is not None
            views = feed.tuning()
            self.trials |= self._rehearse(feed, target, tuned, views)
            self.chosen = self._choose(frozen + tuned, target)
            if self.chosen.tuned:
                labelled = (target >= 0).numpy()
                self.metric.inner = self._tuned(feed, views, labelled, target)
                self.answer(feed, target)
            yield ""

    def _in_time(self, feed: Feed) -> bool:
        """Whether tuning would end before the limit."""
        return self.ends is None or time.monotonic() + feed.tuning_seconds < self.ends

    def facts(self) -> dict[str, Any]:
        """What was tried, what was chosen, and how often it is expected to be right."""
        found: dict[str, Any] = {"tried": self.tried, "chosen": str(self.chosen)}
        if self.confidence is not None:
            found |= {"expected": self.confidence.expected_facts(), "reliability": self.reliability}
        return found

    def answer(self, feed: Feed, target: Tensor) -> None:
        """Fit the metric, find the centroids, calibrate: the model of the chosen candidate."""
        assert self.chosen is not None
        x = self._fit_metric(feed, target, self.chosen)
        start = self._start(self.chosen)(x, target, self.n_old, self.n_classes, self.seed)
        centroids = spherical_rounds(x, target, start, self.options.rounds)
        self._set_centroids(centroids)
        trials = self.trials.get(self.chosen)
        if trials:
            free = nearest_centroid(x, centroids)[target < 0]
            share_novel = float((free >= self.n_old).float().mean()) if len(free) else 0.0
            self.confidence = calibrate(trials, share_novel, self.seed)
            self.reliability = reliability(trials, share_novel)
            self.classifier.calibrate(*self.confidence.of_heads(self.n_old, mean_odds(x, centroids)))

    def _start(self, candidate: Candidate) -> Callable[..., Tensor]:
        """How the first centroids are found."""
        return plain_centroids if candidate.rho is None else first_centroids

    def _rehearse(
        self, feed: Feed, target: Tensor, candidates: list[Candidate], views: Source | None = None
    ) -> dict[Candidate, list[Trial]]:
        """Trials of candidates on classes that are hidden from them; none where there are too few classes."""
        rows, viewed = rehearsal_rows(target, self.seed), (target >= 0).numpy()
        target = target[torch.from_numpy(rows)]
        all_folds = folds(target, self.n_old, self.seed)
        if not all_folds:
            return {}
        trials: dict[Candidate, list[Trial]] = {one: [] for one in candidates}
        for fold in all_folds:
            trained = self.metric.inner
            if views is not None:
                shown = torch.full((len(feed),), -1)  # what the fold left of the labels, in its numbers
                shown[torch.from_numpy(rows)] = fold.target
                trained = self._tuned(feed, views, viewed, shown)
            raw = self._raw(feed, trained, rows)
            spaces = {
                plain: self._space(raw, fold.target, plain=plain) for plain in {one.rho is None for one in candidates}
            }
            for one in candidates:
                trials[one].append(self._trial(spaces[one.rho is None], fold, one))
        return trials

    def _raw(self, feed: Feed, stage: nn.Module, rows: np.ndarray) -> Tensor:
        """Features of rows behind a stage, (n, D) float32."""
        if feed.remembered is not None:
            return feed.remembered.of(stage, rows)
        return joined((stage(x).cpu().float() for _, x in feed.chunks(rows)), len(rows))

    def _space(self, raw: Tensor, target: Tensor, *, plain: bool = False) -> Tensor:
        """Unit principal components (n, d) of features (n, D); plain ones have neither power nor a middle of their own."""
        powered = power_of(raw, not plain and bool((raw >= 0).all()))
        mean, components = principal_components(
            powered, self.metric.out_dim, None if plain else middle(powered, target)
        )
        return F.normalize((powered - mean) @ components, dim=1)

    def _trial(self, y: Tensor, fold: Fold, one: Candidate) -> Trial:
        """A candidate on a fold."""
        x = in_metric(y, fold.target, one.rho)
        start = self._start(one)(x, fold.target, fold.n_known, self.n_classes, self.seed)
        return try_out(x, fold, spherical_rounds(x, fold.target, start, self.options.rounds))

    def _choose(self, candidates: list[Candidate], target: Tensor) -> Candidate:
        """The best on hidden classes; of those within one standard error of it, the one nearest to the usual choice.

        None that did worse than the plain one is chosen.
        """
        frozen = usual_rho(target)

        def unusual(one: Candidate) -> tuple[bool, bool, float]:
            rho = max(frozen, USUAL_TUNED) if one.tuned else frozen
            return one.rho is None, not one.tuned, abs((one.rho or 1) - rho)

        usual = sorted(candidates, key=unusual)
        if not self.trials:
            return usual[0]
        share_novel = 1 - self.n_old / self.n_classes
        scores = {one: score(self.trials[one], share_novel) for one in candidates}
        best = max(usual, key=lambda one: float(scores[one].mean()))
        floor = max((float(scores[one].mean()) for one in candidates if one.rho is None), default=0.0)
        chosen, self.tried = best, []
        for one in reversed(usual):
            gap = scores[best] - scores[one]
            error = float(gap.std(ddof=1)) / len(gap) ** 0.5
            if gap.mean() <= error and scores[one].mean() >= floor:
                chosen = one
            self.tried.append({
                "candidate": str(one), "hidden_classes": round(100 * float(scores[one].mean()), 1),
                "behind_best": round(100 * float(gap.mean()), 1), "standard_error": round(100 * error, 1),
            })  # fmt: skip
        for row, one in zip(self.tried, reversed(usual), strict=True):
            row["chosen"] = one == chosen
        self.tried.reverse()
        return chosen

    def _tuned(self, feed: Feed, views: Source, viewed: np.ndarray, target: Tensor) -> nn.Module:
        """The last stage trained on the rows that target (N,) labels, which are some of those `viewed` (N,) marks."""
        kept = (target >= 0).numpy()
        rows = np.flatnonzero(kept[viewed])  # their places among the views
        classes = target[torch.from_numpy(viewed)].numpy()
        rehearsed = "rehearsal: " if kept.sum() < viewed.sum() else ""
        with torch.enable_grad():
            return tune(
                self.metric.inner, self._unit(views), views, classes, Tuning(), rows=rows,
                seed=self.seed, progress=distributed.rank() == 0, what=f"{rehearsed}tuning on the labels",
            )  # fmt: skip

    def _unit(self, views: Source) -> Callable[[Tensor], Tensor]:
        """unit(f^p) with a gradient at 0; p = 1/2 for features that are never negative."""
        some = self.metric.inner(views.clean(np.arange(min(64, len(views)))))
        return unit_root if bool((some >= 0).all()) else lambda f: F.normalize(f, dim=1)

    def _fit_metric(self, feed: Feed, target: Tensor, chosen: Candidate) -> Tensor:
        """Set power, mean, components and whitening; returns x (N, d)."""
        metric = self.metric
        some = np.sort(seeded_rows(len(feed), SAMPLE, self.seed))
        raw = self._raw(feed, metric.inner, some)
        metric.root.fill_(float(chosen.rho is not None and bool((raw >= 0).all())))
        powered = power_of(raw, bool(metric.root))
        del raw
        centre = None if chosen.rho is None else middle(powered, target[torch.from_numpy(some)])
        mean, components = principal_components(powered, metric.out_dim, centre)
        metric.mean.copy_(mean)
        metric.components.copy_(components)
        x = torch.empty(len(feed), metric.out_dim, dtype=torch.float16 if len(feed) > HALF else torch.float32)
        if len(some) == len(feed):
            x[:] = F.normalize((powered - mean) @ components, dim=1)
        else:
            del powered
            for rows, part in feed.chunks():
                x[torch.from_numpy(rows)] = metric.components_of(metric.powered(part)).cpu().to(x.dtype)
        labelled = target >= 0
        whiten = whitening_of(x[labelled].float(), target[labelled], chosen.rho)
        if whiten is not None:
            metric.whiten.copy_(whiten)
            for part in x.split(PIECE):  # in place: there is no second copy of all rows
                part.copy_(F.normalize(part.float() @ whiten, dim=1))
        return x

    def features_of(self, source: Source, rows: np.ndarray, device: torch.device) -> Tensor:
        """z of the clean view of rows, (n, d), from what is remembered of them where it is."""
        remembered = self._remembered
        if remembered is None or remembered.source is not source:
            return super().features_of(source, rows, device)
        return self.metric.of_features(remembered.of(self.metric.inner, rows).to(device))

    def _set_centroids(self, centroids: Tensor) -> None:
        """The classifier: cosine with each centroid; a class without one is never chosen."""
        gone = centroids.norm(dim=1) < 1e-9
        directions = torch.where(gone[:, None], torch.ones_like(centroids), centroids)
        self.classifier.weight.copy_(F.normalize(directions, dim=1))
        self.classifier.gain.fill_(1.0)
        self.classifier.offset.copy_(torch.where(gone, -2.0 * BEYOND, 0.0))


def usual_rho(target: Tensor) -> float:
    """The shrinkage of W for so many labels, where nothing else decides."""
    count = torch.bincount(target[target >= 0], minlength=1)
    freedom = int((count - 1).clamp_min(0).sum())
    return next(rho for least, rho in USUAL if freedom >= least)


class Auto(Transfer):
    """The default: every candidate of `transfer`, and plain k-means beside the class means, below which it never falls."""

    name: ClassVar[str] = "auto"
    label: ClassVar[str] = "auto"
    plain: ClassVar[bool] = True


def power_of(f: Tensor, root: bool) -> Tensor:
    """unit(f^p), p = 1/2 or 1, (B, D)."""
    return F.normalize(f.clamp_min(0).sqrt() if root else f, dim=1)


def mean_odds(x: Tensor, centroids: Tensor) -> Tensor:
    """Mean log-odds of the answer over the rows of every class, (C,)."""
    total, size = torch.zeros(len(centroids)), torch.zeros(len(centroids))
    for part in x.split(PIECE):
        top, head = torch.softmax(part.float() @ centroids.T / TEMPERATURE, dim=1).max(1)
        total.index_add_(0, head, top.clamp(1e-6, 1 - 1e-6).logit())
        size += torch.bincount(head, minlength=len(size))
    return total / size.clamp_min(1)


def unit_root(f: Tensor) -> Tensor:
    """unit(f^1/2) with a gradient at 0, (B, D)."""
    return F.normalize(f.clamp_min(1e-8).sqrt(), dim=1)
