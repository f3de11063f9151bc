"""A small long-tailed problem with views, and every trainable method at a size that learns it in a second.

Run as a program (`python -m contract.problems FOLDER EPOCHS NAME...`) it trains methods one after another, resuming what
it finds in FOLDER, and prints one line per epoch and one digest per method: what the kill tests kill.
"""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from rowssl import methods
from rowssl.data.feed import ArraySource, Feed
from rowssl.encoders.tails import AdapterTail
from rowssl.methods.base import Method
from rowssl.training.checkpoints import Checkpoints
from rowssl.training.loop import Optimisation, train

# What is made smaller for a problem of a few hundred rows, and methods that are tested in several ways.
SMALL: dict[str, dict[str, Any]] = {
    "promptcal": {"stage1_share": 0.5, "bank_size": 256, "n_negatives": 100},
    "bacon": {"estimate_every": 3},
}
SEVERAL: dict[str, dict[str, dict[str, Any]]] = {
    "dts": {
        "dts-paper": {"preset": "paper", "queue_size": 256},
        "dts-official": {"preset": "official", "queue_size": 256},
    }
}
# Every test of the contract runs on all methods that train, those of plug-ins included.
METHODS: dict[str, tuple[type[Method], dict[str, Any]]] = {
    case: (kind, options)
    for name, kind in methods.METHODS.items()
    if kind.trains
    for case, options in SEVERAL.get(name, {name: SMALL.get(name, {})}).items()
}


@dataclass(frozen=True)
class Problem:
    """Embeddings on the sphere; classes 0..n_old-1 are known, half of their rows labelled."""

    embeddings: np.ndarray  # (N, d)
    views: np.ndarray  # (V, N, d)
    targets: np.ndarray  # (N,), -1 = unlabelled
    truth: np.ndarray  # (N,)
    test: np.ndarray  # (T, d), balanced
    test_truth: np.ndarray  # (T,)
    n_old: int
    n_classes: int


def unit(x: np.ndarray) -> np.ndarray:
    """Rows (last axis) of length 1, float32."""
    return (x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(np.float32)


def long_tailed(
    rows: int = 600, *, known: int = 6, novel: int = 6, dim: int = 32, views: int = 4, noise: float = 0.8, seed: int = 0
) -> Problem:
    """Gaussian classes on the sphere, the largest 20 times the smallest, heads and tails among known and novel alike."""
    rng = np.random.default_rng([seed, 5])
    classes = known + novel
    share = np.empty(classes)
    share[rng.permutation(classes)] = 20.0 ** (-np.arange(classes) / (classes - 1))
    sizes = np.maximum(4, np.round(rows * share / share.sum())).astype(int)
    centres = unit(rng.normal(size=(classes, dim)))

    def sample(truth: np.ndarray, spread: float) -> np.ndarray:
        return unit(centres[truth] + spread * rng.normal(size=(len(truth), dim)) / dim**0.5)

    truth = rng.permutation(np.repeat(np.arange(classes), sizes))
    embeddings = sample(truth, noise)
    augmented = unit(embeddings + 0.5 * rng.normal(size=(views, *embeddings.shape)) / dim**0.5)
    labelled = (truth < known) & (rng.random(len(truth)) < 0.5)
    test_truth = np.repeat(np.arange(classes), 30)
    return Problem(
        embeddings=embeddings,
        views=augmented,
        targets=np.where(labelled, truth, -1),
        truth=truth,
        test=sample(test_truth, noise),
        test_truth=test_truth,
        n_old=known,
        n_classes=classes,
    )


def build(name: str, problem: Problem, *, seed: int = 0, **overrides: Any) -> Method:
    """A fresh method of the contract on an adapter tail."""
    kind, options = METHODS[name]
    tail = AdapterTail(problem.embeddings.shape[1], seed=seed)
    sizes = {"n_old": problem.n_old, "n_classes": problem.n_classes, "n_rows": len(problem.truth), "seed": seed}
    small = {"projector_hidden": 64, "projector_out": 32} if takes_projector(kind) else {}
    return kind(tail, **sizes, **{**small, **options, **overrides})


def takes_projector(kind: type[Method]) -> bool:
    """Whether a method has the common projector."""
    return "projector_hidden" in kind.Options.model_fields


def feed_of(problem: Problem, *, epochs: int, batch_size: int = 64, seed: int = 0, **more: Any) -> Feed:
    """The training set of the problem."""
    source = ArraySource(problem.embeddings, problem.views)
    return Feed(source, problem.targets, batch_size=batch_size, epochs=epochs, seed=seed, **more)


def digest(module: nn.Module) -> str:
    """sha256 over every parameter and buffer: names, types, shapes and bits."""
    state = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        state.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        state.update(tensor.detach().contiguous().numpy().tobytes())
    return state.hexdigest()


def main(folder: str, epochs: str, *names: str) -> None:
    """Train each method in its own folder with a checkpoint after every epoch."""
    torch.set_num_threads(1)
    problem = long_tailed(200)
    for name in names:
        method = build(name, problem)
        feed = feed_of(problem, epochs=int(epochs))
        checkpoints = Checkpoints(Path(folder) / name / "checkpoints")
        for epoch in train(method, feed, Optimisation(save_seconds=0), checkpoints=checkpoints, identity=name):
            print("epoch", name, epoch.number, flush=True)
        print("digest", name, digest(method), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
