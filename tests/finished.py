"""A real finished run for the tests of what comes after training: digits as PNG files, 5 classes with labels, 10 in all."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from rowssl.api import fit
from rowssl.config import build_config

TRAINED = 500
LABELS = "abcde"  # digits 0 to 4


@dataclass(frozen=True)
class Finished:
    """Where the run and its pictures are, the digits on them, and pictures of digits that nobody has trained on."""

    run: Path
    pictures: Path
    labels: Path
    digits: np.ndarray
    fresh: list[Image.Image]


def digit_pictures() -> tuple[list[Image.Image], np.ndarray]:
    """All bundled digits as RGB pictures in random order, and what is on them."""
    from sklearn.datasets import load_digits

    pixels, digits = load_digits(return_X_y=True)
    order = np.random.default_rng(1).permutation(len(digits))
    grey = np.uint8(pixels[order].reshape(-1, 8, 8) * 255 / 16)
    return [Image.fromarray(one).convert("RGB") for one in grey], digits[order]


def make_finished(folder: Path) -> Finished:
    """Write the pictures, label a third of the digits 0 to 4, and train for a few epochs."""
    images, digits = digit_pictures()
    pictures, labels = folder / "pictures", folder / "labels.csv"
    pictures.mkdir(parents=True)
    lines = ["path,label"]
    for i in range(TRAINED):
        images[i].save(pictures / f"{i:03d}.png")
        if digits[i] < 5 and i % 3 == 0:
            lines.append(f"{i:03d}.png,{LABELS[digits[i]]}")
    labels.write_text("\n".join(lines) + "\n")
    content = {
        "data": {"source": str(pictures), "labels": str(labels)},
        "encoder": {"name": "pixels", "views": 2},
        "method": {"name": "dts"},
        "train": {"epochs": 8, "batch_size": 64},
        "classes": 10,
    }
    fit(build_config(content), folder / "run")
    return Finished(folder / "run", pictures, labels, digits[:TRAINED], images[TRAINED:])
