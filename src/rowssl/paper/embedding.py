"""Features of a run in two dimensions, and how well they keep the true classes apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rowssl.bench.cell import read_sample

PERPLEXITY = 30.0


def silhouettes(folder: Path) -> dict[str, float]:
    """Mean silhouette of the true classes by cosine distance, times 100, of each part of a cell's sample."""
    from sklearn.metrics import silhouette_score

    found = {}
    for part, sample in sorted((read_sample(folder) or {}).items()):
        if 1 < len(np.unique(sample.truth)) < len(sample.truth):
            found[part] = 100 * float(silhouette_score(sample.feature, sample.truth, metric="cosine"))
    return found


def in_two_dimensions(feature: np.ndarray, *, seed: int = 0) -> tuple[np.ndarray, str]:
    """t-SNE where there are rows enough, else principal components: (n, d) -> (n, 2), and which."""
    from sklearn.decomposition import PCA

    if len(feature) < 3:
        return np.zeros((len(feature), 2)), "nothing"
    components = PCA(min(50, *feature.shape), svd_solver="full").fit_transform(feature)
    if len(feature) < 20:
        return components[:, :2], "PCA"
    from openTSNE import TSNE

    perplexity = min(PERPLEXITY, (len(feature) - 1) / 3)
    placed = TSNE(perplexity=perplexity, metric="cosine", initialization="pca", random_state=seed, n_jobs=1).fit(
        components
    )
    return np.asarray(placed), "t-SNE"
