"""The loop. Read from top to bottom: restore or start, then for every step batch -> loss -> gradient -> update -> state.

`train` is a generator that yields once per epoch, so that whoever runs it can log and evaluate between epochs. Resume is exact:
a batch is a function of (seed, step), a schedule of the epoch, and everything else is in the checkpoint.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor
from torch.optim.sgd import sgd

from rowssl.core import distributed
from rowssl.core.files import write_text
from rowssl.data.feed import Batch, Feed
from rowssl.methods.base import Method, Step, cosine
from rowssl.training.checkpoints import Checkpoints, Facts, Tensors

Shapes = dict[str, tuple[tuple[int, ...], torch.dtype]]


@dataclass
class Group:
    """Parameters that share a weight decay."""

    parameters: list[Tensor]
    weight_decay: float


@dataclass
class SGD:
    """As `torch.optim.SGD(..., fused=True)`, to the bit."""

    groups: Sequence[Group]
    lr: float
    momentum: float
    momenta: dict[Tensor, Tensor] = field(default_factory=dict)  # of the parameters that have had a gradient

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for group in self.groups:
            for parameter in group.parameters:
                parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """v <- momentum v + gradient + weight_decay w; w <- w - lr v."""
        for group in self.groups:
            moved = [p for p in group.parameters if p.grad is not None]
            if self.momentum:
                self.momenta |= {p: torch.zeros_like(p) for p in moved if p not in self.momenta}
            sgd(
                moved,
                [p.grad for p in moved if p.grad is not None],
                [self.momenta.get(p) for p in moved],
                fused=True,
                weight_decay=group.weight_decay,
                momentum=self.momentum,
                lr=self.lr,
                dampening=0.0,
                nesterov=False,
                maximize=False,
            )


class NonFiniteError(RuntimeError):
    """A loss became NaN or infinite; the last good checkpoint is intact."""


@dataclass(frozen=True)
class Optimisation:
    """SGD as in the paper: cosine schedule per epoch to lr * final, no weight decay on biases and other 1-D tensors."""

    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-5
    final: float = 1e-3
    save_seconds: float = 30.0  # a checkpoint at the end of an epoch when the last one is older than this,
    save_within_seconds: float = 120.0  # and within an epoch when it is older than this


@dataclass(frozen=True)
class Epoch:
    """What the loop reports after an epoch."""

    number: int  # from 1
    of: int
    lr: float
    losses: dict[str, float]  # mean of each term
    seconds: float

    def row(self) -> dict[str, object]:
        """As a line of metrics.jsonl; also kept in the checkpoint, so that a kill between the two loses no line."""
        return {"epoch": self.number, "lr": self.lr, "seconds": round(self.seconds, 3), "loss": self.losses}


def build_optimiser(method: Method, options: Optimisation) -> SGD:
    """Two groups: matrices with weight decay, biases and gains without."""
    trainable = [p for p in method.parameters() if p.requires_grad]
    matrices = Group([p for p in trainable if p.dim() > 1], options.weight_decay)
    others = Group([p for p in trainable if p.dim() <= 1], 0.0)
    return SGD([matrices, others], lr=options.lr, momentum=options.momentum)


@torch.no_grad()
def size_of(tensors: list[Tensor]) -> Tensor:
    """Sum of the norms: a number that is finite only if every entry is."""
    return torch.stack(torch._foreach_norm(tensors)).sum()


def train(
    method: Method,
    feed: Feed,
    options: Optimisation,
    *,
    checkpoints: Checkpoints | None = None,
    identity: str = "",
    watch: Callable[[int], None] = lambda steps: None,
) -> Iterator[Epoch]:
    """Train to the last step, from the latest checkpoint if there is one, and yield after every epoch.

    Parameters
    ----------
    method, feed
        What to train, and on what.
    checkpoints
        Where to save and to resume from; None trains without a trace.
    identity
        Hash of everything that decides the result; a checkpoint of another identity is refused.
    watch
        Called with the number of steps that are done, before the first and after every one.
    """
    optimiser = build_optimiser(method, options)
    names: dict[Tensor, str] = {parameter: name for name, parameter in method.named_parameters()}
    remembered = [*names, *(buffer for buffer in method.buffers() if buffer.is_floating_point() and buffer.numel())]
    first, totals, before = _restore(method, optimiser, names, checkpoints, identity, feed)
    method.train()
    if first == 0:
        method.start(feed)
    distributed.same_everywhere(method)

    watch(first)
    saves, saved = checkpoints is not None and distributed.rank() == 0, time.monotonic()
    began = saved - before
    for step in range(first, feed.steps):
        batch = feed.batch(step)
        if step % feed.steps_per_epoch == 0:
            with torch.no_grad():
                method.begin_epoch(feed, batch.epoch)
                if feed.device.type == "cuda":  # whose sums are of no fixed order: states would drift apart
                    distributed.same_everywhere(method)
            method.train()
        optimiser.lr = cosine(batch.epoch, batch.epochs, options.lr, options.lr * options.final)
        # In float32 on a GPU as well: of cosines in half precision densities and neighbours would be made of a few values.
        result = method.loss(batch)
        total = torch.stack(list(result.losses.values())).sum()
        total.backward()
        distributed.sum_gradients(names)
        if not torch.isfinite(total + size_of([p.grad for p in names if p.grad is not None])):
            _stop(checkpoints, batch, result, optimiser.lr)
        optimiser.step()
        optimiser.zero_grad()  # not only before the next backward pass: the forward one wants the memory
        method.after_step(batch, result)
        if batch.last_of_epoch and method.kept is not None:
            method.kept.look(method, feed, batch.epoch + 1)
        age, patience = (
            time.monotonic() - saved,
            (options.save_within_seconds, options.save_seconds)[batch.last_of_epoch],
        )
        due = saves and (age > patience or step + 1 == feed.steps)
        finite = not (due or batch.last_of_epoch) or bool(torch.isfinite(size_of(remembered)))
        if batch.last_of_epoch and not finite:  # within an epoch the next step's loss tells, and all processes at once
            _stop(checkpoints, batch, result, optimiser.lr, "A weight, or what the method remembers, after the update")

        for name, term in result.losses.items():
            totals[name] = totals.get(name, 0.0) + term.detach()
        seconds = time.monotonic() - began
        facts: dict[str, object] = {"identity": identity, "seconds": seconds}
        if batch.last_of_epoch:
            losses = {name: float(value) / feed.steps_per_epoch for name, value in totals.items()}
            report = Epoch(number=batch.epoch + 1, of=batch.epochs, lr=optimiser.lr, losses=losses, seconds=seconds)
            facts, totals = {"identity": identity, "epoch": report.row()}, {}
        if checkpoints and due and finite:
            _save(method, optimiser, names, checkpoints, step + 1, totals, facts)
            saved = time.monotonic()
        watch(step + 1)
        if batch.last_of_epoch:
            yield report
            method.train()
            began = time.monotonic()


def _save(
    method: Method,
    optimiser: SGD,
    names: dict[Tensor, str],
    checkpoints: Checkpoints,
    step: int,
    totals: dict[str, Tensor],
    facts: dict[str, object],
) -> None:
    """Weights, momenta, everything the method remembers, and within an epoch the sums of its losses so far."""
    momenta = {names[parameter]: momentum for parameter, momentum in optimiser.momenta.items()}
    tensors = {"method": method.state_dict(), "optimiser": momenta}
    checkpoints.save(step, {**tensors, "totals": totals} if totals else tensors, facts)


def _restore(
    method: Method,
    optimiser: SGD,
    names: dict[Tensor, str],
    checkpoints: Checkpoints | None,
    identity: str,
    feed: Feed,
) -> tuple[int, dict[str, Tensor], float]:
    """Load the latest checkpoint into method and optimiser.

    Returns the step to go on from, 0 for a new run, and of the epoch it lies in the sums of the losses and the seconds so far.
    """
    if checkpoints is None:
        return 0, {}, 0.0
    if distributed.rank() == 0:
        checkpoints.clean()
    by_name = {name: parameter for parameter, name in names.items()}
    shapes = {"method": shapes_of(method.state_dict()), "optimiser": shapes_of(by_name)}
    found = checkpoints.latest(identity, lambda tensors, facts: _misfit(tensors, facts, shapes, feed))
    if found is None:
        return 0, {}, 0.0
    tensors, facts = found
    method.load_state_dict(tensors["method"])
    for name, momentum in tensors["optimiser"].items():
        optimiser.momenta[by_name[name]] = momentum.to(by_name[name].device)
    totals = {name: value.to(feed.device) for name, value in tensors.get("totals", {}).items()}
    return facts["step"], totals, facts.get("seconds", 0.0)


def shapes_of(tensors: Mapping[str, Tensor]) -> Shapes:
    """Shape and type by name."""
    return {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}


def _misfit(tensors: Tensors, facts: Facts, shapes: dict[str, Shapes], feed: Feed) -> str:
    """What of a checkpoint, whole as it is, cannot be loaded; nothing where it can."""
    found = {name: shapes_of(tensors.get(name, {})) for name in shapes}
    step, row = facts.get("step"), facts.get("epoch")
    if found["method"] != shapes["method"]:
        return f"its tensors are not those of the method ({_first_difference(found['method'], shapes['method'])})"
    if not found["optimiser"].items() <= shapes["optimiser"].items():
        return "its momenta are not those of the weights"
    if type(step) is not int or not 0 < step <= feed.steps:
        return "its step is none of this run's"
    totals, within = tensors.get("totals", {}), step % feed.steps_per_epoch > 0
    if bool(totals) != within or not all(map(_is_a_sum, totals.values())):
        return "its sums of losses are not those of its step"
    seconds = facts.get("seconds", 0.0)
    if type(seconds) is not float or not 0 <= seconds < float("inf"):
        return "its seconds are none"
    number = row.get("epoch") if isinstance(row, dict) else None
    if row is not None and (type(number) is not int or number * feed.steps_per_epoch != step):
        return "its line of an epoch is none of its step's"
    return ""


def _is_a_sum(value: Tensor) -> bool:
    """Of the losses of several steps: one number."""
    return value.dtype in (torch.float32, torch.float64) and value.dim() == 0 and bool(torch.isfinite(value))


def _first_difference(one: Shapes, other: Shapes) -> str:
    return min(name for name in {*one, *other} if one.get(name) != other.get(name))


def _stop(checkpoints: Checkpoints | None, batch: Batch, result: Step, lr: float, what: str = "The gradient") -> None:
    """Write down what was seen, and stop before the weights are touched, or at the latest before they are saved."""
    terms = {name: float(term.detach()) for name, term in result.losses.items()}
    where = ""
    if checkpoints is not None and distributed.rank() == 0:
        path = Path(checkpoints.folder.parent) / "non-finite.json"
        dump = {"step": batch.step, "epoch": batch.epoch, "lr": lr, "terms": terms, "rows": batch.index.tolist()}
        write_text(path, json.dumps({key: _readable(value) for key, value in dump.items()}, indent=1))
        where = f"; see {path}"
    bad = ", ".join(name for name, value in terms.items() if not torch.isfinite(torch.tensor(value)))
    what = f"The loss term {bad}" if bad else what
    raise NonFiniteError(f"{what} is not finite at step {batch.step}: training stopped before it did harm{where}.")


def _readable(value: object) -> object:
    """NaN and infinities as text: JSON has none."""
    if isinstance(value, dict):
        return {key: _readable(item) for key, item in value.items()}
    return repr(value) if isinstance(value, float) and value - value != 0 else value
