"""The folder of a Hugging Face model, which may be a stranger's: where it is, what it holds, how its pictures are prepared."""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import Any

from rowssl.errors import InputError
from rowssl.nn.encoders import IMAGENET_MEAN, IMAGENET_STD, Preprocessing
from rowssl.nn.weights import hub_answers, verify
from rowssl.plain_files import LARGEST_CONFIG, read_plain

# Supported kinds; every one can have an adapter, the first a `stage` tail, the second (not DINOv3) a `blocks` tail.
CONVOLUTIONAL = {"resnet", "convnext", "convnextv2"}
TRANSFORMERS = {"vit", "dinov2", "dinov2_with_registers", "dinov3_vit", "clip", "clip_vision_model"}
LARGEST_SIDE = 4096  # pixels


def folder_of(name: str) -> Path:
    """The folder of a model: `name` itself if it is one, else the snapshot of that repository, fetched once."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise InputError(f"encoder `hf:{name}` needs a package: pip install 'rowssl[hf]'") from None
    files = ["config.json", "preprocessor_config.json", "model*.safetensors", "model.safetensors.index.json"]
    try:
        return Path(snapshot_download(name, allow_patterns=files, local_files_only=True))
    except Exception:
        if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) or not hub_answers(name):
            raise InputError(
                f"encoder `hf:{name}` is neither a folder nor in Hugging Face's cache, and huggingface.co cannot be "
                f"asked for it: where there is a network run `hf download {name}`, or give the path of a folder"
            ) from None
    folder = Path(snapshot_download(name, allow_patterns=files))
    for file in sorted(folder.glob("*.safetensors")):
        verify(file, f"{name}/{file.name}")
    return folder


def read_config(folder: Path) -> dict[str, Any]:
    """The vision part of a folder's config.json; an InputError when the model is of no supported kind."""
    config = _read_object(folder / "config.json")
    if not config:
        raise InputError(f"{folder} has no readable config.json: it is not a Hugging Face model folder")
    kind = str(config.get("model_type"))
    if kind not in CONVOLUTIONAL | TRANSFORMERS:
        known = ", ".join(sorted(CONVOLUTIONAL | TRANSFORMERS))
        raise InputError(f"{folder} holds a `{kind}` model; the supported kinds are {known}")
    if kind == "clip":
        vision = config.get("vision_config", {})
        config = {**(vision if isinstance(vision, dict) else {}), "model_type": kind}
    if config.get("num_channels", 3) != 3:
        raise InputError(f"{folder} takes {config['num_channels']} channels; pictures here have 3")
    drop = {"transformers_version", "_name_or_path", "dtype", "torch_dtype", "architectures", "id2label", "label2id"}
    return {key: value for key, value in config.items() if key not in drop}


def _read_object(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object; empty if it does not, or is not there; InputError if it is none to be opened."""
    if not os.path.exists(path):
        return {}
    try:
        found = json.loads(read_plain(path, LARGEST_CONFIG, links=True).decode("utf-8"))
    except InputError:  # which is a ValueError
        raise
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def read_preprocessing(folder: Path, config: dict[str, Any], image_size: int | None) -> Preprocessing:
    """What preprocessor_config.json says, at `image_size` pixels if given; ImageNet's numbers where it is silent."""
    facts = _read_object(folder / "preprocessor_config.json")

    def side(value: Any) -> int | None:  # 224, {"shortest_edge": 224} or {"height": 224, "width": 224}
        if isinstance(value, dict):
            value = value.get("shortest_edge") or value.get("height")
        return value if type(value) is int else None

    size, crop = side(facts.get("size")), side(facts.get("crop_size")) if facts.get("do_center_crop", True) else None
    own = crop or size or side(config.get("image_size")) or 224
    ratio = crop / size if crop and size and size > crop > 0 else facts.get("crop_pct") or 0.875
    normalise = facts.get("do_normalize", True)
    mean = facts.get("image_mean", IMAGENET_MEAN) if normalise else (0.0, 0.0, 0.0)
    std = facts.get("image_std", IMAGENET_STD) if normalise else (1.0, 1.0, 1.0)
    rescale = facts.get("rescale_factor", 1 / 255) if facts.get("do_rescale", True) else 1.0
    # The numbers may be a stranger's: what is made of them is allocated.
    fine = {
        "size": 8 <= own <= LARGEST_SIDE,
        "crop_pct": _number(ratio) and 0.1 <= ratio <= 1,
        "image_mean": isinstance(mean, list | tuple) and len(mean) == 3 and all(_number(value) for value in mean),
        "image_std": isinstance(std, list | tuple) and len(std) == 3 and all(_number(v) and v > 0 for v in std),
        "rescale_factor": _number(rescale) and rescale > 0,
    }
    if wrong := next((name for name, usable in fine.items() if not usable), ""):
        raise InputError(f"{folder / 'preprocessor_config.json'} has a {wrong} that no encoder has")
    image_size = image_size or own
    return Preprocessing(
        image_size=image_size,
        resize=int(image_size / ratio),
        mean=tuple(mean),
        std=tuple(std),
        rescale=float(rescale),
    )


def _number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)
