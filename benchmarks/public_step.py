"""One training step of DTS written the way public code of this family does it, restated plainly: what `step.py` compares with.

The whole ViT runs for two views of the query network and one of the key network, every block is dense with the attention
matrix written out, the queue is sorted once for each prototype in a Python loop, and prototypes are updated one by one.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rowssl.encoders.vit import Attention, ViT
from rowssl.methods import losses
from rowssl.methods.base import teacher_temperature
from rowssl.methods.dts import DTS


class WrittenOut(Attention):
    """Attention with its (B, heads, T, T) matrix."""

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self._split(self.qkv(x)).unbind(0)
        share = (query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5).softmax(dim=-1)
        return self.proj((share @ value).transpose(1, 2).flatten(2))


class PublicStep:
    """Networks and state copied from a DTS method, so that all variants start from the same numbers."""

    def __init__(self, vit: ViT, method: DTS) -> None:
        self.options, self.classes = method.options, method.n_classes
        self.encoder = copy.deepcopy(vit).requires_grad_(False)
        for block in self.encoder.blocks:
            block.attn.__class__ = WrittenOut  # type: ignore[union-attr]
        self.encoder.blocks[-1].requires_grad_(True)
        self.projector, self.classifier = copy.deepcopy(method.projector), copy.deepcopy(method.classifier)
        self.query = nn.ModuleList([self.encoder, self.projector])
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.keys, self.labels, _ = (part.clone() for part in method.queue.valid())
        self.prototypes, self.u, self.cursor = method.prototypes.clone(), method.u.clone(), 0
        trained = [p for p in (*self.query.parameters(), *self.classifier.parameters()) if p.requires_grad]
        self.optimiser = torch.optim.SGD(trained, lr=0.1, momentum=0.9, weight_decay=5e-5)

    def densities(self) -> Tensor:
        """Rank-weighted mean cosine of the K nearest queue entries, one prototype after the other."""
        k = self.options.n_neighbours
        weight = torch.arange(k, 0, -1, dtype=torch.float32)
        found = []
        for prototype in self.prototypes:
            nearest = (self.keys @ prototype).sort(descending=True).values[:k]
            found.append((nearest * weight).sum() / weight.sum())
        return torch.stack(found)

    def loss(self, pixels: tuple[Tensor, Tensor], target: Tensor, epoch: int) -> dict[str, Tensor]:
        """The three terms of the paper's reading of DTS."""
        opt, rows = self.options, len(target)
        z = self.encoder(torch.cat(pixels))
        o, h = self.classifier(z).chunk(2), self.projector(z[:rows])
        with torch.no_grad():
            encoder, projector = self.key
            self.b = projector(encoder(pixels[1]))
            density = self.densities()
            ratio = (density[(self.b @ self.prototypes.T).argmax(1)] - density.min()) / (density.max() - density.min())
            tau = opt.tau_min + ratio * (opt.tau_max - opt.tau_min)
            tau_t = teacher_temperature(epoch, *opt.tau_t, opt.tau_t_epochs, opt.tau_t_shape)
            y = F.one_hot(target.clamp_min(0), self.classes).float()
            labelled = target >= 0
            teacher = tuple(torch.where(labelled[:, None], y, ((x + self.u) / tau_t).softmax(1)) for x in o)
        positive, cosine = (h * self.b).sum(1), h @ self.keys.T
        same = target[:, None] == self.labels
        l_u = losses.info_nce(positive, cosine, tau)
        l_sup = losses.unified_contrastive(positive[labelled], cosine[labelled], same[labelled])
        student = (o[0] / opt.tau_s, o[1] / opt.tau_s)
        probability = torch.cat(student).softmax(1)
        return {
            "representation": (1 - opt.lambda_rep) * l_u.mean() + opt.lambda_rep * l_sup.mean(),
            "classification": losses.crossed_distillation((teacher[0], teacher[1]), student),
            "entropy": opt.epsilon * losses.entropy_gap(probability),
        }

    def step(self, pixels: tuple[Tensor, Tensor], target: Tensor, epoch: int) -> None:
        """Loss, optimiser, key network, queue, prototypes."""
        terms = self.loss(pixels, target, epoch)
        self.optimiser.zero_grad()
        torch.stack(list(terms.values())).sum().backward()
        self.optimiser.step()
        with torch.no_grad():
            for mine, theirs in zip(self.key.parameters(), self.query.parameters(), strict=True):
                mine.mul_(self.options.key_momentum).add_(theirs, alpha=1 - self.options.key_momentum)
            slots = (self.cursor + torch.arange(len(target))) % len(self.keys)
            self.keys[slots], self.labels[slots] = self.b, target
            self.cursor += len(target)
            nearest = (self.keys @ self.prototypes.T).argmax(1)
            for j in range(len(self.prototypes)):
                members = self.keys[nearest == j]
                if len(members):
                    moved = self.options.lambda_tail * self.prototypes[j] + (
                        1 - self.options.lambda_tail
                    ) * members.mean(0)
                    self.prototypes[j] = F.normalize(moved, dim=0)
