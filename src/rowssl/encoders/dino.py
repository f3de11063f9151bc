"""DINO and DINOv2, vision transformers trained without labels: published ones by name, and files in their format."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from rowssl.core.errors import InputError
from rowssl.core.files import sha256_of
from rowssl.encoders import weights
from rowssl.encoders.base import CROP, Parts, Preprocessing, check_size, parse_tail, refuse
from rowssl.encoders.vit import split_vit

NAMES = {
    "dino_vitb16": "DINO, ViT-B/16: the encoder of the paper",
    "dino_vitb8": "DINO, ViT-B/8",
    "dino_vits16": "DINO, ViT-S/16",
    "dino_vits8": "DINO, ViT-S/8",
    "dinov2_vits14": "DINOv2, ViT-S/14",
    "dinov2_vitb14": "DINOv2, ViT-B/14",
    "dinov2_vitl14": "DINOv2, ViT-L/14",
    "dinov2_vits14_reg": "DINOv2 with registers, ViT-S/14",
    "dinov2_vitb14_reg": "DINOv2 with registers, ViT-B/14",
    "dinov2_vitl14_reg": "DINOv2 with registers, ViT-L/14",
}


def where(name: str) -> tuple[bool, str]:
    """Whether its file is on this machine, and where, or how to get it."""
    path = weights.locate(name)
    return path is not None, str(path) if path else weights.how_to_get(name)


def open(spec: str, tail: str, size: int | None, *, sha256: str | None = None, **_: object) -> Parts:
    """A published encoder by name, or a file; `blocks:K` trains the last K blocks."""
    path = Path(spec).expanduser()
    if spec in weights.PUBLISHED:
        vit = weights.load_vit(weights.fetch(spec, sha256=sha256), weights.PUBLISHED[spec].architecture)
    elif sha256 is not None and sha256_of(path) != sha256.lower():
        raise InputError(f"{path} does not have sha256 {sha256}")
    else:
        vit = weights.load_vit(path)
    size = size or 224
    recipe, facts = Preprocessing(size, int(size / CROP)), asdict(vit.architecture)
    check_size(size, vit.architecture.patch, spec)
    kind, count = parse_tail(tail)
    if kind == "stage":
        raise refuse(spec, tail, "blocks:K or adapter")
    if kind == "adapter":
        return Parts(vit, None, "pooled", recipe, facts)
    depth, count = len(vit.blocks), count or 1  # the paper trains one block
    if count > depth:
        raise InputError(f"--tail {tail} asks for more blocks than the {depth} of encoder {spec}")
    return Parts(*split_vit(vit, count), f"tokens before block {depth - count}", recipe, facts)
