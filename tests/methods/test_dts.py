"""A whole DTS step against plain loops for both presets, the teacher's identity, and every option doing something."""

from __future__ import annotations

import math
import re
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from contract.problems import Problem, build, feed_of, long_tailed
from methods.naive import softmax, teacher_temperature
from methods.naive_dts import NaiveDTS
from rowssl.core.errors import InputError
from rowssl.methods import dts as module
from rowssl.methods.dts import DTS, keep_shares
from rowssl.training.loop import Optimisation, train

TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def tiny() -> Problem:
    return long_tailed(48, known=3, novel=3, dim=7, views=3)


def arrays(method: torch.nn.Module) -> dict[str, np.ndarray]:
    """Weights of the query network by name."""
    names = ("tail.", "projector.", "classifier.weight")
    return {k: v.detach().numpy().copy() for k, v in method.state_dict().items() if k.startswith(names)}


def in_order(method: DTS) -> list[tuple[np.ndarray, int, int]]:
    """Queue entries, oldest first."""
    keys, labels, rows = method.queue.valid()
    shift = int(method.queue.cursor[0]) if method.queue.filled == method.queue.size else 0
    entries = zip(keys.numpy().copy(), labels.tolist(), rows.tolist(), strict=True)
    ordered = list(entries)
    return ordered[shift:] + ordered[:shift]


@pytest.mark.parametrize("preset", ["paper", "official"])
def test_steps_are_the_loops(tiny: Problem, preset: str) -> None:
    feed = feed_of(tiny, epochs=3, batch_size=12)
    momentum = 0.9  # so that the key network moves within these few steps
    method = build(f"dts-{preset}", tiny, queue_size=32, projector_hidden=9, projector_out=6, key_momentum=momentum)
    assert isinstance(method, DTS)
    method.start(feed)
    method = method.double()
    method.prototypes.copy_(F.normalize(method.prototypes, dim=1))  # of length 1 to the last digit from the start
    optimiser = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=0.05, momentum=0.9)
    loops = NaiveDTS(arrays(method), method.prototypes.numpy(), in_order(method), 32, preset == "official")

    saw_uncertainty = saw_full_queue = False
    for step in range(feed.steps):
        batch = feed.batch(step)
        batch = replace(batch, views=tuple(view.double() for view in batch.views))
        target, index = batch.target.tolist(), batch.index.tolist()
        result = method.loss(batch)
        expected = loops.loss(arrays(method), [view.numpy() for view in batch.views], target, batch.epoch)
        assert set(result.losses) == set(expected)
        for name, value in expected.items():
            assert abs(result.losses[name].item() - value) <= TOLERANCE, (step, name)
        np.testing.assert_allclose(result.extras["s"], loops.s, atol=TOLERANCE)
        tau = method._temperature(result.extras, batch)
        np.testing.assert_allclose(tau, loops.tau, atol=TOLERANCE)
        np.testing.assert_allclose(result.extras["l_u"], loops.l_u, atol=TOLERANCE)
        assert abs(float(result.extras["l_sup"]) - loops.l_sup) <= TOLERANCE
        assert result.extras["assigned"].tolist() == loops.assigned

        optimiser.zero_grad()
        sum(result.losses.values()).backward()
        assert all(torch.isfinite(p.grad).all() for p in method.parameters() if p.requires_grad)
        optimiser.step()
        method.after_step(batch, result)
        loops.after(arrays(method), target, index, batch.last_of_epoch, momentum)

        for (key, label, row), (loop_key, loop_label, loop_row) in zip(in_order(method), loops.queue, strict=True):
            np.testing.assert_allclose(key, loop_key, atol=TOLERANCE)
            assert (label, row) == (loop_label, loop_row)
        np.testing.assert_allclose(method.prototypes, loops.prototypes, atol=TOLERANCE)
        np.testing.assert_allclose(method.u, loops.u, atol=TOLERANCE)
        for position, part in enumerate(("tail", "projector")):
            for name, parameter in method.key.module[position].state_dict().items():
                np.testing.assert_allclose(parameter, loops.key.w[f"{part}.{name}"], atol=TOLERANCE)
        saw_uncertainty |= float(method.u.max()) > 1e-3
        saw_full_queue |= method.queue.filled == 32
    assert saw_uncertainty
    assert saw_full_queue


