"""GCD (Vaze et al., CVPR 2022): contrastive learning with and without labels, then semi-supervised k-means."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from torch import nn

from rowssl.core import distributed
from rowssl.data.feed import Batch, Feed
from rowssl.methods import losses
from rowssl.methods.base import Method, Step, option, projector_sizes
from rowssl.methods.heads import contrastive_head
from rowssl.methods.kmeans import read_out


class GCD(Method):
    """No classifier is learnt: classes are clusters of the features z that the contrastive losses shaped."""

    name: ClassVar[str] = "gcd"
    label: ClassVar[str] = "GCD"

    class Options(Method.Options):
        """Hyper-parameters of GCD."""

        projector_hidden: int | None = option(
            None, "width of the projector's hidden layers; by default as the feature's width asks"
        )
        projector_out: int | None = option(
            None, "length of the projector's embedding; by default as the feature's width asks"
        )
        head_outputs: int = option(0, "directions on top of the projector, 65,536 in the paper; 0: none")
        supervised_weight: float = option(0.35, "lambda")
        tau_u: float = option(1.0, "temperature of InfoNCE")
        tau_c: float = option(0.07, "temperature of the supervised contrastive loss")
        readout: Literal["kmeans", "semi_kmeans"] = option(
            "semi_kmeans", "k-means in which labelled rows keep their class, or kmeans: labels only name the clusters"
        )
        n_init: int = option(10, "starts of the k-means that reads the classes out")
        max_iter: int = option(200, "rounds of each start at the most")

    options: Options

    def __init__(self, tail: nn.Module, **arguments: Any) -> None:
        super().__init__(tail, **arguments)
        opt = self.options
        hidden, out = projector_sizes(self.out_dim, opt.projector_hidden, opt.projector_out)
        self.projector = contrastive_head(
            self.out_dim, hidden=hidden, out=out, outputs=opt.head_outputs, generator=self.generator
        )

    def loss(self, batch: Batch) -> Step:
        """(1 - lambda) InfoNCE of all rows + lambda supervised contrastive loss of the labelled ones."""
        opt = self.options
        local = self.projector(self.tail(batch.both_views)).chunk(2)
        h0, h1 = distributed.gather(len(batch.index), *local)
        weight = opt.supervised_weight
        return Step(
            {
                "contrastive": (1 - weight) * losses.info_nce_batch(h0, h1, opt.tau_u),
                "supervised_contrastive": weight * losses.sup_con(h0, h1, batch.target, opt.tau_c),
            }
        )

    def finish(self, feed: Feed) -> None:
        """Label assignment: semi-supervised k-means on the features of all rows, labelled ones pinned to their class."""
        opt = self.options
        read_out(self, feed, opt.readout, n_init=opt.n_init, max_iter=opt.max_iter)
