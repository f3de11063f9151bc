"""The encoder of small pictures against a naive loop, and what it is for: strokes that move."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rowssl.core.errors import InputError
from rowssl.encoders.base import build_encoder
from rowssl.encoders.gradients import Gradients


def naive(picture: Tensor) -> list[float]:
    """One picture (3, 8, 8), pixel by pixel."""
    grey = 0.299 * picture[0] + 0.587 * picture[1] + 0.114 * picture[2]
    large = F.interpolate(grey[None, None], scale_factor=2, mode="bilinear", align_corners=True)[0, 0]
    counts = np.zeros((8, 4, 4))
    for y in range(16):
        for x in range(16):
            down = float(large[min(y + 1, 15), x] - large[max(y - 1, 0), x]) / 2
            right = float(large[y, min(x + 1, 15)] - large[y, max(x - 1, 0)]) / 2
            turn = math.atan2(down, right) / (2 * math.pi) * 8 % 8
            for direction in range(8):
                apart = min(abs(turn - direction), 8 - abs(turn - direction))
                counts[direction, y // 4, x // 4] += math.hypot(down, right) * max(0.0, 1 - apart) / 16
    return counts.reshape(-1).tolist()


def test_values_are_those_of_the_loop() -> None:
    pictures = torch.rand(3, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    found = Gradients()(pictures)
    torch.testing.assert_close(found, torch.tensor([naive(one) for one in pictures]), rtol=1e-4, atol=1e-5)
    assert (found >= 0).all()


def test_a_stroke_that_moves_stays_alike() -> None:
    encoder = build_encoder("gradients", image_size=8)
    assert encoder.trunk_shape == (128,)

    def seen(column: int, transform: str = "gradients") -> Tensor:
        picture = np.zeros((1, 8, 8, 3), dtype=np.uint8)
        picture[:, 1:7, column] = 255
        one = encoder if transform == "gradients" else build_encoder("pixels", image_size=8)
        return F.normalize(one.trunk_forward(one.normalise(picture)), dim=1)

    moved = float((seen(3) * seen(4)).sum())
    assert moved > 0.6 > float((seen(3, "pixels") * seen(4, "pixels")).sum())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [({"image_size": 2}, "--image-size 2 does not suit"), ({"tail": "stage"}, "--tail stage does not fit")],
)
def test_what_does_not_fit_is_one_sentence(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        build_encoder("gradients", **options)  # type: ignore[arg-type]
