"""GCD (Vaze et al., CVPR 2022): contrastive learning with and without labels, then semi-supervised k-means."""

from __future__ import annotations

from typing import Any

from torch import nn

from rowssl.core import distributed
from rowssl.data.feed import Batch, Feed
from rowssl.methods import losses
from rowssl.methods.base import Method, Step, check_choice, projector_sizes
from rowssl.methods.heads import contrastive_head
from rowssl.methods.kmeans import READOUTS, read_out


class GCD(Method):
    """No classifier is learnt: classes are clusters of the features z that the contrastive losses shaped."""

    def __init__(
        self,
        tail: nn.Module,
        *,
        projector_hidden: int | None = None,
        projector_out: int | None = None,
        head_outputs: int = 0,  # directions on top of the projector, 65,536 in the paper; 0: none
        supervised_weight: float = 0.35,  # lambda
        tau_u: float = 1.0,  # InfoNCE
        tau_c: float = 0.07,  # supervised contrastive
        readout: str = "semi_kmeans",  # or "kmeans": labels only name the clusters
        n_init: int = 10,
        max_iter: int = 200,
        **common: Any,
    ) -> None:
        super().__init__(tail, **common)
        hidden, out = projector_sizes(self.out_dim, projector_hidden, projector_out)
        self.projector = contrastive_head(
            self.out_dim, hidden=hidden, out=out, outputs=head_outputs, generator=self.generator
        )
        self.supervised_weight, self.tau_u, self.tau_c = supervised_weight, tau_u, tau_c
        self.readout, self.n_init, self.max_iter = check_choice("readout", readout, READOUTS), n_init, max_iter

    def loss(self, batch: Batch) -> Step:
        """(1 - lambda) InfoNCE of all rows + lambda supervised contrastive loss of the labelled ones."""
        local = self.projector(self.tail(batch.both_views)).chunk(2)
        h0, h1 = distributed.gather(len(batch.index), *local)
        weight = self.supervised_weight
        return Step(
            {
                "contrastive": (1 - weight) * losses.info_nce_batch(h0, h1, self.tau_u),
                "supervised_contrastive": weight * losses.sup_con(h0, h1, batch.target, self.tau_c),
            }
        )

    def finish(self, feed: Feed) -> None:
        """Label assignment: semi-supervised k-means on the features of all rows, labelled ones pinned to their class."""
        read_out(self, feed, self.readout, n_init=self.n_init, max_iter=self.max_iter)
