"""Prototypes that rest: the same densities and neighbours as asking all of them, while entries come, go and prototypes move."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from contract.problems import build, digest, feed_of, long_tailed
from rowssl.methods import idle_prototypes
from rowssl.methods.density import nearest_prototype, neighbour_density, to_queue, update_prototypes
from rowssl.methods.dts import DTS
from rowssl.methods.idle_prototypes import Resting
from rowssl.methods.state import Queue
from rowssl.training.checkpoints import Checkpoints
from rowssl.training.loop import Optimisation, train

D = 12
OPTIONS = [{}, {"proto_update": "batch"}, {"score": "instance"}, {"score": "loss"}, {"queue_size": 40}]
SIZES = {"queue_size": 128, "n_prototypes": 200, "n_neighbours": 3, "projector_hidden": 12, "projector_out": 8,
         "proto_init": "train"}  # fmt: skip


class Stream:
    """Keys around long-tailed centres that drift, so that prototypes begin and end to rest."""

    def __init__(self, prototypes: int, seed: int) -> None:
        self.random = torch.Generator().manual_seed(seed)
        self.centres = F.normalize(self.normal(prototypes // 3, D), dim=1)
        self.share = torch.logspace(0, -2, len(self.centres))

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.random, dtype=torch.float64)

    def keys(self, count: int) -> torch.Tensor:
        self.centres = F.normalize(self.centres + 0.05 * self.normal(*self.centres.shape), dim=1)
        drawn = torch.multinomial(self.share, count, replacement=True, generator=self.random)
        return F.normalize(self.centres[drawn] + 0.2 * self.normal(count, D), dim=1)


@pytest.mark.parametrize("weighting", ["rank", "uniform"])
@pytest.mark.parametrize(("m", "q", "b", "k"), [(300, 256, 16, 4), (300, 256, 100, 4), (150, 200, 200, 3)])
def test_what_rests_is_known_without_being_asked(weighting: str, m: int, q: int, b: int, k: int) -> None:
    stream, queue, known = Stream(m, m + b), Queue(q, D).double(), Resting(m, q, k).double()
    prototypes = F.normalize(stream.normal(m, D), dim=1)
    how = {"weighting": weighting, "scale": "mean"}
    asked, began, ended = [], 0, 0
    for step in range(60):
        new = stream.keys(b)
        keys, full = queue.valid()[0].clone(), queue.filled == q
        density, nearest = known.ask(prototypes, keys, weighting, "mean")
        everything = to_queue(prototypes, keys)
        torch.testing.assert_close(density, neighbour_density(everything, k, **how), rtol=0, atol=1e-12)
        assert torch.equal(nearest, nearest_prototype(everything)), step
        asked.append(m - int(known.still.sum()))

        similarity, slots = to_queue(prototypes, new), queue.slots(b)
        queue.push(new, torch.zeros(b, dtype=torch.long), torch.arange(b))
        members = queue.valid()[0]
        assigned = torch.empty(len(members), dtype=torch.long)
        assigned[: len(keys)] = nearest
        assigned[slots] = nearest_prototype(similarity)
        still = torch.bincount(assigned, minlength=m) == 0
        before = known.still.clone()
        if full:
            known.follow(prototypes, members, slots, similarity, still)
            began, ended = began + int((known.still & ~before).sum()), ended + int((before & ~known.still).sum())
        moved = update_prototypes(prototypes, members, assigned, 0.9)
        assert torch.equal(moved[still], prototypes[still])
        assert not torch.equal(moved[~still], prototypes[~still])
        prototypes = moved
    assert asked[0] == m
    assert max(asked[-20:]) < 0.7 * m  # many rest,
    assert began > ended > 20  # and others all the time


def test_lists_that_become_short_are_made_anew() -> None:
    """Entries near a resting prototype leave, and none comes: its density is then of others that no list held."""
    m, q, k = 128, 128, 2
    known, queue = Resting(m, q, k).double(), Queue(q, D).double()
    stream = Stream(m, 3)
    prototypes = F.normalize(stream.normal(m, D), dim=1)
    queue.push(F.normalize(stream.normal(q, D), dim=1), torch.zeros(q, dtype=torch.long), torch.arange(q))
    still = torch.ones(m, dtype=torch.bool)
    still[0] = False
    for _ in range(q):
        new = prototypes[:1].clone()  # always near the only one that moves, and so of no use to the others
        slots, similarity = queue.slots(1), to_queue(prototypes, new)
        queue.push(new, torch.zeros(1, dtype=torch.long), torch.zeros(1, dtype=torch.long))
        known.follow(prototypes, queue.keys, slots, similarity, still)
        density, nearest = known.ask(prototypes, queue.keys, "rank", "mean")
        everything = to_queue(prototypes, queue.keys)
        torch.testing.assert_close(density, neighbour_density(everything, k), rtol=0, atol=1e-12)
        assert torch.equal(everything.gather(0, nearest[None])[0], everything.amax(0))


def test_the_queue_is_multiplied_with_those_that_move_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    m, q = 400, 256
    known, queue, stream = Resting(m, q, 4).double(), Queue(q, D).double(), Stream(m, 5)
    prototypes = F.normalize(stream.normal(m, D), dim=1)
    queue.push(stream.keys(q), torch.zeros(q, dtype=torch.long), torch.arange(q))
    still = torch.arange(m) >= 130
    new = stream.keys(16)
    slots, similarity = queue.slots(16), to_queue(prototypes, new)
    queue.push(new, torch.zeros(16, dtype=torch.long), torch.arange(16))
    known.follow(prototypes, queue.keys, slots, similarity, still)
    sizes = []
    monkeypatch.setattr(idle_prototypes, "to_queue", lambda p, keys: sizes.append(len(p)) or to_queue(p, keys))
    known.ask(prototypes, queue.keys, "rank", "mean")
    assert sizes == [160]  # 130 move, in five times 32


@pytest.mark.parametrize("options", OPTIONS)
def test_dts_trains_the_same_with_all_prototypes_asked(monkeypatch: pytest.MonkeyPatch, options: dict) -> None:
    problem = long_tailed(300, known=4, novel=4, dim=9, views=3)

    def trained(few: int) -> torch.nn.Module:
        monkeypatch.setattr(idle_prototypes, "FEW", few)
        method = build("dts-paper", problem, **{**SIZES, **options}).double()
        feed = feed_of(problem, epochs=4, batch_size=64 if "queue_size" in options else 16)  # also one above the queue
        usual = feed.batch

        def batch(step: int):
            found = usual(step)
            return type(found)(**{**vars(found), "views": tuple(view.double() for view in found.views)})

        monkeypatch.setattr(feed, "batch", batch)
        start = method.start
        monkeypatch.setattr(method, "start", lambda feed: (method.float(), start(feed), method.double()))
        list(train(method, feed, Optimisation()))
        return method

    ours, plain = trained(16), trained(0)
    assert ours.resting.worth_it
    assert not plain.resting.worth_it
    assert int(ours.resting.still.sum()) > 64
    assert (ours.prototypes.norm(dim=1) > 0.9).all()  # none of them rests because it is nowhere
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value, rtol=1e-9, atol=1e-9, msg=name)


def test_a_training_that_is_resumed_knows_what_rested(tmp_path: Path) -> None:
    problem = long_tailed(300, known=4, novel=4, dim=9, views=3)

    def trained(folder: Path | None, stop: int | None = None) -> DTS:
        method = build("dts-paper", problem, **SIZES)
        kept = Checkpoints(folder) if folder else None
        feed = feed_of(problem, epochs=4, batch_size=16)
        for epoch in train(method, feed, Optimisation(save_seconds=0), checkpoints=kept, identity="me"):
            if epoch.number == stop:
                break
        assert isinstance(method, DTS)
        return method

    whole, stopped, resumed = trained(None), trained(tmp_path, stop=2), trained(tmp_path)
    assert int(stopped.resting.still.sum()) > 64
    assert digest(resumed) == digest(whole)


def test_checkpoints_from_before_prototypes_rested_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = long_tailed(300, known=4, novel=4, dim=9, views=3)
    feed = feed_of(problem, epochs=3, batch_size=16)
    options, kept = Optimisation(save_seconds=0), Checkpoints(tmp_path)
    with monkeypatch.context() as before:
        before.setattr(idle_prototypes, "FEW", 0)
        next(train(build("dts-paper", problem, **SIZES), feed, options, checkpoints=kept, identity="me"))
    method = build("dts-paper", problem, **SIZES)
    assert method.resting.worth_it
    later = train(method, feed, options, checkpoints=kept, identity="me")
    assert [epoch.number for epoch in later] == [2, 3]
    assert int(method.resting.still.sum()) > 64


def test_few_prototypes_and_short_queues_keep_nothing() -> None:
    for m, q, k in ((100, 4096, 15), (1000, 100, 15), (32, 128, 3)):
        known = Resting(m, q, k)
        assert not known.worth_it
        assert known.state_dict() == {}
    assert len(Resting(1000, 4096, 15).state_dict()) == 6
