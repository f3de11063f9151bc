"""PromptCAL (Zhang et al., CVPR 2023): auxiliary prompts, and contrastive affinity learning (CAL) in a second stage.

z is the feature of CLS and p that of the supervised prompts; h = g(z) and g'(p) are their embeddings, each with its own head.

CAL says which rows of a memory bank belong to the rows of a batch. Symbols: b batch rows, M bank rows, N = b + M nodes, K
neighbours. Features are unit rows. No loop over samples; the graph is kept as lists of neighbours, so that N = 4,352 costs one
product of features, one top-k and six sums over neighbours.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rowssl.core.distributed import gather
from rowssl.data.feed import Batch, Feed
from rowssl.encoders.prompts import prompted
from rowssl.methods import losses
from rowssl.methods.base import Method, MomentumCopy, Queue, Step, option, projector_sizes
from rowssl.methods.heads import contrastive_head
from rowssl.methods.kmeans import read_out

ROUNDING = 1e-5  # relative


class Consensus:
    """C: how often two nodes are neighbours together, as a product with columns; never written out.

    A pair counts once for every node that has both among its K neighbours, and once for either being a neighbour of the
    other; no node is paired with itself. With B (N, N) the neighbours of each node this is C = B^T B - D + B + B^T, D the diagonal
    of B^T B. From K = 2 on no 0 of the products is lost to rounding: whatever D takes from stands beside a positive number.
    """

    def __init__(self, neighbours: Tensor) -> None:
        nodes, k = neighbours.shape
        self.neighbours = neighbours
        self.chosen_by = neighbours.flatten().argsort(stable=True) // k  # B^T, node by node
        times = torch.bincount(neighbours.flatten(), minlength=nodes)
        self.begin = times.cumsum(0) - times
        self.times = times[:, None]
        self.total = k * (self.times + 1)  # of a row of C

    def __matmul__(self, x: Tensor) -> Tensor:
        """C x, (N, n) -> (N, n)."""
        of_neighbours = F.embedding_bag(self.neighbours, x, mode="sum")  # B x
        return (
            F.embedding_bag(self.chosen_by, of_neighbours + x, self.begin, mode="sum") + of_neighbours - self.times * x
        )


def diffused_affinity(features: Tensor, rows: int, k: int) -> Tensor:
    """The first `rows` rows of Q = A A A^T + I, A = C / row sums: (N, d) -> (rows, N)."""
    nodes = len(features)
    similarity = (features @ features.T).fill_diagonal_(-math.inf)
    graph = Consensus(similarity.topk(min(k, nodes - 1), dim=1).indices)
    first = torch.eye(nodes, rows, dtype=features.dtype, device=features.device)
    columns = graph @ first / graph.total[:rows].T  # of A^T, for C is symmetric
    spread = (graph @ (graph @ (columns / graph.total))) / graph.total
    return (spread + first).T


def bank_affinity(batch: Tensor, bank: Tensor, k: int, quantile: float) -> Tensor:
    """Whether a bank row is taken for the class of a batch row: (b, d), (M, d) -> (b, M) bool.

    The threshold is the `quantile` of those affinities that exceed the mean of the non-zero ones, over the batch's rows.
    Graphs have many equal affinities; those at the threshold are left out, whichever way they were rounded.
    """
    affinity = diffused_affinity(torch.cat([batch, bank]), len(batch), k)
    mean = affinity.sum() / (affinity > 0).sum()
    above = affinity[affinity > mean]
    threshold = above.quantile(quantile) if len(above) else mean
    return (affinity > threshold * (1 + ROUNDING))[:, len(batch) :]


def sampled_negatives(positive: Tensor, count: int, order: Tensor) -> Tensor:
    """The first rows in a random order that are no positives, so many that with these they are `count`: (b, M) bool."""
    free = ~positive[:, order]
    chosen = free & (free.cumsum(1) <= count - positive.sum(1, keepdim=True))
    return torch.empty_like(chosen).index_copy_(1, order, chosen)


def linked(positive: Tensor, negative: Tensor, target: Tensor, bank_target: Tensor) -> tuple[Tensor, Tensor]:
    """Labels overrule: the same label must link, different labels cannot. Targets (b,) and (M,) have -1 for unlabelled."""
    both = (target >= 0)[:, None] & (bank_target >= 0)
    same = both & (target[:, None] == bank_target)
    different = both & ~same
    return (positive | same) & ~different, (negative & ~same) | (positive & different)


def affinity_loss(z: Tensor, key: Tensor, bank: Tensor, positive: Tensor, negative: Tensor, tau: float) -> Tensor:
    """Mean of -log p over a row's positives (its own key, and bank rows), p among its positives and negatives; then over rows.

    z, key (b, d), bank (M, d), positive and negative (b, M) bool -> scalar.
    """
    others = (z @ bank.T / tau).masked_fill(~(positive | negative), -math.inf)
    log_p = F.log_softmax(torch.cat([(z * key).sum(1, keepdim=True) / tau, others], dim=1), dim=1)
    total = log_p[:, 0] + log_p[:, 1:].masked_fill(~positive, 0.0).sum(1)
    return -(total / (1 + positive.sum(1))).mean()


def cal_loss(
    z: Tensor,
    key: Tensor,
    bank: Tensor,
    *,
    target: Tensor,
    bank_target: Tensor,
    k: int,
    quantile: float,
    count: int,
    order: Tensor,
    tau: float,
) -> Tensor:
    """The whole of it: positives from the graph over the keys (b, d) and the bank, negatives, links by labels, loss."""
    found = bank_affinity(key, bank, k, quantile)
    positive, negative = linked(found, sampled_negatives(found, count, order), target, bank_target)
    return affinity_loss(z, key, bank, positive, negative, tau)


def encode(parts: nn.Module, batch: Batch) -> tuple[Tensor, ...]:
    """Unit z, h, p and g'(p) of both views of the whole batch, each (2B, .)."""
    tail, projector, prompt_projector = parts.children()
    z, p = tail.with_prompts(batch.both_views)  # type: ignore[operator]
    local = (F.normalize(z, dim=1), projector(z), F.normalize(p, dim=1), prompt_projector(p))
    halves = gather(len(batch.index), *(half for part in local for half in part.chunk(2)))
    return tuple(torch.cat(pair) for pair in zip(halves[::2], halves[1::2], strict=True))


