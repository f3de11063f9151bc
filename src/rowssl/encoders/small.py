"""Encoders without a network: embeddings as they are, and small pictures as they are."""

from __future__ import annotations

from torch import nn

from rowssl.core.errors import InputError
from rowssl.encoders.base import Parts, Preprocessing, parse_tail, refuse

NAMES = {
    "pixels": "small pictures as they are",
    "identity": "for a matrix of embeddings",
}


def open(spec: str, tail: str, size: int | None, *, embedding_dim: int | None = None, **_: object) -> Parts:
    """The row, or the picture, itself as the feature: enough for small, centred pictures such as digits."""
    if spec == "identity" and not embedding_dim:
        raise InputError("encoder `identity` takes a matrix of embeddings, and there is none: give an .npz file")
    if parse_tail(tail)[0] not in {"auto", "adapter"}:
        raise refuse(spec, tail, "adapter")
    if spec == "identity":
        return Parts(nn.Identity(), None, "embedding", Preprocessing(0, 0), {"dim": embedding_dim})
    size = size or 16
    if not 1 <= size <= 32:
        raise InputError(f"--image-size {size} is too large for encoder pixels: 32 is the most")
    return Parts(nn.Flatten(), None, "pixels", Preprocessing(size, size, mean=(0.0,) * 3, std=(1.0,) * 3), {})
