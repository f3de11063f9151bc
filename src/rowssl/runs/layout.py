"""Where the rows lie on the map: t-SNE, which starts from the first two principal components."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
import torch

MAP_ROWS = 50_000  # points on the map at the most: an even random choice where there are more rows
LAID_OUT = 2500  # rows that t-SNE arranges, which takes seconds; the others go beside those they resemble
NEIGHBOURS = 3
EARLY, ITERATIONS = 125, 250  # enough for classes to come apart at this size
LEAST = 8  # rows
PIECE = 16_384  # rows looked at together


def drawn(rows: int) -> np.ndarray:
    """The rows that have a point on the map, in order."""
    if rows <= MAP_ROWS:
        return np.arange(rows)
    return np.sort(np.random.default_rng([1, rows]).choice(rows, MAP_ROWS, replace=False))


def layout(feature: np.ndarray, *, seed: int = 0) -> tuple[np.ndarray, str]:
    """Positions (N, 2) of unit features (N, d), and the name of the way they were found.

    Of more rows than the map draws, those that it does not draw may be left at (0, 0).
    Close features are close on the map whichever way it is; between far ones t-SNE keeps no distances.
    """
    flat = principal(feature)
    spread = float(flat.std(0).max()) if len(flat) else 0.0
    if len(feature) < LEAST or spread < 1e-6:  # too few rows, or all of them alike
        return flat, "PCA"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from openTSNE import TSNE
    rows = np.arange(len(feature))
    if len(rows) > LAID_OUT:
        rows = np.sort(np.random.default_rng([seed, 61]).choice(rows, LAID_OUT, replace=False))
    start = flat[rows] / (1e4 * flat[rows, 0].std() + 1e-12)  # small, as t-SNE wants its start
    tsne = TSNE(
        perplexity=min(30, (len(rows) - 1) // 3), early_exaggeration_iter=EARLY, n_iter=ITERATIONS,
        initialization=start.astype(np.float64), neighbors="exact", negative_gradient_method="bh",
        n_jobs=torch.get_num_threads(), random_state=seed,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        placed = np.asarray(tsne.fit(feature[rows]), dtype=np.float32)
    if not np.isfinite(placed).all():
        return flat, "PCA"
    return (placed if len(rows) == len(feature) else _beside(feature, rows, placed)), "t-SNE"


def principal(feature: np.ndarray) -> np.ndarray:
    """The first two principal components, (N, d) -> (N, 2); a missing second one is zero."""
    mean = feature.mean(0)

    def pieces() -> Iterator[torch.Tensor]:
        for begin in range(0, len(feature), PIECE):
            yield torch.from_numpy(np.asarray(feature[begin : begin + PIECE] - mean, dtype=np.float32))

    covariance = torch.zeros(feature.shape[1], feature.shape[1], dtype=torch.float64)
    for x in pieces():
        covariance += (x.T @ x).double()
    directions = torch.linalg.eigh(covariance).eigenvectors[:, -2:].flip(1)
    found = np.concatenate([(x.double() @ directions).float().numpy() for x in pieces()])
    return found if found.shape[1] == 2 else np.column_stack([found[:, 0], np.zeros(len(found), dtype=np.float32)])


def _beside(feature: np.ndarray, rows: np.ndarray, placed: np.ndarray) -> np.ndarray:
    """Rows with a place keep it, the others that are drawn go to the mean of the places of their nearest neighbours."""
    known = torch.from_numpy(np.asarray(feature[rows], dtype=np.float32))
    spots = torch.from_numpy(placed)
    result = torch.zeros(len(feature), 2)
    shown = drawn(len(feature))
    for begin in range(0, len(shown), 4096):
        some = shown[begin : begin + 4096]
        part = torch.from_numpy(np.asarray(feature[some], dtype=np.float32))
        near = (part @ known.T).topk(NEIGHBOURS, dim=1)
        weight = (near.values - near.values[:, -1:] + 1e-3)[..., None]
        result[some] = (spots[near.indices] * weight).sum(1) / weight.sum(1)
    result[rows] = spots
    return result.numpy()
