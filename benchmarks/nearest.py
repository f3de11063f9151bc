"""How much of CIFAR-100 the features of an encoder tell, by their neighbours alone; nothing is trained.

    python benchmarks/nearest.py                                          # efficientnet_lite0 at 96, 128, 160 and 224 px
    python benchmarks/nearest.py --encoder ../shared/encoders/resnet50-imagenet --side 96
    python benchmarks/nearest.py --quick

The first pictures of each class in the training part have labels. Of a test picture the ten with the largest cosine to its pooled
feature vote for their classes with weight exp(cosine / 0.07), as usual since DINO.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rowssl.data.benchmarks import load_benchmark
from rowssl.data.table import Table
from rowssl.data.views import clean_view, view_recipe
from rowssl.encoders.base import Encoder, build_encoder

NEIGHBOURS, TEMPERATURE = 10, 0.07
BATCH = 64


def features(encoder: Encoder, table: Table, rows: np.ndarray) -> Tensor:
    """Of the clean views, of length 1: (n, d)."""
    recipe = view_recipe("standard", encoder.image_size, encoder.resize)
    parts = []
    for begin in range(0, len(rows), BATCH):
        views = np.stack([clean_view(table.image(int(row)), recipe) for row in rows[begin : begin + BATCH]])
        parts.append(F.normalize(encoder.trunk_forward(encoder.normalise(views)), dim=1))
    return torch.cat(parts)


def accuracy(encoder: Encoder, train: Table, test: Table, *, labelled: int, tested: int) -> float:
    """Share of right answers for `tested` pictures of all classes, with `labelled` of each class as neighbours."""
    known = np.concatenate([np.flatnonzero(train.labels == label)[:labelled] for label in np.unique(train.labels)])
    asked = np.linspace(0, len(test), tested, endpoint=False).astype(int)
    cosine = features(encoder, test, asked) @ features(encoder, train, known).T
    near, place = cosine.topk(min(NEIGHBOURS, len(known)))
    found = torch.from_numpy(train.labels[known])[place]
    votes = torch.zeros(len(asked), int(train.labels.max()) + 1).scatter_add_(1, found, (near / TEMPERATURE).exp())
    return float((votes.argmax(1) == torch.from_numpy(test.labels[asked])).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--encoder", default="efficientnet_lite0")
    parser.add_argument("--data-root", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    parser.add_argument("--side", type=int, nargs="+", default=[96, 128, 160, 224], help="of the encoder's input")
    parser.add_argument("--labelled", type=int, default=10, help="pictures of each class")
    parser.add_argument("--tested", type=int, default=10_000)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.side, options.labelled, options.tested = [32], 1, 20
    train, test = load_benchmark("cifar100", options.data_root)
    print(f"CIFAR-100, {options.labelled} labels a class, {options.tested} test pictures\n")
    print("| encoder | side, px | accuracy | pictures a second |\n|---|---|---|---|")
    for side in options.side:
        encoder = build_encoder(options.encoder, tail="adapter", image_size=side)
        began = time.perf_counter()
        right = accuracy(encoder, train, test, labelled=options.labelled, tested=options.tested)
        rate = (100 * options.labelled + options.tested) / (time.perf_counter() - began)
        print(f"| {encoder.name} | {side} | {right:.3f} | {rate:.0f} |", flush=True)


if __name__ == "__main__":
    main()