def test_the_queue_of_the_official_preset_starts_random_with_class_zero(tiny: Problem) -> None:
    method = build("dts-official", tiny)
    method.start(feed_of(tiny, epochs=1))
    size = min(256, len(tiny.truth))  # never longer than the data
    assert method.queue.filled == method.queue.size == size
    assert method.queue.labels.tolist() == [0] * size
    np.testing.assert_allclose(method.queue.keys.norm(dim=1), np.ones(size), atol=1e-5)


@pytest.mark.parametrize("preset", ["paper", "official"])
def test_without_uncertainty_the_teacher_is_simgcds_with_labels_substituted(tiny: Problem, preset: str) -> None:
    feed = feed_of(tiny, epochs=5, batch_size=16)
    dts, simgcd = build(f"dts-{preset}", tiny), build("simgcd", tiny)
    dts.start(feed)
    for name in ("tail", "projector", "classifier"):
        getattr(dts, name).load_state_dict(getattr(simgcd, name).state_dict())
    batch = feed.batch(11)
    assert batch.epoch > 0
    unlabelled = replace(batch, target=torch.full_like(batch.target, -1))
    got = dts.loss(unlabelled).losses["classification"]
    torch.testing.assert_close(got, simgcd.loss(unlabelled).losses["distillation"] / 0.65)

    o = dts.classifier(dts.tail(torch.cat(batch.views)))
    substituted, assigned = dts._pseudo_labels(o, batch)
    for with_labels, plain in zip(substituted.chunk(2), dts._pseudo_labels(o, unlabelled)[0].chunk(2), strict=True):
        for i, target in enumerate(batch.target.tolist()):
            own = plain[i] if target < 0 else torch.eye(tiny.n_classes)[target]
            assert torch.equal(with_labels[i], own)
    assert torch.equal(assigned, torch.where(batch.target >= 0, batch.target, o.chunk(2)[0].argmax(1)))


def test_uncertainty_within_known_and_novel_by_loops(tiny: Problem) -> None:
    """Every row's known classes keep the probability that they had without u; among them and among novel ones u decides."""
    method = build("dts-paper", tiny, u_moves="within")
    assert isinstance(method, DTS)
    method.u.copy_(torch.linspace(0, 0.3, tiny.n_classes))
    feed = feed_of(tiny, epochs=5, batch_size=16)
    batch = feed.batch(11)
    o = torch.cat([torch.randn(32, tiny.n_classes, generator=torch.Generator().manual_seed(0)) * 0.2])
    q, _ = method._pseudo_labels(o, replace(batch, target=torch.full_like(batch.target, -1)))
    tau = teacher_temperature(batch.epoch)
    for got, row in zip(q.numpy(), o.numpy(), strict=True):
        plain = softmax(row, tau)
        for part in (range(tiny.n_old), range(tiny.n_old, tiny.n_classes)):
            share = sum(plain[c] for c in part)
            adjusted = softmax(np.array([row[c] + float(method.u[c]) for c in part]), tau)
            for place, c in enumerate(part):
                assert abs(got[c] - share * adjusted[place]) <= TOLERANCE


@pytest.mark.parametrize("n_old", [0, 6])
def test_without_known_or_without_novel_classes_nothing_is_held_together(n_old: int) -> None:
    logits, before = torch.randn(4, 6), torch.randn(4, 6)
    torch.testing.assert_close(keep_shares(logits, before, n_old).softmax(1), logits.softmax(1))


