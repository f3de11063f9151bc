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
from rowssl.encoders import ENCODERS, weights
from rowssl.encoders.tails import AdapterTail, Frozen

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
    parts = _file_of(spec).open(spec, tail, image_size, embedding_dim=embedding_dim, seed=seed, sha256=sha256)
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
    except Exception as error:  # an untrusted config.json may fit its weights and still make no network
        raise InputError(f"encoder {spec} cannot work with {side} px pictures: {weights.one_line(error)}") from None
    head = parts.tail or AdapterTail(shape[0], width, seed=seed)
    out_dim = head.out_dim
    assert isinstance(out_dim, int)
    return Encoder(spec, trunk, head, shape, out_dim, **asdict(recipe), fingerprint=fingerprint)


def _file_of(spec: str) -> Any:
    """The file of this folder that opens an encoder, by its name, its prefix, or what its path leads to."""
    place, prefix = Path(spec).expanduser(), f"{spec.partition(':')[0]}:"
    if spec in ENCODERS and spec != prefix:
        return ENCODERS[spec]
    if ":" in spec and prefix in ENCODERS:
        return ENCODERS[prefix]
    if place.is_dir():
        return ENCODERS["hf:"]
    if place.is_file():
        return ENCODERS["dino_vitb16"]
    names = [f"{name}<name or folder>" if name.endswith(":") else name for name in ENCODERS]
    raise InputError(f"encoder `{spec}` is neither a file or folder nor one of {', '.join(names)}")


class Availability(NamedTuple):
    """Whether an encoder works on this machine now, and where it is or which command brings it."""

    spec: str
    works: bool
    how: str


def available_encoders() -> list[Availability]:
    """Every named encoder, the paper's first, with whether it works now and how to get it."""
    rows = []
    for name in (name for name in ENCODERS if not name.endswith(":")):
        try:
            where = getattr(ENCODERS[name], "where", None)
            rows.append(
                Availability(name, *where(name)) if where else Availability(name, True, ENCODERS.entry(name).help)
            )
        except InputError as error:  # of a plug-in whose packages are not installed
            rows.append(Availability(name, False, str(error)))
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