def distillation(initial: nn.Module, z: Tensor, batch: Batch) -> Tensor:
    """INKD: mean squared difference to the untrained encoder's unit features; its weight falls over 5 epochs."""
    with torch.no_grad():
        local = F.normalize(initial(batch.both_views), dim=1).chunk(2)
        before = torch.cat(gather(len(batch.index), *local))
    return max(0.02, 1 - 0.98 * batch.epoch / 5) * F.mse_loss(z, before)


class PromptCAL(Method):
    """Stage 1 is GCD's loss on CLS and on the prompts; stage 2 adds positives that a graph over a memory bank finds."""

    name: ClassVar[str] = "promptcal"
    label: ClassVar[str] = "PromptCAL"

    key: Tensor  # seed of the draws of a step

    class Options(Method.Options):
        """Hyper-parameters of PromptCAL."""

        n_prompts: int = option(5, "prompts in every block")
        n_supervised: int = option(2, "of the prompts, for the auxiliary feature")
        trained_blocks: int = option(0, "of a tail of blocks; 0: all, 1: the last, as published")
        prompt_weight: float = option(0.35, "weight of the loss on the prompts")
        stage1_share: float = option(200 / 270, "share of the epochs that belong to stage 1")
        supervised_weight: float = option(0.35, "lambda")
        tau_u: float = option(1.0, "temperature of InfoNCE")
        tau_c: float = option(0.07, "temperature of the supervised contrastive loss")
        tau_a: float = option(0.07, "temperature of CAL")
        affinity_weight: float = option(0.6, "w: how much of the unlabelled part is CAL instead of InfoNCE")
        affinity_epochs: int = option(2, "epochs of stage 2 in which w rises from 0")
        n_neighbours: int = option(10, "K of the graph")
        quantile: float = option(0.5, "of large affinities, above which a bank row is a positive")
        n_negatives: int = option(1024, "bank rows that CAL compares with, positives included")
        bank_size: int = option(
            2048, "4096 in the paper, for five times the images; two views of an image are two entries"
        )
        teacher_momentum: float = option(0.999, "of the teacher of stage 2")
        distill: float = option(
            0.0, "weight that keeps z near the untrained encoder's (0.5 in the paper, on ImageNet); falls"
        )
        projector_hidden: int | None = option(
            None, "width of the projector's hidden layers; by default as the feature's width asks"
        )
        projector_out: int | None = option(
            None, "length of the projector's embedding; by default as the feature's width asks"
        )
        head_outputs: int = option(0, "directions on top of the projector, 65,536 in the paper; 0: none")
        readout: Literal["kmeans", "semi_kmeans"] = option(
            "semi_kmeans", "k-means in which labelled rows keep their class, or kmeans: labels only name the clusters"
        )
        n_init: int = option(10, "starts of the k-means that reads the classes out")
        max_iter: int = option(200, "rounds of each start at the most")

    options: Options

    def __init__(self, tail: nn.Module, **arguments: Any) -> None:
        super().__init__(self.wrap_tail(tail, arguments), **arguments)
        opt = self.options
        hidden, out = projector_sizes(self.out_dim, opt.projector_hidden, opt.projector_out)
        self.projector, self.prompt_projector = (
            contrastive_head(self.out_dim, hidden=hidden, out=out, outputs=opt.head_outputs, generator=self.generator)
            for _ in range(2)
        )
        self.teacher = MomentumCopy(self._student(), opt.teacher_momentum)
        self.bank, self.prompt_bank = (Queue(min(opt.bank_size, 2 * self.n_rows), self.out_dim) for _ in range(2))
        self.initial = MomentumCopy(tail, 1.0) if opt.distill else None
        self.register_buffer("key", torch.tensor(self.seed))

    @staticmethod
    def wrap_tail(tail: nn.Module, options: dict[str, Any]) -> nn.Module:
        """The tail with prompts."""
        taken = {"n_prompts", "n_supervised", "trained_blocks", "seed"} & options.keys()
        return prompted(tail, **{name: options[name] for name in taken})

    def _student(self) -> nn.ModuleList:
        return nn.ModuleList([self.tail, self.projector, self.prompt_projector])

    @torch.no_grad()
    def start(self, feed: Feed) -> None:
        """The untrained encoder gets the scale of its input too."""
        super().start(feed)
        if self.initial is not None:
            self.initial.follow(self.tail.tail)  # type: ignore[arg-type]

    def _stage2(self, epochs: int) -> int:
        """First epoch of stage 2."""
        return round(self.options.stage1_share * epochs)

    @torch.no_grad()
    def begin_epoch(self, feed: Feed, epoch: int) -> None:
        """The teacher starts stage 2 as the student."""
        if epoch == self._stage2(feed.epochs):
            self.teacher.module.load_state_dict(self._student().state_dict())

    def loss(self, batch: Batch) -> Step:
        """(1 - lambda) [(1 - w) InfoNCE + w CAL] + lambda SupCon on CLS, and 0.35 times the same on the prompts."""
        opt = self.options
        age = batch.epoch - self._stage2(batch.epochs)  # epochs of stage 2
        w = opt.affinity_weight * min(1.0, (age + 0.5) / max(1, opt.affinity_epochs)) if age >= 0 else 0.0
        z, h, p, g = encode(self._student(), batch)
        if age < 0:
            of_cls, of_prompts, extras = self._gcd(h, batch), self._gcd(g, batch), {}
            of_cls["affinity"] = z.sum() * 0.0
        else:
            with torch.no_grad():
                kz, kh, kp, kg = encode(self.teacher.module, batch)
            extras = {"z": kz, "p": kp}
            of_cls, of_prompts = self._gcd(h, batch, kh, w), self._gcd(g, batch, kg, w)
            of_cls["affinity"] = (1 - opt.supervised_weight) * w * self._cal(z, kz, self.bank, batch, 0)
            of_prompts["affinity"] = (1 - opt.supervised_weight) * w * self._cal(p, kp, self.prompt_bank, batch, 1)
        of_cls["prompt"] = opt.prompt_weight * torch.stack(list(of_prompts.values())).sum()
        if self.initial is not None:
            of_cls["distillation"] = opt.distill * distillation(self.initial, z, batch)
        return Step(of_cls, extras)

    def _gcd(self, h: Tensor, batch: Batch, keys: Tensor | None = None, w: float = 0.0) -> dict[str, Tensor]:
        """Contrastive terms of one kind of token; the teacher's embeddings are the keys in stage 2."""
        opt = self.options
        first, second = h.chunk(2)
        contrastive = (1 - opt.supervised_weight) * (1 - w) * losses.info_nce_batch(first, second, opt.tau_u, keys)
        supervised = opt.supervised_weight * losses.sup_con(first, second, batch.target, opt.tau_c, keys)
        return {"contrastive": contrastive, "supervised_contrastive": supervised}

    def _cal(self, z: Tensor, keys: Tensor, bank: Queue, batch: Batch, kind: int) -> Tensor:
        """CAL: positives are the teacher's feature of the other view, and the bank rows that belong to it."""
        opt = self.options
        entries, labels, _ = bank.valid()
        order = np.random.default_rng([int(self.key), 33, batch.step, kind]).permutation(len(entries))
        return cal_loss(
            z, keys.roll(len(keys) // 2, 0), entries, target=batch.target.repeat(2), bank_target=labels,
            k=opt.n_neighbours, quantile=opt.quantile, count=opt.n_negatives,
            order=torch.from_numpy(order).to(z.device), tau=opt.tau_a,
        )  # fmt: skip

    @torch.no_grad()
    def after_step(self, batch: Batch, step: Step) -> None:
        """Stage 2: the teacher follows, and its features enter the banks."""
        if step.extras:
            self.teacher.follow(self._student())
            for bank, name in ((self.bank, "z"), (self.prompt_bank, "p")):
                bank.push(step.extras[name], batch.target.repeat(2), batch.index.repeat(2))

    def finish(self, feed: Feed) -> None:
        """Semi-supervised k-means on the features of CLS."""
        opt = self.options
        read_out(self, feed, opt.readout, n_init=opt.n_init, max_iter=opt.max_iter)
