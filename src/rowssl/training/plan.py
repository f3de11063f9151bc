"""What is chosen where nothing is asked: the batch, the epochs, and how many views of each image that pays for."""

from __future__ import annotations

import numpy as np

from rowssl.config import RunConfig
from rowssl.encoders.base import Encoder
from rowssl.encoders.tails import is_from_scratch
from rowssl.methods import METHODS, method_options

GENTLE = 0.2  # of the usual learning rate, for weights that were trained before
ANSWERED = 0.1  # the same for a classifier that begins with an answer: twice as long, it ends where it did
SMALL_DATA = 2048  # rows; below, batches are half as large
PAPER_STEPS = 17_000  # 200 epochs of CIFAR-100-LT; larger data need fewer epochs for as many steps
# A classifier that begins with an answer needs little: as many steps as a tenth of the rows in batches of one, within limits.
ANSWERED_STEPS, ANSWERED_ROWS = (300, 3_000), 10
FEWEST = 5  # epochs of large data: schedules and the smoothed states of the methods need a few
MOST_VIEWS = 8
TUNING_VIEWS = 4  # of each labelled picture, for methods that tune the last stage
EPOCHS_A_VIEW = 8  # two views an epoch would be made on the fly: the trunk runs a sixteenth as often


def schedule(config: RunConfig, rows: int, *, from_scratch: bool = False) -> tuple[int, int]:
    """Batch size and epochs for so many training rows; a whole network takes longer than a tail on good features."""
    small = rows < SMALL_DATA
    batch_size = config.train.batch_size or (64 if small else 128)
    if begins_with_answer(config) and not from_scratch:
        steps = int(np.clip(rows // ANSWERED_ROWS, *ANSWERED_STEPS))
        return batch_size, config.train.epochs or max(FEWEST, round(steps / max(1, rows // batch_size)))
    if small and not from_scratch:
        usual = int(np.clip(rows // 6, 50, 200))
    else:
        usual = int(np.clip(round(PAPER_STEPS / max(1, rows // batch_size)), FEWEST, 200))
    return batch_size, config.train.epochs or (usual if config.start is None else usual // 4)


def begins_with_answer(config: RunConfig) -> bool:
    """Whether the classifier starts from the closed form's answer, which training only has to improve."""
    return method_options(config.method.name, config.method.options).get("classifier_init") == "transfer"


def learning_rate(config: RunConfig, *, from_scratch: bool = False) -> float:
    """As asked; else the paper's, less for a whole network, and a part of it for what was trained or solved before."""
    usual = 0.01 if from_scratch else 0.1
    answered = begins_with_answer(config) and not from_scratch
    return config.train.lr or usual * (ANSWERED if answered else 1.0 if config.start is None else GENTLE)


def cached_views(config: RunConfig, rows: int, encoder: Encoder) -> int:
    """Augmented views of each image that are kept: as asked, or so few that to make them is little beside the training.

    Pooled features can do with one where training adds noise to them; the two views of a pair must differ otherwise.
    """
    if config.encoder.views is not None:
        return config.encoder.views
    method = METHODS[config.method.name]
    if method.tunes:  # pooled features have no stage to tune
        return TUNING_VIEWS if len(encoder.trunk_shape) > 1 and config.method.options.get("tune", True) else 0
    _, epochs = schedule(config, rows, from_scratch=is_from_scratch(encoder.tail))
    noisy = len(encoder.trunk_shape) == 1 and config.train.noise != 0
    fewest = max(1 if noisy else 2, method.least_views)
    return int(np.clip(epochs // EPOCHS_A_VIEW - 1, fewest, MOST_VIEWS))


def views_follow(config: RunConfig) -> tuple[object, ...]:
    """What of the options `cached_views` follows from, beside data and encoder: nothing where the number is given."""
    train, method = config.train, METHODS[config.method.name]
    given = config.encoder.views is not None
    return () if given else (train.epochs, train.batch_size, train.noise, config.start is None, method.least_views)
