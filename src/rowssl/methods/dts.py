"""DTS: density-based temperature scaling and soft pseudo-labelling, the method of the ROWSSL paper (section 3).

z = E(x); h = g(z) is the query's embedding of view 0, b = g'(E'(x')) the momentum network's key of view 1; f is the
cosine classifier, o its logits. The losses are here; density, prototypes and uncertainty in `dts_state.py`; all options, and
the two readings of the method, in `dts_options.py`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from rowssl.class_loss import class_losses
from rowssl.density import dynamic_temperature
from rowssl.distributed import gather
from rowssl.methods.dts_state import TailednessState
from rowssl.queue_loss import queue_loss
from rowssl.schedules import cosine, teacher_temperature
from rowssl.types import Batch, Step


class DTS(TailednessState):
    """Two uses of tailedness: a temperature per anchor (Eq. 9) and a class uncertainty in the pseudo-labels (Eq. 11)."""

    def loss(self, batch: Batch) -> Step:
        """L_rep + L_cls, Eq. (3) and (5)."""
        opt = self.options
        o, (h,) = self.two_views(batch, self.projector, project_both=False)
        with torch.no_grad():
            (b,) = gather(len(batch.index), self.key(batch.views[1]))
            keys = self.queue.valid()[0]
            q, assigned = self._pseudo_labels(o, batch)
            extras = {"b": b, "assigned": assigned, **self._scores(b, keys, batch)}
            tau = self._temperature(extras, batch)

        # Representation, Eq. (2)-(3): the positive key is one more column beside the queue.
        rep, l_u, l_sup = self._representation(h, b, tau, batch)

        # Classification, Eq. (4)-(5): labels replace the teacher, and there is no other weighting.
        classification, entropy = class_losses(o, q, opt.tau_s)
        extras |= {"l_u": l_u, "l_sup": l_sup}
        if opt.uncertainty == "confidence":
            extras["confidence"] = F.softmax(o[: len(b)].detach() / opt.tau_s, dim=1).amax(1)
        losses = {"representation": rep, "classification": classification, "entropy": opt.epsilon * entropy}
        return Step(losses, extras)

    def _pseudo_labels(self, o: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Eq. (11): q = softmax((f(z') + lambda_var u) / tau_t), the label itself where there is one; class of S^c."""
        opt = self.options
        tau_t = teacher_temperature(batch.epoch, *opt.tau_t, opt.tau_t_epochs, opt.tau_t_shape)
        labelled, logits = batch.target >= 0, o.detach()
        u = opt.lambda_var * opt.u_scale * self.u
        if opt.u_mask == "top1":
            u = u * F.one_hot(logits.argmax(1), self.n_classes)
        sharp = torch.add(u / tau_t, logits, alpha=1 / tau_t)
        if opt.u_moves == "within":
            sharp = keep_shares(sharp, logits / tau_t, self.n_old)
        q = F.softmax(sharp, dim=1)
        known = labelled.repeat(2).nonzero()[:, 0]
        q[known] = 0.0
        q[known, batch.target[labelled].repeat(2)] = 1.0
        guess = q if opt.pseudo_label == "teacher" else logits
        return q, torch.where(labelled, batch.target, guess[: len(labelled)].argmax(1))

    def _temperature(self, extras: dict[str, Tensor], batch: Batch) -> Tensor | float:
        """tau(x_i), Eq. (9), or what the ablations put in its place."""
        opt = self.options
        if opt.temperature == "constant":
            return opt.tau_constant
        if opt.temperature == "cosine":
            return cosine(batch.epoch, batch.epochs, opt.tau_max, opt.tau_min)
        s, low, high = extras["s"], extras["low"], extras["high"]
        if opt.temperature != "density":
            s, low, high = self.prior.of_rows(opt.temperature, extras["assigned"], batch.index)
        return dynamic_temperature(s, low, high, opt.tau_min, opt.tau_max)

    def _representation(self, h: Tensor, b: Tensor, tau: Tensor | float, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Eq. (3): (1 - lambda_rep) mean l_u + lambda_rep mean l_sup; and the two for looking at."""
        opt, target = self.options, batch.target
        keys, labels, rows = self.queue.valid()
        supervised = target >= 0 if opt.sup_on == "labelled" else torch.ones_like(target, dtype=torch.bool)
        wanted = target[supervised]
        return queue_loss(
            h,
            b,
            keys,
            tau,
            rows=supervised.nonzero()[:, 0],
            same=(wanted[:, None] == labels) & (wanted >= 0)[:, None],
            ignored=labels < 0 if opt.ignore_unlabelled_negatives else None,
            same_image=batch.index[:, None] == rows if opt.mask_same_image else None,
            sup_tau=opt.sup_temperature,
            weights=(1 - opt.lambda_rep, opt.lambda_rep),
        )


def keep_shares(logits: Tensor, before: Tensor, n_old: int) -> Tensor:
    """Shift adjusted logits so that the known classes together keep the probability they had before, (B, C) -> (B, C)."""
    known, novel = slice(n_old), slice(n_old, None)
    shift = [
        before[:, part].logsumexp(1, keepdim=True) - logits[:, part].logsumexp(1, keepdim=True)
        for part in (known, novel)
    ]
    return torch.cat([logits[:, known] + shift[0], logits[:, novel] + shift[1]], dim=1)
