"""Too many heads, then those that nothing is assigned to are dropped (the paper's estimate for parametric methods).

The method is trained for a short while on the encoder's features, with an adapter, with twice as many heads as another
estimate says (the paper doubles the true number) or with `--max-classes` heads. Heads that no training row chooses are idle.
"""

from __future__ import annotations

import numpy as np
import torch

from rowssl.core.console import bar
from rowssl.counting.base import CountData, CountEstimate
from rowssl.data.feed import ArraySource, FeatureAugmentation, Feed
from rowssl.encoders.tails import AdapterTail
from rowssl.methods import build_method
from rowssl.training.loop import Optimisation, train

STEPS = 1_500  # of training, about: 18 epochs of CIFAR-100-LT; a full training has 17,000
EPOCHS = (4, 60)  # fewest and most
METHOD = "dts"
NOISE = 0.5  # as in training on embeddings without views
NOISY_COPIES = 4
SEVERAL = 3  # rows a head must have to count in the interval's lower end


def heads(data: CountData, base: int, *, method: str = METHOD, steps: int = STEPS) -> CountEstimate:
    """Heads that some training row chooses after a short training with `2 base` or `--max-classes` heads.

    The interval goes from the heads with at least three rows to those that a noisy copy of some row chooses.
    """
    rows = len(data.x)
    count = max(data.low, min(data.max_classes or 2 * base, rows // 2))
    batch = min(128, max(16, 2 ** int(np.log2(max(1, rows // 16)))))
    epochs = int(np.clip(round(steps / max(1, rows // batch)), *EPOCHS))
    feed = Feed(
        ArraySource(data.x.numpy()), data.target,
        batch_size=batch, epochs=epochs, seed=data.seed, augmentation=FeatureAugmentation(noise=NOISE),
    )  # fmt: skip
    tail = AdapterTail(data.x.shape[1], seed=data.seed)
    model = build_method(method, tail, {}, n_old=data.n_old, n_classes=count, n_rows=rows, seed=data.seed)
    with torch.enable_grad(), bar(f"counting heads, epochs of {method}", epochs) as progress:
        for epoch in train(
            model, feed, Optimisation(), watch=lambda steps: progress.move(steps / feed.steps_per_epoch)
        ):
            progress.advance(to=epoch.number)
    model.eval()
    size = np.zeros(count, dtype=np.int64)
    chosen = np.zeros(count, dtype=bool)
    generator = torch.Generator().manual_seed(data.seed)
    with torch.no_grad():
        for _, x in feed.chunks():
            size += np.bincount(model.predict_logits(x).argmax(1).numpy(), minlength=count)
            for _ in range(NOISY_COPIES):
                noise = torch.randn(x.shape, generator=generator) / x.shape[1] ** 0.5
                chosen[model.predict_logits(x + NOISE * noise).argmax(1).numpy()] = True
    active = int((size > 0).sum())
    ordered = np.sort(size)[::-1]
    return CountEstimate(
        max(active, data.low),
        max(int((size >= SEVERAL).sum()), min(active, data.low)),
        int((chosen | (size > 0)).sum()),
        {rank + 1: float(rows) for rank, rows in enumerate(ordered)},
        axis="heads, from the largest",
        value="rows that choose the head",
        marked=max(active, data.low),
        note=f"{active} of {count} heads are in use after {epochs} epochs",
    )
