"""GCD steps and its read-out against plain loops in double precision."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from contract.problems import Problem, build, feed_of, long_tailed
from methods import naive
from rowssl.clustering.kmeans import kmeans
from rowssl.core.errors import InputError
from rowssl.data.feed import Batch
from rowssl.methods.gcd import GCD
from rowssl.methods.heads import PrototypeHead
from rowssl.methods.kmeans import class_centres

TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def tiny() -> Problem:
    return long_tailed(48, known=3, novel=3, dim=7, views=3)


def by_loops(weights: dict[str, np.ndarray], batch: Batch, *, weight: float = 0.35) -> dict[str, float]:
    """0.65 InfoNCE at 1 over all rows + 0.35 SupCon at 0.07 over the labelled ones."""
    directions = weights.get("projector.directions")
    if directions is not None:
        weights = {name.replace("projector.projector.", "projector."): value for name, value in weights.items()}
    network, target = naive.Network(weights), batch.target.tolist()
    h = [[network.embed(network.feature(x)) for x in view.numpy()] for view in batch.views]
    if directions is not None:
        h = [[naive.unit(np.array([naive.dot(naive.unit(v), row) for v in directions])) for row in view] for view in h]
    labelled = any(t >= 0 for t in target)
    return {
        "contrastive": (1 - weight) * naive.info_nce_batch(h[0], h[1], 1.0),
        "supervised_contrastive": weight * naive.sup_con(h[0], h[1], target, 0.07) if labelled else 0.0,
    }


@pytest.mark.parametrize(("outputs", "weight"), [(0, 0.35), (11, 0.35), (0, 0.0)])
def test_steps_are_the_loops(tiny: Problem, outputs: int, weight: float) -> None:
    feed = feed_of(tiny, epochs=4, batch_size=12)
    options = {"projector_hidden": 9, "projector_out": 6, "head_outputs": outputs, "supervised_weight": weight}
    method = build("gcd", tiny, **options).double()
    optimiser = torch.optim.SGD(method.parameters(), lr=0.05)
    for step in range(4):
        batch = feed.batch(step)
        batch = replace(batch, views=tuple(view.double() for view in batch.views))
        result = method.loss(batch)
        weights = {k: v.detach().numpy().copy() for k, v in method.state_dict().items()}
        expected = by_loops(weights, batch, weight=weight)
        assert set(result.losses) == set(expected)
        for name, value in expected.items():
            assert abs(result.losses[name].item() - value) <= TOLERANCE, (step, name)
        optimiser.zero_grad()
        sum(result.losses.values()).backward()
        assert all(torch.isfinite(p.grad).all() for p in method.parameters() if p.grad is not None)
        optimiser.step()
        method.after_step(batch, result)


def test_it_is_simgcd_without_its_classifier(tiny: Problem) -> None:
    gcd, simgcd = build("gcd", tiny), build("simgcd", tiny)
    gcd.load_state_dict(simgcd.state_dict())
    batch = feed_of(tiny, epochs=1, batch_size=12).batch(0)
    ours, theirs = gcd.loss(batch).losses, simgcd.loss(batch).losses
    assert ours == {name: theirs[name] for name in ours}


@pytest.mark.parametrize("readout", ["semi_kmeans", "kmeans"])
def test_the_read_out_is_the_nearest_centroid_of_its_clusters(readout: str) -> None:
    problem = long_tailed(200, known=3, novel=3, dim=7, noise=0.5)
    feed = feed_of(problem, epochs=1)
    method = build("gcd", problem, readout=readout)
    method.start(feed)
    method.finish(feed)
    network = naive.Network({k: v.numpy() for k, v in method.state_dict().items()})
    z = [naive.unit(network.feature(x)) for x in problem.embeddings]
    centre = method.classifier.weight.detach().numpy()
    near = [min(range(6), key=lambda c: sum((row - centre[c]) ** 2)) for row in z]
    predicted = method.predict_logits(torch.from_numpy(problem.embeddings)).argmax(1)
    assert predicted.tolist() == near

    # A fixed point: every centroid is the mean of its rows, and labelled rows belong to their class whatever is nearest.
    pinned = readout == "semi_kmeans"
    member = [int(t) if pinned and t >= 0 else c for t, c in zip(problem.targets, near, strict=True)]
    for c in range(6):
        mean = np.mean([row for row, m in zip(z, member, strict=True) if m == c], axis=0)
        np.testing.assert_allclose(centre[c], mean, atol=1e-5)
    right = [n == t for n, t in zip(near, problem.targets, strict=True) if t >= 0]
    assert np.mean(right) > 0.9  # known classes stand at their own numbers


def test_plain_k_means_does_not_look_at_labels(tiny: Problem) -> None:
    centres = []
    for targets in (tiny.targets, np.full_like(tiny.targets, -1)):
        one = replace(tiny, targets=targets)
        method = build("gcd", one, readout="kmeans")
        method.finish(feed_of(one, epochs=1))
        centres.append({tuple(row) for row in method.classifier.weight.tolist()})
    assert centres[0] == centres[1]
    assert build("gcd", tiny).options.readout == "semi_kmeans"


def test_clusters_without_rows_are_out_of_reach() -> None:
    problem = long_tailed(60, known=3, novel=3)
    for how, targets, classes in (
        ("semi_kmeans", problem.truth, 9),  # all rows labelled: nothing to make a novel cluster of
        ("semi_kmeans", problem.targets, 200),
        ("kmeans", problem.targets, 200),
    ):
        one = replace(problem, targets=targets, n_old=int(targets.max()) + 1, n_classes=classes)
        method = build("gcd", one, readout=how)
        assert isinstance(method, GCD)
        method.finish(feed_of(one, epochs=1))
        logits = method.predict_logits(torch.from_numpy(np.concatenate([one.embeddings, -one.embeddings, one.test])))
        assert torch.isfinite(logits).all()
        assert int(logits.argmax(1).max()) < len(one.truth)
        if how == "semi_kmeans" and classes == 9:
            assert set(logits.argmax(1).tolist()) <= set(range(6))


def test_centres_of_known_classes_come_first(tiny: Problem) -> None:
    x, target = torch.from_numpy(tiny.embeddings), torch.from_numpy(tiny.targets)
    options = {"n_old": 3, "n_classes": 6, "seed": 0, "n_init": 3, "max_iter": 50}
    pinned = class_centres(x, target, "semi_kmeans", **options)
    for c in range(3):
        own = (pinned - x[target == c].mean(0)).norm(dim=1)
        assert own.argmin() == c
    plain = class_centres(x, target, "kmeans", **options)
    found = kmeans(x, 6, seed=0, n_init=3, max_iter=50).centers
    np.testing.assert_array_equal(np.sort(plain, axis=0), np.sort(found, axis=0))


def test_many_directions_keep_the_projector_s_cosines() -> None:
    """Why the projector alone stands for the 65,536 outputs: the cosines differ by a few hundredths."""
    head = PrototypeHead(24, hidden=48, out=32, outputs=16_384, generator=torch.Generator().manual_seed(0))
    z = torch.randn(40, 24, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wide, narrow = head(z), head.projector(z)
    assert wide.shape == (40, 16_384)
    torch.testing.assert_close(wide.norm(dim=1), torch.ones(40))
    assert (wide @ wide.T - narrow @ narrow.T).abs().max() < 0.05


def test_an_unknown_read_out_is_refused(tiny: Problem) -> None:
    with pytest.raises(InputError, match="readout must be one of kmeans, semi_kmeans, not 'spectral'"):
        build("gcd", tiny, readout="spectral")