def run(problem: Problem, *, preset: str = "paper", epochs: int = 3, **options: Any) -> list[float]:
    """Losses of every epoch and u at the end: whatever an option does must show here."""
    truth = torch.from_numpy(problem.truth)
    sizes = {"queue_size": 24, "projector_hidden": 12, "projector_out": 8, "n_neighbours": 5}
    method = build(f"dts-{preset}", problem, **{**sizes, **options}, oracle_truth=truth)
    trace: list[float] = []
    for epoch in train(method, feed_of(problem, epochs=epochs, batch_size=16), Optimisation()):
        trace += epoch.losses.values()
    return trace + method.u.tolist()


# option: (another value, options under which it matters)
CHANGES: dict[str, tuple[Any, dict[str, Any]]] = {
    "projector_hidden": (16, {}),
    "projector_out": (6, {}),
    "lambda_rep": (0.5, {}),
    "epsilon": (1.0, {}),
    "tau_s": (0.2, {}),
    "tau_t": ((0.1, 0.05), {}),
    "tau_t_epochs": (2, {}),
    "tau_t_shape": ("cosine", {}),
    "key_momentum": (0.0, {}),
    "queue_size": (40, {}),
    "mask_same_image": (True, {}),
    "sup_temperature": (0.2, {}),
    "sup_on": ("all", {}),
    "ignore_unlabelled_negatives": (True, {}),
    "n_prototypes": (3, {}),
    "n_neighbours": (9, {}),
    "knn_weighting": ("uniform", {}),
    "density_scale": ("sum", {}),
    "proto_init": ("train", {}),
    "proto_update": ("batch", {}),
    "lambda_tail": (0.5, {}),
    "tau_min": (0.2, {}),
    "tau_max": (0.5, {}),
    "lambda_var": (3.0, {}),
    "u_scale": (15.0, {}),
    "u_mask": ("top1", {}),
    "u_moves": ("within", {"u_scale": 15.0}),
    "u_momentum": (0.9, {}),
    "pseudo_label": ("student", {"u_scale": 15.0}),
    "tau_constant": (0.5, {"temperature": "constant"}),
}
CHOICES = {
    "queue_init": ("empty", "random", "data"),
    "u_empty": ("zero", "keep", "one", "max"),
    "classifier_init": ("random", "kmeans", "semi_kmeans", "transfer"),
    "score": ("prototype", "instance", "loss"),
    "temperature": ("density", "constant", "cosine", "estimated_prior", "true_prior"),
    "uncertainty": ("tailedness", "none", "confidence", "estimated_prior", "true_prior"),
}


def test_every_option_has_a_test_below() -> None:
    assert DTS.Options.model_fields.keys() - {"preset"} == {*CHANGES, *CHOICES}


@pytest.fixture(scope="module")
def plain(tiny: Problem) -> list[float]:
    return run(tiny)


@pytest.mark.parametrize("option", CHANGES)
def test_option_does_something(tiny: Problem, plain: list[float], option: str) -> None:
    value, context = CHANGES[option]
    before = run(tiny, **context) if context else plain
    after = run(tiny, **{**context, option: value})
    assert all(map(math.isfinite, after))
    assert before != after


@pytest.mark.parametrize("option", CHOICES)
def test_choices_all_run_and_all_differ(tiny: Problem, option: str) -> None:
    # With classes that hold a sample or none at all, so that u_empty matters from the first epoch to the next.
    few = replace(tiny, n_classes=tiny.n_classes + 14) if option == "u_empty" else tiny
    traces = [run(few, **{option: value}) for value in CHOICES[option]]
    assert all(math.isfinite(value) for trace in traces for value in trace)
    assert len({tuple(trace) for trace in traces}) == len(traces)


@pytest.mark.parametrize("preset", ["paper", "official"])
@pytest.mark.parametrize(
    "ablation",
    [
        {"temperature": "constant", "uncertainty": "none"},
        {"temperature": "cosine", "uncertainty": "confidence"},
        {"temperature": "true_prior", "uncertainty": "true_prior"},
        {"temperature": "estimated_prior", "uncertainty": "estimated_prior"},
        {"score": "instance", "key_momentum": 0.0, "n_prototypes": 20},
        {"score": "loss", "u_empty": "one", "mask_same_image": True},
    ],
)
def test_ablations_run_under_both_presets(tiny: Problem, preset: str, ablation: dict[str, Any]) -> None:
    assert all(map(math.isfinite, run(tiny, preset=preset, epochs=2, **ablation)))


