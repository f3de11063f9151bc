"""DTS from data to accuracy on one page: digits of ten kinds, five of them named; large classes have five times as many as small.

The losses are the package's own, in their readable form. `rowssl/methods/dts.py` is the same method with every option of the paper,
faster, and able to go on where it was interrupted. Equation numbers are those of the paper; docs/methods/dts.md explains them.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

from rowssl.clustering.kmeans import kmeans
from rowssl.data.feed import ArraySource, Feed
from rowssl.encoders.tails import AdapterTail
from rowssl.evaluation import Evaluation, evaluate
from rowssl.methods import density, losses
from rowssl.methods.base import cosine
from rowssl.methods.heads import CosineClassifier, Projector

KNOWN, CLASSES, EPOCHS, QUEUE = 5, 10, 60, 512
TAU_S, TAU_T = 0.1, 0.05  # temperatures of student and teacher
EPSILON, LAMBDA_REP, KEY_MOMENTUM = 4.0, 0.35, 0.99


def data(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training pictures (N, 64), their labels (-1: none) and true classes; test pictures and classes."""
    pictures, truth = load_digits(return_X_y=True)
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(truth))
    test, rest = rows[:500], rows[500:]
    sizes = np.geomspace(120, 24, KNOWN).astype(int)  # of the known classes, and again of the novel ones
    train = np.concatenate([rest[truth[rest] == c][: sizes[c % KNOWN]] for c in range(CLASSES)])
    shown = (truth[train] < KNOWN) & (rng.random(len(train)) < 0.5)
    x = (pictures / 16).astype(np.float32)
    return x[train], np.where(shown, truth[train], -1), truth[train], x[test], truth[test]


def views(x: np.ndarray) -> np.ndarray:
    """The pictures moved by up to one pixel, (9, N, 64)."""
    moves = [(down, right) for down in (-1, 0, 1) for right in (-1, 0, 1)]
    return np.stack([np.roll(x.reshape(-1, 8, 8), move, (1, 2)).reshape(x.shape) for move in moves])


def run(seed: int = 0, epochs: int = EPOCHS) -> tuple[Evaluation, Evaluation]:
    """Train and evaluate DTS; beside it k-means on the pixels."""
    x, target, truth, x_test, truth_test = data(seed)
    feed = Feed(ArraySource(x, views(x)), target, batch_size=128, epochs=epochs, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    encoder = AdapterTail(64, 256, seed=seed)  # E: pixels -> z, a small residual network
    encoder.calibrate(torch.from_numpy(x))
    classifier = CosineClassifier(64, CLASSES, generator=generator)  # f: z -> cosine logits o
    query = nn.Sequential(encoder, Projector(64, hidden=256, out=128, generator=generator))  # g(E(x)) = h
    key = copy.deepcopy(query).requires_grad_(False)  # its moving average
    learnt = [*query.parameters(), classifier.weight]
    optimiser = torch.optim.SGD(learnt, lr=0.1, momentum=0.9, weight_decay=5e-5)

    keys, labels = torch.zeros(0, 128), torch.zeros(0, dtype=torch.long)  # the queue, newest first
    prototypes = F.normalize(kmeans(key(torch.from_numpy(x)), CLASSES, seed=seed).centers, dim=1)  # m_j
    u, statistics = torch.zeros(CLASSES), density.ClassStatistics(CLASSES)  # class uncertainty, and the lists S^c
    for step in range(feed.steps):
        batch = feed.batch(step)
        optimiser.param_groups[0]["lr"] = cosine(batch.epoch, epochs, 0.1, 1e-4)
        z = encoder(batch.both_views)
        o, h = classifier(z), query[1](z[: len(batch.target)])
        labelled = batch.target >= 0
        with torch.no_grad():
            b = key(batch.views[1])
            d = density.neighbour_density(prototypes @ keys.T, k=15)  # tailedness of every prototype, Eq. (6)
            s = d[(b @ prototypes.T).argmax(1)]  # and of every picture, Eq. (7)
            tau = density.dynamic_temperature(s, d.min(), d.max(), 0.05, 1.0)  # Eq. (9): small in the tail
            q = F.softmax((o + u) / TAU_T, dim=1)  # pseudo-labels, Eq. (11); where there is a label it is taken instead
            q = torch.where(labelled.repeat(2)[:, None], F.one_hot(batch.target.clamp_min(0).repeat(2), CLASSES), q)

        # Eq. (2), (3): every picture near its own key, labelled ones near the keys of their class, and far from the queue.
        positive, cosines = (h * b).sum(1), h @ keys.T
        l_u = losses.info_nce(positive, cosines, tau).mean()
        same = batch.target[labelled, None] == labels
        l_sup = losses.unified_contrastive(positive[labelled], cosines[labelled], same).mean()
        # Eq. (4), (5): each view is taught by the other one's pseudo-label, and all classes are to be in use.
        l_cls, entropy = losses.class_losses(o, q, TAU_S)
        optimiser.zero_grad()
        ((1 - LAMBDA_REP) * l_u + LAMBDA_REP * l_sup + l_cls + EPSILON * entropy).backward()
        optimiser.step()

        with torch.no_grad():
            for mine, theirs in zip(key.parameters(), query.parameters(), strict=True):
                mine.lerp_(theirs, 1 - KEY_MOMENTUM)
            if len(keys):  # against an empty queue there is no density
                statistics.add(s, q[: len(b)].argmax(1))
            keys, labels = torch.cat([b, keys])[:QUEUE], torch.cat([batch.target, labels])[:QUEUE]
            prototypes = density.update_prototypes(prototypes, keys, (keys @ prototypes.T).argmax(1), 0.9)  # Eq. (8)
            if batch.last_of_epoch:
                u = density.refresh_uncertainty(u, statistics.std())  # Eq. (10)
                statistics.clear()

    @torch.no_grad()
    def by_dts(pictures: np.ndarray) -> np.ndarray:
        return classifier(encoder(torch.from_numpy(pictures))).argmax(1).numpy()

    centres = kmeans(x, CLASSES, seed=seed).centers

    def by_kmeans(pictures: np.ndarray) -> np.ndarray:
        return torch.cdist(torch.from_numpy(pictures), centres).argmin(1).numpy()

    hidden = target < 0
    dts, plain = (
        evaluate(
            train_predicted=answer(x[hidden]), train_truth=truth[hidden],
            test_predicted=answer(x_test), test_truth=truth_test,
            n_old=KNOWN, n_classes=CLASSES, n_clusters=CLASSES,
        )
        for answer in (by_dts, by_kmeans)
    )  # fmt: skip
    return dts, plain


if __name__ == "__main__":
    for name, found in zip(("DTS", "k-means"), run(), strict=True):
        for protocol in ("tr_bacc", "in_bacc"):
            numbers = ", ".join(f"{part} {value:.1f} %" for part, value in found.metrics[protocol].items())
            print(f"{name:8} {protocol.replace('_bacc', '').title()}-bACC  {numbers}")
