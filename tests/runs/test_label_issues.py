"""Labels that pictures speak against: wrong ones are found without their own help, right ones are left alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rowssl.runs import label_issues as module
from rowssl.runs.label_issues import label_issues


def blobs(rows: int = 600, classes: int = 6, width: int = 24, spread: float = 0.12, seed: int = 0):
    """Unit features around random directions, and their classes."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(classes, width))
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    truth = np.arange(rows) % classes
    x = centres[truth] + spread * rng.normal(size=(rows, width))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32), truth


def labelled(truth: np.ndarray, known: int, share: int = 3) -> np.ndarray:
    return np.where((truth < known) & (np.arange(len(truth)) // len(np.unique(truth)) % share == 0), truth, -1)


def listed(x: np.ndarray, targets: np.ndarray, truth: np.ndarray, known: int) -> tuple[np.ndarray, np.ndarray]:
    """Issues where all unlabelled rows are in their true class."""
    head = np.where(targets >= 0, targets, truth)
    return label_issues(x, head, targets, n_old=known, n_classes=int(truth.max()) + 1)


@pytest.mark.parametrize("seed", range(4))
def test_planted_wrong_labels_are_listed_with_the_right_class(seed: int) -> None:
    x, truth = blobs(seed=seed)
    targets = labelled(truth, 4)
    rng = np.random.default_rng(seed)
    wrong = rng.choice(np.flatnonzero(targets >= 0), 8, replace=False)
    targets[wrong] = (targets[wrong] + rng.integers(1, 4, 8)) % 4
    issue, doubt = listed(x, targets, truth, 4)
    found = np.flatnonzero(issue >= 0)
    assert set(found) <= set(wrong)
    assert len(found) >= 5  # near classes leave some in doubt
    assert issue[found].tolist() == truth[found].tolist()
    assert (doubt[found] > np.log(module.RATIO)).all()
    assert not doubt[issue < 0].any()


def test_a_picture_of_a_class_without_labels_is_listed_too() -> None:
    x, truth = blobs()
    targets = labelled(truth, 4)
    novel = np.flatnonzero(truth == 5)[:3]
    targets[novel] = [0, 1, 2]
    issue, _ = listed(x, targets, truth, 4)
    assert np.flatnonzero(issue >= 0).tolist() == novel.tolist()
    assert issue[novel].tolist() == [5, 5, 5]


def test_right_labels_are_left_alone_and_nothing_is_said_without_labels() -> None:
    x, truth = blobs()
    assert (listed(x, labelled(truth, 4), truth, 4)[0] == -1).all()
    assert (listed(x, np.full(len(x), -1), truth, 0)[0] == -1).all()
    everything = truth.copy()
    assert (label_issues(x, truth, everything, n_old=6, n_classes=6)[0] == -1).all()  # no unlabelled row at all


def test_the_only_label_of_a_class_is_not_judged() -> None:
    x, truth = blobs()
    targets = labelled(truth, 4)
    targets[(targets == 3)] = -1
    alone = int(np.flatnonzero(truth == 0)[-1])
    targets[alone] = 3
    assert listed(x, targets, truth, 4)[0][alone] == -1
    targets[np.flatnonzero(truth == 3)[0]] = 3  # a second one: now there is something to compare with
    assert listed(x, targets, truth, 4)[0][alone] == 0


def test_a_label_does_not_vouch_for_itself() -> None:
    """With two labels a wrong one makes half of the mean of its class: with its own help it is nearest to it."""
    x, truth = blobs(spread=0.05)
    targets = np.full(len(x), -1)
    for one in range(4):
        targets[np.flatnonzero(truth == one)[:2]] = one
    keep = (truth < 3) | (targets == 3)  # of class 3 nothing but its labelled rows
    x, truth, targets = x[keep], truth[keep], targets[keep]
    wrong = int(np.flatnonzero((truth == 0) & (targets < 0))[0])
    targets[wrong] = 3
    own = x[targets == 3].mean(0)
    right = x[(truth == 0) & (targets < 0)].mean(0)
    head = np.where(targets >= 0, targets, truth)
    issue, doubt = label_issues(x, head, targets, n_old=4, n_classes=4)
    assert issue[wrong] == 0
    # The class of the answer is another one than that of its label although the label's own mean is close.
    assert (x[wrong] @ own) / np.linalg.norm(own) > 0.3
    assert (x[wrong] @ right) / np.linalg.norm(right) > 0.9
    assert doubt[wrong] > np.log(module.RATIO)


def test_means_without_the_row_are_those_of_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """In pieces and at once, as in plain loops over rows and classes."""
    monkeypatch.setattr(module, "PIECE", 7)
    monkeypatch.setattr(module, "RATIO", 1e-9)  # every row is listed with its likeliest other class
    monkeypatch.setattr(module, "NOVEL_RATIO", 2e-9)
    x, truth = blobs(rows=90, spread=0.5)
    targets = labelled(truth, 4)
    head = np.where(targets >= 0, targets, truth)
    issue, doubt = label_issues(x, head, targets, n_old=4, n_classes=6)
    z = x.astype(np.float64) @ module._space(x, head, targets, 6).double().numpy()
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    rows = np.flatnonzero(targets >= 0)
    cosine = np.zeros((len(rows), 6))
    for place, row in enumerate(rows):
        for one in range(6):
            mean = z[(head == one) & (np.arange(len(z)) != row)].mean(0)
            cosine[place, one] = z[row] @ mean / np.linalg.norm(mean)
    temperature = module._temperature(torch.from_numpy(cosine[:, :4]), torch.from_numpy(targets[rows]))
    for place, row in enumerate(rows):
        gain = (cosine[place] - cosine[place, targets[row]]) / temperature
        gain[4:] -= np.log(2)
        gain[targets[row]] = -np.inf
        assert issue[row] == gain.argmax()
        assert doubt[row] == pytest.approx(gain.max(), abs=2e-3)