def test_the_presets_are_two_mechanisms(tiny: Problem, plain: list[float]) -> None:
    assert run(tiny, preset="official") != plain
    tuned = {"epsilon": 1.0, "u_momentum": 0.9, "u_empty": "max", "u_moves": "within", "classifier_init": "transfer"}
    plain_values = DTS.Options().model_dump()
    assert plain_values == DTS.Options(preset="tuned").model_dump() == DTS.Options(preset="paper", **tuned).model_dump()
    for preset in ("paper", "official"):  # every class's u, and a random start, as published
        assert DTS.Options(preset=preset).u_moves == "anywhere"
        assert DTS.Options(preset=preset).classifier_init == "random"


@pytest.mark.parametrize(
    "wrong",
    [{"preset": "papers"}, {"lamda_var": 1.0}, {"temperature": "denstiy"}, {"u_empty": "two"}, {"queue_size": 0}],
)
def test_unknown_presets_options_and_values_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=str(next(iter(wrong.values() if "preset" in wrong else wrong)))):
        DTS.read_options(wrong)


def test_an_oracle_without_the_truth_is_refused(tiny: Problem) -> None:
    with pytest.raises(InputError, match="true_prior"):
        build("dts-paper", tiny, temperature="true_prior")


@pytest.mark.parametrize("low", [{"temperature": "constant", "tau_constant": 5e-3}, {"sup_temperature": 5e-3}])
def test_a_very_low_temperature_works_or_is_refused(tiny: Problem, low: dict[str, Any]) -> None:
    try:
        build("dts-paper", tiny, **low)
    except InputError:
        return
    assert all(map(math.isfinite, run(tiny, **low)))


def test_phi_finds_tails_by_the_density_of_the_prototypes(tiny: Problem) -> None:
    method = build("dts-paper", tiny)
    x: Tensor = torch.from_numpy(tiny.embeddings)
    assert method.tailedness(x) is None  # an empty queue knows no density
    list(train(method, feed_of(tiny, epochs=2, batch_size=16), Optimisation()))
    score = method.tailedness(x)
    assert score is not None
    assert score.shape == (len(x),)
    assert (score.abs() <= 1 + 1e-5).all()


@pytest.mark.parametrize("score", ["prototype", "instance"])
def test_densities_are_computed_once_while_nothing_changes_and_anew_after_it(
    tiny: Problem, monkeypatch: pytest.MonkeyPatch, score: str
) -> None:
    method = build("dts-paper", tiny, score=score)
    x = torch.from_numpy(tiny.embeddings)
    with method.unchanged():
        assert method.tailedness(x) is None
    list(train(method, feed_of(tiny, epochs=2, batch_size=16), Optimisation()))
    alone = [method.tailedness(part) for part in x.split(8)]
    asked = []
    usual = module.neighbour_density
    monkeypatch.setattr(module, "neighbour_density", lambda *a, **k: asked.append(1) or usual(*a, **k))
    with method.unchanged():
        together = [method.tailedness(part) for part in x.split(8)]
    assert len(asked) == (1 if score == "prototype" else 1 + len(alone))
    assert all(torch.equal(one, other) for one, other in zip(alone, together, strict=True))
    method.queue.keys.neg_()
    assert not torch.equal(method.tailedness(x), torch.cat(alone))


def test_the_example_from_scratch_beats_kmeans(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(Path(__file__).parents[2] / "examples" / "dts_from_scratch.py"), run_name="__main__")
    found = {
        (method, protocol): float(share)
        for method, protocol, share in re.findall(r"^(\S+) +(\S+)-bACC +all ([\d.]+) %", capsys.readouterr().out, re.M)
    }
    for protocol in ("Tr", "In"):
        assert found["DTS", protocol] > 65
        assert found["DTS", protocol] > found["k-means", protocol] + 3
