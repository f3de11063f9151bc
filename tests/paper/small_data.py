"""Small folders in the layouts of CIFAR-100, Herbarium19, ImageNet-100 and CUB-200, made of real pictures.

Every class is one digit in one tint, from scikit-learn's handwritten digits, over pieces of its two sample photographs, so that
classes can be told apart and no two pictures are the same.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from rowssl.data.class_lists import BACON_IMAGENET100_SYNSETS

SIDE = 32
TRAIN, TEST = 10, 4  # pictures of a class


class Pictures:
    """Picture `number` of class c, (32, 32, 3) uint8: digit c modulo 10 in tint c // 10, over a piece of a photograph."""

    def __init__(self) -> None:
        from sklearn.datasets import load_digits, load_sample_images

        digits = load_digits()
        self.digits = [digits.images[digits.target == d] / 16 for d in range(10)]
        self.photographs = [np.asarray(photo, dtype=float) for photo in load_sample_images().images]

    def __call__(self, c: int, number: int) -> np.ndarray:
        shapes = self.digits[c % 10]
        shape = np.kron(shapes[(number + 17 * (c // 10)) % len(shapes)], np.ones((4, 4)))[..., None]
        rng = np.random.default_rng([c, number])
        photo = self.photographs[number % len(self.photographs)]
        y, x = rng.integers(0, photo.shape[0] - SIDE), rng.integers(0, photo.shape[1] - SIDE)
        tint = np.random.default_rng([7, c // 10]).uniform(0, 255, 3)
        return np.clip(shape * tint + (1 - shape) * 0.3 * photo[y : y + SIDE, x : x + SIDE], 0, 255).astype(np.uint8)


def cifar100(root: Path, pictures: Pictures) -> None:
    """The files of the original archive, unpacked."""
    folder = root / "cifar100" / "cifar-100-python"
    folder.mkdir(parents=True)
    for part, first, count in (("train", 0, TRAIN), ("test", TRAIN, TEST)):
        places = [(c, i) for i in range(first, first + count) for c in range(100)]
        data = np.stack([pictures(c, i).transpose(2, 0, 1).reshape(-1) for c, i in places])
        content = {
            "data": data,
            "fine_labels": [c for c, _ in places],
            "filenames": [f"{c}_{i}.png" for c, i in places],
        }
        (folder / part).write_bytes(pickle.dumps(content, protocol=4))
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": [f"thing {c}" for c in range(100)]}, protocol=4))


def _save(path: Path, picture: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture).save(path)


def _numbers(c: int) -> Iterator[int]:
    """Natural sizes: from 3 pictures of a class to `TRAIN`."""
    yield from range(3 + (7 * c) % (TRAIN - 2))


def herbarium19(root: Path, pictures: Pictures) -> None:
    """Class folders of different sizes; a part of the classes."""
    for c in range(24):
        for i in _numbers(c):
            _save(root / "herbarium19" / "small-train" / str(100 + c) / f"{i}.jpg", pictures(c, i))
        for i in range(TRAIN, TRAIN + TEST):
            _save(root / "herbarium19" / "small-validation" / str(100 + c) / f"{i}.jpg", pictures(c, i))


def imagenet100(root: Path, pictures: Pictures) -> None:
    """BaCon's hundred synsets; the classes that the small subset takes have pictures enough, the others one."""
    for c, synset in enumerate(BACON_IMAGENET100_SYNSETS):
        for i in range(TRAIN if c % 5 == 0 else 1):
            _save(root / "imagenet100" / "train" / synset / f"{synset}_{i}.JPEG", pictures(c, i))
        for i in range(TRAIN, TRAIN + (TEST if c % 5 == 0 else 1)):
            _save(root / "imagenet100" / "val" / synset / f"ILSVRC2012_val_{c}_{i}.JPEG", pictures(c, i))


def cub200(root: Path, pictures: Pictures) -> None:
    """The three lists and the pictures; a part of the classes."""
    folder = root / "cub200"
    files = [(c, i, f"{c + 1:03d}.Bird/{c}_{i}.jpg") for c in range(22) for i in range(TRAIN + TEST)]
    for c, i, file in files:
        _save(folder / "images" / file, pictures(c, i))
    (folder / "images.txt").write_text("".join(f"{n} {file}\n" for n, (_, _, file) in enumerate(files, 1)))
    (folder / "image_class_labels.txt").write_text("".join(f"{n} {c + 1}\n" for n, (c, _, _) in enumerate(files, 1)))
    (folder / "train_test_split.txt").write_text(
        "".join(f"{n} {int(i < TRAIN)}\n" for n, (_, i, _) in enumerate(files, 1))
    )


def make_all(root: Path) -> Path:
    """All four under one data root."""
    pictures = Pictures()
    for make in (cifar100, herbarium19, imagenet100, cub200):
        make(root, pictures)
    return root
