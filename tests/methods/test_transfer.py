"""Transfer and auto: every step against a naive loop, the choice on hidden classes, and the answer on real digits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.cluster.hierarchy import fcluster, linkage
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from torch import Tensor, nn

from rowssl.clustering.tree import free_clusters, ward_tree, weighted_ward_tree
from rowssl.config import build_config
from rowssl.data.feed import ArraySource, Feed
from rowssl.data.problem import Problem
from rowssl.data.table import Table
from rowssl.encoders.tails import AdapterTail
from rowssl.methods import METHODS
from rowssl.methods.rehearsal import HELD, Trial, calibrate, folds, rehearsal_rows, reliability, score, try_out
from rowssl.methods.transfer import (
    Auto,
    Candidate,
    Transfer,
    first_centroids,
    principal_components,
    spherical_rounds,
    whitening,
    within_covariance,
)
from rowssl.methods.tuning import Tuning, tune
from rowssl.runs.fit import fit
from rowssl.runs.run import Run


def blobs(classes: int = 6, each: int = 30, d: int = 12, seed: int = 0) -> tuple[Tensor, np.ndarray]:
    """Unit rows around unit centres, and their class."""
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(classes), each)
    rows = rng.normal(size=(classes, d))[truth] + 0.6 * rng.normal(size=(len(truth), d))
    return F.normalize(torch.from_numpy(rows).float(), dim=1), truth


def some_labels(truth: np.ndarray, known: int, each: int) -> np.ndarray:
    """The first rows of each known class, -1 elsewhere."""
    target = np.full(len(truth), -1)
    for one in range(known):
        target[np.flatnonzero(truth == one)[:each]] = one
    return target


def digits(known: int = 6, each: int = 12, *, tuned: bool = False) -> Problem:
    data = load_digits()
    x, y = data.data.astype(np.float32), data.target
    train, test = np.arange(0, 900), np.arange(900, 1797)
    table = Table(np.full(900, -1), (), tuple(f"row {i}" for i in train), embeddings=x[train])
    other = Table(np.full(897, -1), (), tuple(f"row {i}" for i in test), embeddings=x[test])
    names = tuple(map(str, range(10)))
    return Problem(
        table, some_labels(y[train], known, each), names, known, truth=y[train], test=other, test_truth=y[test]
    )


def run(method: str, **options: object) -> Run:
    config = {"method": {"name": method, "options": options}, "classes": 10}
    return fit(build_config(config), None, problem=digits(), whole=False)


def test_components_are_those_of_pca() -> None:
    x, _ = blobs()
    mean, components = principal_components(x, 5)
    reference = PCA(5).fit(x.numpy())
    torch.testing.assert_close(mean, x.mean(0))
    cosines = (components.T.numpy() * reference.components_).sum(1)
    np.testing.assert_allclose(np.abs(cosines), 1, atol=1e-4)
    assert principal_components(x[:3], 5)[1].shape == (12, 5)  # three rows span two directions, the rest is zero
    assert principal_components(x[:3], 5)[1][:, 2:].abs().max() == 0


@pytest.mark.parametrize("most", [30, 4])
def test_within_covariance_is_the_loop(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rowssl.methods.transfer.MOST", most)
    x, truth = blobs(classes=5)
    keep = np.r_[0:3, 30:38, 60:61, 90:120]  # classes of 3, 8, 1 and 30 rows
    y, target = x[keep], torch.from_numpy(truth[keep])
    total, expected = 0.0, np.zeros((12, 12))
    for one in range(4):
        rows = y[target == one].numpy()
        if len(rows) < 2:
            continue
        weight = min(len(rows), most)
        expected += weight * np.cov(rows.T)
        total += weight
    found = within_covariance(y, target)
    assert found is not None
    np.testing.assert_allclose(found.numpy(), expected / total, atol=1e-6)
    assert within_covariance(y[:1], target[:1]) is None


def test_whitening_makes_known_classes_round() -> None:
    within = torch.from_numpy(np.cov(np.random.default_rng(0).normal(size=(6, 200)) * np.arange(1, 7)[:, None])).float()
    almost = whitening(within, 1e-6)
    torch.testing.assert_close(almost @ within @ almost, within.trace() / 6 * torch.eye(6), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(whitening(within, 1.0), torch.eye(6))
    torch.testing.assert_close(whitening(torch.zeros(6, 6), 0.5), torch.eye(6))  # rows of a class are all alike


def partitions_agree(a: np.ndarray, b: np.ndarray) -> bool:
    return len(set(zip(a.tolist(), b.tolist(), strict=True))) == len(set(a.tolist())) == len(set(b.tolist()))


def test_a_weighted_tree_is_the_tree_of_the_rows_it_stands_for() -> None:
    rng = np.random.default_rng(3)
    points, weight = rng.normal(size=(40, 4)), rng.integers(1, 6, 40)
    of_row = np.repeat(np.arange(40), weight)
    whole = linkage(points[of_row] + 1e-9 * rng.normal(size=(len(of_row), 4)), "ward")
    tree = weighted_ward_tree(points, weight.astype(float))
    leaves = np.r_[np.ones(40), np.zeros(39)]  # as scipy counts them
    for step, (a, b) in enumerate(tree[:, :2].astype(int)):
        leaves[40 + step] = leaves[a] + leaves[b]
    np.testing.assert_array_equal(tree[-1, 3], weight.sum())
    tree[:, 3] = leaves[40:]
    for k in (2, 5, 11, 20):
        found, expected = fcluster(tree, k, "maxclust")[of_row], fcluster(whole, k, "maxclust")
        assert partitions_agree(found, expected)
    np.testing.assert_allclose(tree[-10:, 2], whole[-10:, 2], rtol=1e-4)
    plain = weighted_ward_tree(points, np.ones(40))
    np.testing.assert_allclose(plain[:, 2:], linkage(points, "ward")[:, 2:], rtol=1e-4)


def test_free_clusters_are_those_of_the_first_cut_that_has_enough() -> None:
    x, truth = blobs(classes=8, seed=4)
    labelled = some_labels(truth, 4, 2) >= 0
    tree = ward_tree(x)
    for count in (1, 3, 6):
        for k in range(1, len(x)):
            cut = fcluster(tree, k, "maxclust")
            free = [np.flatnonzero(cut == one) for one in np.unique(cut) if not labelled[cut == one].any()]
            if len(free) >= count:
                break
        expected = sorted(map(len, free), reverse=True)[:count]
        found = free_clusters(tree, labelled, count)
        assert [len(one) for one in found] == expected
        assert {tuple(one) for one in found} <= {tuple(one) for one in free}


def test_rounds_are_the_loop() -> None:
    x, truth = blobs()
    target = torch.from_numpy(some_labels(truth, 3, 5))
    start = F.normalize(torch.randn(7, 12, generator=torch.Generator().manual_seed(0)), dim=1)
    start[6] = 0  # a class without a direction stays without rows
    centroids = start.clone()
    for _ in range(4):
        label = []
        for row, given in zip(x, target, strict=True):
            cosine = [float(row @ c) if c.norm() > 0 else -2.0 for c in centroids]
            label.append(int(given) if given >= 0 else int(np.argmax(cosine)))
        for one in range(7):
            rows = x[[at for at, c in enumerate(label) if c == one]]
            if len(rows):
                centroids[one] = F.normalize(rows.sum(0), dim=0)
    torch.testing.assert_close(spherical_rounds(x, target, start, 4), centroids)


def test_micro_clusters_find_what_the_tree_of_all_rows_finds() -> None:
    x, truth = blobs(classes=10, each=80, d=16, seed=5)
    target = torch.from_numpy(some_labels(truth, 5, 8))
    exact = spherical_rounds(x, target, first_centroids(x, target, 5, 10))
    micro = spherical_rounds(x, target, first_centroids(x, target, 5, 10, exact=100, count=120))
    right = [
        np.bincount(truth[(x @ c.T).argmax(1) == one], minlength=10).max() for c in (exact, micro) for one in range(10)
    ]
    assert sum(right[:10]) > 780
    assert sum(right[10:]) > 780


def test_every_class_is_hidden_once_and_a_part_of_the_others_is_held_back() -> None:
    _, truth = blobs(classes=8, each=20)
    target = torch.from_numpy(some_labels(truth, 7, 12))
    found = folds(target, 7, 0)
    hidden = []
    for fold in found:
        asked, new = fold.asked, fold.truth >= fold.n_known
        assert (fold.target[new] == -1).all()
        hidden += [int(target[fold.truth == one][0]) for one in range(fold.n_known, 7)]
        shown = (fold.truth >= 0) & ~new
        assert int((asked & shown).sum()) == fold.n_known * round(HELD * 12)
        assert torch.equal(fold.target[fold.target >= 0], fold.truth[fold.target >= 0])
        assert torch.equal(fold.truth >= 0, target >= 0)
    assert sorted(hidden) == list(range(7))
    assert folds(torch.from_numpy(some_labels(truth, 3, 12)), 3, 0) == []  # nothing can be hidden and learnt from
    rows = rehearsal_rows(target, 0)
    assert (target[rows] >= 0).sum() == (target >= 0).sum()
    assert np.array_equal(rows, np.unique(rows))


def test_a_trial_is_judged_by_hand() -> None:
    x, truth = blobs(classes=6, each=20)
    target = torch.from_numpy(some_labels(truth, 6, 20))
    fold = folds(target, 6, 0)[0]
    centroids = torch.stack([F.normalize(x[fold.truth == one].mean(0), dim=0) for one in range(6)])
    turned = centroids[[0, 1, 2, 4, 5, 3]]  # hidden classes in another order: one matching makes it right again
    trial = try_out(x, fold, turned)
    label = (x @ turned.T).argmax(1)[fold.asked].numpy()
    meaning = np.array([0, 1, 2, 4, 5, 3])
    assert np.array_equal(trial.right, meaning[label] == trial.truth)
    assert np.array_equal(trial.novel, label >= 3)
    recalls = score([trial], 0.5)
    parts = [trial.right[trial.truth == one].mean() for one in range(6)]
    assert recalls.mean() == pytest.approx(0.5 * np.mean(parts[:3]) + 0.5 * np.mean(parts[3:]))


def trial_of(right: np.ndarray, odds: np.ndarray, novel: np.ndarray) -> Trial:
    truth = np.arange(len(right)) % 10
    return Trial(truth, novel, novel, right, odds, np.zeros(len(right)))


def test_calibrated_confidence_is_how_often_it_is_right() -> None:
    rng = np.random.default_rng(0)
    odds, novel = rng.normal(1, 2, 8000), rng.random(8000) < 0.5
    true = 1 / (1 + np.exp(-(0.4 * odds - 0.3)))
    trials = [trial_of(rng.random(8000) < true, odds, novel) for _ in range(2)]
    said = calibrate(trials, 0.5).of_rows(trials[0])
    assert np.abs(said - true).mean() < 0.02
    assert calibrate(trials, 0.5).expected == pytest.approx(np.mean([t.right.mean() for t in trials]), abs=0.01)
    for bins in reliability(trials, 0.5).values():
        off = sum(n * abs(confidence - share) for confidence, share, n in bins) / sum(n for *_, n in bins)
        assert off < 0.03
    assert reliability(trials[:1], 0.5) == {}


def test_the_usual_candidate_within_one_standard_error_is_chosen() -> None:
    method = Auto(AdapterTail(8), n_old=5, n_classes=10, n_rows=100)
    rng = np.random.default_rng(0)
    novel, target = np.arange(400) % 10 >= 5, torch.arange(100) % 5

    def trials(share: float) -> list[Trial]:
        return [trial_of(rng.random(400) < share, np.zeros(400), novel)]

    plain, usual, other = Candidate(None), Candidate(0.15), Candidate(1.0)
    method.trials = {plain: trials(0.5), usual: trials(0.70), other: trials(0.71)}
    assert method._choose([plain, usual, other], target) == usual
    assert [row["chosen"] for row in method.tried] == [str(usual) == row["candidate"] for row in method.tried]
    method.trials[plain] = trials(0.705)  # no worse than it, whatever the standard error
    assert method._choose([plain, usual, other], target) in (plain, other)
    method.trials[plain] = trials(0.95)
    assert method._choose([plain, usual, other], target) == plain
    method.trials = {}
    assert method._choose([plain, usual, other], target) == usual


@pytest.mark.parametrize("method", ["transfer", "auto"])
def test_digits_beside_plain_kmeans(method: str) -> None:
    found, plain = run(method), run("kmeans")
    assert found.metrics["in_bacc"]["all"] > plain.metrics["in_bacc"]["all"] + 2
    assert sum(row["chosen"] for row in found.metrics["tried"]) == 1
    expected = found.metrics["expected"]
    assert expected["low"] <= expected["expected"] <= expected["high"]
    assert found.test_answers is not None
    assert found.metrics["problem"] == ""
    confidence = found.test_answers.confidence
    assert 0 < confidence.min() < confidence.max() <= 1


def test_a_row_is_answered_alone() -> None:
    method = run("transfer").method
    x = torch.from_numpy(load_digits().data[900:1000]).float()
    together = method.predict_logits(x)
    for row in (0, 57, 99):
        torch.testing.assert_close(method.predict_logits(x[row : row + 1])[0], together[row], rtol=0, atol=1e-5)


def test_a_given_rho_is_the_only_candidate() -> None:
    found = run("transfer", rho=0.4)
    assert [row["candidate"] for row in found.metrics["tried"]] == ["frozen, rho 0.4"]


def test_without_classes_to_hide_nothing_is_claimed() -> None:
    problem = digits(known=3)
    config = {"method": {"name": "auto"}, "classes": 10}
    found = fit(build_config(config), None, problem=problem, whole=False)
    assert found.metrics["tried"] == []
    assert "expected" not in found.metrics
    assert not found.method.classifier.calibrated


class Stage(nn.Module):
    """A last stage of two layers whose outputs are never negative."""

    out_dim = 16

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.first = nn.Linear(64, 32)
        self.last = nn.Linear(32, 16)
        with torch.no_grad():
            for value in self.parameters():
                value.copy_(0.2 * torch.randn(value.shape, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).relu()).relu()


def test_tuning_learns_the_labels_keeps_the_stage_and_depends_on_the_seed_alone() -> None:
    problem = digits()
    rows = np.flatnonzero(problem.targets >= 0)
    assert problem.table.embeddings is not None
    x = problem.table.embeddings[rows] / 16
    source = ArraySource(x, x[None] + 0.05 * np.random.default_rng(0).normal(size=(3, *x.shape)).astype(np.float32))
    stage, before = Stage(), Stage()
    unit = lambda f: F.normalize(f.clamp_min(1e-8).sqrt(), dim=1)  # noqa: E731
    options = Tuning(steps=60, lr=3e-3)

    def tuned(seed: int = 0, keep: float = 0.0) -> Stage:
        asked = replace(options, keep=keep)
        found = tune(stage, unit, source, problem.targets[rows], asked, seed=seed, progress=False)
        assert isinstance(found, Stage)
        return found

    def margin(stage: Stage) -> float:
        """Cosine with the own class's mean less that with the best other."""
        with torch.no_grad():
            z = unit(stage(torch.from_numpy(x)))
            z = F.normalize(z - z.mean(0), dim=1)
        target = torch.from_numpy(problem.targets[rows])
        means = F.normalize(torch.stack([z[target == one].mean(0) for one in range(6)]), dim=1)
        cosine = z @ means.T
        own = cosine.gather(1, target[:, None])[:, 0]
        return float((own - cosine.scatter(1, target[:, None], -2).max(1).values).mean())

    first, again, other = tuned(), tuned(), tuned(seed=1)
    assert margin(first) > margin(before) + 0.1
    assert all(torch.equal(a, b) for a, b in zip(stage.parameters(), before.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(first.last.weight, other.last.weight)
    half = tuned(keep=0.5)
    torch.testing.assert_close(half.last.weight, (first.last.weight + before.last.weight) / 2)
    assert not any(value.requires_grad for value in first.parameters())


def test_two_labels_a_class_are_enough_and_an_answer_stands_before_tuning() -> None:
    problem = digits(known=6, each=2)
    assert problem.table.embeddings is not None
    x = problem.table.embeddings / 16
    rows = np.flatnonzero(problem.targets >= 0)
    feed = Feed(
        ArraySource(x), problem.targets, batch_size=32, epochs=1, seed=0,
        tuning=lambda: ArraySource(x[rows], np.stack([x[rows], x[rows]])),
    )  # fmt: skip
    method = Transfer(Stage(), n_old=6, n_classes=10, n_rows=len(x))
    said = []
    for word in method.answers(feed):
        said.append((word, str(method.chosen)))
        logits = method.predict_logits(torch.from_numpy(x))
        assert torch.isfinite(logits).all()
    none = Transfer(Stage(), n_old=6, n_classes=10, n_rows=len(x), tune=False)
    assert len(list(none.answers(feed))) == 1
    assert [bool(word) for word, _ in said] == [True, False]
    assert said[0][1].startswith("frozen")
    assert len(method.tried) == 8
    method.ends = 0.0  # the limit is over
    late = Transfer(Stage(), n_old=6, n_classes=10, n_rows=len(x))
    late.ends = 0.0
    assert len(list(late.answers(feed))) == 1
    assert "time limit" in late.note


def test_an_end_without_weights_is_not_tuned() -> None:
    """Views of the labelled pictures may be there though the encoder has nothing that could learn from them."""
    problem = digits(known=6, each=4)
    assert problem.table.embeddings is not None
    x = problem.table.embeddings / 16
    rows = np.flatnonzero(problem.targets >= 0)
    feed = Feed(
        ArraySource(x), problem.targets, batch_size=32, epochs=1, seed=0,
        tuning=lambda: ArraySource(x[rows], np.stack([x[rows], x[rows]])),
    )  # fmt: skip
    tail = nn.Identity()
    tail.out_dim = x.shape[1]
    method = Transfer(tail, n_old=6, n_classes=10, n_rows=len(x))
    assert list(method.answers(feed)) == [""]
    assert str(method.chosen).startswith("frozen")


def test_both_are_offered() -> None:
    assert list(METHODS)[:2] == ["auto", "transfer"]
