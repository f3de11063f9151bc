"""Write scikit-learn's handwritten digits as a folder of pictures, as a stranger's data would be: few labels, a long tail.

    python examples/digits_folder.py digits

digits/photos/      525 pictures of ten digits, the most frequent 8 times as often as the rarest
digits/labels.csv   path,label for half of the pictures of 4 of the 10 digits
digits/new/         pictures that are not in photos/, and one of noise
digits/truth.csv    file,label for all of photos/: what a person would say who looks at them; training never sees it
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

# From the most frequent to the rarest. Those in LABELLED get labels for every other picture.
WORDS = ("zero", "six", "four", "three", "seven", "two", "five", "one", "nine", "eight")
LABELLED = ("zero", "one", "two", "three")
DIGIT = {"zero": 0, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9}
LARGEST, SMALLEST = 120, 15


def main(folder: Path) -> None:
    """Write the pictures and the tables."""
    pixels, digits = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    sizes = np.geomspace(LARGEST, SMALLEST, len(WORDS)).round().astype(int)
    photos: list[tuple[int, str]] = []  # row of the data, word
    new: list[tuple[int, str]] = []
    for word, size in zip(WORDS, sizes, strict=True):
        rows = rng.permutation(np.flatnonzero(digits == DIGIT[word]))
        photos += [(int(row), word) for row in rows[:size]]
        new.append((int(rows[size]), word))
    (folder / "photos").mkdir(parents=True, exist_ok=True)
    (folder / "new").mkdir(exist_ok=True)

    labels, truth, seen = ["path,label"], ["file,label"], dict.fromkeys(WORDS, 0)
    for number, place in enumerate(rng.permutation(len(photos))):
        row, word = photos[place]
        name = f"{number:04d}.png"
        picture(pixels[row]).save(folder / "photos" / name)
        truth.append(f"{name},{word}")
        if word in LABELLED and seen[word] % 2 == 0:
            labels.append(f"{name},{word}")
        seen[word] += 1
    for row, word in new:
        picture(pixels[row]).save(folder / "new" / f"{word}.png")
    picture(rng.uniform(0, 16, 64)).save(folder / "new" / "noise.png")
    (folder / "labels.csv").write_text("\n".join(labels) + "\n")
    (folder / "truth.csv").write_text("\n".join(truth) + "\n")
    print(f"{folder}: {len(photos)} pictures, {len(labels) - 1} with a label, {len(new) + 1} new ones")


def picture(values: np.ndarray) -> Image.Image:
    """64 values from 0 to 16 as a grey picture of 8 x 8 pixels."""
    return Image.fromarray(np.uint8(values.reshape(8, 8) * 255 / 16))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("use: python examples/digits_folder.py FOLDER")
    main(Path(sys.argv[1]))
