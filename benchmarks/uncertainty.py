"""Where DTS's uncertainty takes pictures out of known classes: a run looked at after every epoch, drawn.

    python benchmarks/uncertainty.py ../shared/data --features build/trained
    # writes docs/images/uncertainty-rows.svg and docs/images/uncertainty-u.svg

Groceries with five labels for each known class unless asked otherwise, pooled features of EfficientNet-Lite0, a random start and
the paper's rate, so that every head has to be found. Three ways: the uncertainty as it was tuned on CIFAR-100-LT alone
(`anywhere`), the same without moving probability between known and novel classes (`within`), and none. The share of unlabelled
pictures of known classes that stay in a known class needs the truth, and is for looking at only.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from trained import photos

from rowssl.core.files import write_text
from rowssl.data.feed import ArraySource, FeatureAugmentation, Feed
from rowssl.encoders.tails import AdapterTail
from rowssl.methods.dts import DTS
from rowssl.report.charts import SERIES, Curve, lines
from rowssl.training.loop import Optimisation, train

WAYS = {
    "u anywhere": {"u_moves": "anywhere"},
    "u within known and within novel": {"u_moves": "within"},
    "no u": {"uncertainty": "none"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?", default=Path("../shared/data"))
    parser.add_argument("--features", type=Path, default=Path("build/trained"))
    parser.add_argument("--collection", default="groceries")
    parser.add_argument("--labels", default="few")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    options = parser.parse_args()
    name = f"{options.collection}, {options.labels}"
    one = next(case for case in photos(options.data, options.features, options.collection) if case.name == name)
    x, free, known = torch.from_numpy(one.x), one.targets < 0, one.truth < one.n_old
    share: list[Curve] = []
    size: list[Curve] = []
    print("| way | epoch | u of known heads | u of novel heads | empty novel heads | known pictures that stay, % |")
    print("|---|---|---|---|---|---|")
    for number, (way, chosen) in enumerate(WAYS.items()):
        feed = Feed(
            ArraySource(one.x), one.targets, batch_size=128, epochs=options.epochs, seed=0,
            augmentation=FeatureAugmentation(noise=0.5),
        )  # fmt: skip
        method = DTS(
            AdapterTail(one.x.shape[1]), n_old=one.n_old, n_classes=one.classes, n_rows=len(one.x),
            classifier_init="random", **chosen,
        )  # fmt: skip
        stay, empty, u = [], [], []
        for epoch in train(method, feed, Optimisation()):
            method.eval()
            with torch.no_grad():
                heads = torch.cat([method.predict_logits(part).argmax(1) for part in x.split(1024)]).numpy()
            rows = np.bincount(heads, minlength=one.classes)
            stay.append(100 * float((heads[free & known] < one.n_old).mean()))
            empty.append(int((rows[one.n_old :] == 0).sum()))
            u.append((float(method.u[: one.n_old].mean()), float(method.u[one.n_old :].mean())))
            if epoch.number in (1, 2, 3, 5, options.epochs):
                print(
                    f"| {way} | {epoch.number} | {u[-1][0]:.3f} | {u[-1][1]:.3f} | {empty[-1]} | {stay[-1]:.0f} |",
                    flush=True,
                )
        epochs = tuple(range(1, options.epochs + 1))
        share.append(Curve(way, epochs, tuple(stay), colour=SERIES[number]))
        if way != "no u":
            size.append(Curve(f"known heads, {way[2:]}", epochs, tuple(k for k, _ in u), colour=SERIES[number]))
            size.append(
                Curve(f"novel heads, {way[2:]}", epochs, tuple(n for _, n in u), colour=SERIES[number], dashed=True)
            )
    title = f"{options.collection}, {len(one.x):,} pictures, {int((~free).sum())} labels, {one.classes} classes"
    write_text(
        options.out / "uncertainty-rows.svg",
        lines(f"Unlabelled pictures of known classes that stay in one: {title}", share, across="epoch", up="%"),
    )
    write_text(
        options.out / "uncertainty-u.svg",
        lines(f"Mean uncertainty of a head: {title}", size, across="epoch", up="u, in cosines"),
    )


if __name__ == "__main__":
    main()
