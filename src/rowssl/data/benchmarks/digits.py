"""Handwritten digits, which scikit-learn brings along."""

from __future__ import annotations

import numpy as np

from rowssl.data.table import Table

NAMES = {"digits": "1,797 handwritten digits of 8 x 8 pixels, which come along"}
WANTS = ""  # nothing: there is no folder to look in
_TEST = 50  # test images of each digit


def read(name: str, **_: object) -> tuple[Table, Table]:
    """1,797 images of 8 x 8: 50 of each digit, evenly spread over the bundled order, are test, 1,297 are train."""
    from sklearn.datasets import load_digits

    bundled = load_digits()
    # Grey levels 0..16 become 0..255.
    images = np.rint(bundled.images * (255 / 16)).astype(np.uint8)
    labels = bundled.target.astype(np.int64)
    is_test = np.zeros(len(labels), dtype=bool)
    for digit in range(10):
        rows = np.flatnonzero(labels == digit)
        is_test[rows[np.arange(_TEST) * len(rows) // _TEST]] = True
    names = tuple(str(digit) for digit in range(10))

    def table(mask: np.ndarray, part: str) -> Table:
        rows = np.flatnonzero(mask)
        return Table(
            labels[rows], names, tuple(f"image {i}" for i in rows), images=images[rows], source=f"digits {part}"
        )

    return table(~is_test, "train"), table(is_test, "test")
