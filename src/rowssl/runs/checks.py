"""A model folder may come from a stranger: what its manifest says is checked before anything is made as large as it says."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, prod
from pathlib import Path
from typing import Any

from torch import Tensor

from rowssl.core.errors import InputError
from rowssl.encoders.base import parse_tail
from rowssl.encoders.weights import is_whole

LONGEST = 4096  # characters of a class id
LONGEST_TAIL = 64  # characters of `adapter:WIDTH` and the like
WIDEST = 2**16  # entries of a feature
LARGEST = 2**26  # values of one trunk output
NUMBERS = {"asked_size": 4096, "image_size": 4096, "resize": 8192, "out_dim": WIDEST}


def check_facts(facts: Mapping[str, Any], folder: Path) -> None:
    """An InputError unless the facts of a model could be those of one."""
    about = facts["encoder"]
    wrong = [name for name in ("name", "fingerprint", "tail") if not isinstance(about.get(name), str)]
    wrong += ["tail"] if not wrong and len(about["tail"]) > LONGEST_TAIL else []  # a number of any length is none
    wrong += ["path"] if not isinstance(about.get("path"), str | None) else []
    wrong += [name for name, most in NUMBERS.items() if not is_whole(about.get(name) or 0, 0, most)]
    shape = about.get("trunk_shape")
    if (
        not isinstance(shape, list)
        or not shape
        or not all(is_whole(n, 1, LARGEST) for n in shape)
        or prod(shape) > LARGEST
    ):
        wrong.append("trunk_shape")
    wrong = [f"encoder.{name}" for name in wrong]
    wrong += ["seed"] if not is_whole(facts["seed"], 0, 2**63 - 1) else []
    wrong += ["temperature"] if not 0 < facts["temperature"] < inf else []
    if wrong:
        raise InputError(f"{folder / 'manifest.json'} does not say what {wrong[0]} is.")
    if not all(one.isprintable() and 0 < len(one) <= LONGEST for one in facts["classes"]):
        raise InputError(f"{folder / 'manifest.json'} names a class that cannot be shown on one line.")


def check_sizes(facts: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]], folder: Path) -> None:
    """An InputError unless every size that the manifest asks for is one of a tensor that is there."""
    for name in ("tail", "classifier", "far"):
        if name not in tensors:
            raise InputError(f"{folder} does not hold a whole model: {name}.safetensors is missing.")
    about, weight = facts["encoder"], tensors["classifier"].get("weight")
    shape = (len(facts["classes"]), about["out_dim"])
    if weight is None or tuple(weight.shape) != shape:
        raise InputError(f"{folder} does not hold a whole model: its classifier is not one of {shape[0]} classes.")
    found = [size for group in tensors.values() for value in group.values() for size in value.shape]
    asked = [parse_tail(about["tail"])[1] or 0, facts["options"].get("n_prompts", 0)]
    asked += about["trunk_shape"][:1] if about["name"] == "identity" else []
    if not all(is_whole(size, 0, max(found)) for size in asked):
        raise InputError(
            f"{folder} does not hold a whole model: {folder / 'manifest.json'} asks for more than there is."
        )


def check_answers(
    facts: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]], heads: int, folder: Path
) -> None:
    """An InputError unless the answers of a run fit together: one entry for each row, classes that there are."""
    names, paths, classes = facts.get("names"), facts.get("paths"), facts.get("class_names")
    rows, true = len(names) if isinstance(names, list) else -1, len(classes) if isinstance(classes, list) else -1
    texts = {"names": names, "class_names": classes, "paths": paths if paths is not None else []}
    wrong = [name for name, value in texts.items() if not _texts(value, shown=name != "paths")]
    wrong += ["paths"] if isinstance(paths, list) and len(paths) != rows else []
    skipped, files = facts.get("skipped"), facts.get("files", {})
    wrong += (
        ["skipped"]
        if not isinstance(skipped, list) or not all(_texts(one) and len(one) == 2 for one in skipped)
        else []
    )
    wrong += ["n_old"] if not is_whole(facts.get("n_old"), 0, max(true, 0)) else []
    wrong += ["facts"] if not isinstance(facts.get("facts"), dict) else []
    sealed = {"config.json", "metrics.json", "metrics.jsonl"}
    wrong += ["files"] if not isinstance(files, dict) or not set(files) <= sealed else []
    wrong += ["source"] if not _texts([facts.get("source")]) else []
    wrong += ["seconds"] if not isinstance(facts.get("seconds"), int | float) else []
    limits = {
        "head": (0, heads),
        "second": (0, heads),
        "target": (-1, heads),
        "truth": (-1, true),
        "issue": (-1, heads),
    }
    for group in ("rows", "test"):
        columns = tensors.get(group, {})
        count = rows if group == "rows" else len(columns.get("head", ()))
        for name, value in columns.items():
            low, high = limits.get(name, (-inf, inf))
            fits = value.ndim == (2 if name in ("feature", "place") else 1) and len(value) == count
            numbers = value.float()  # of whole numbers below 2**24 exactly
            if not fits or not (numbers.isfinite() & (numbers >= low) & (numbers < high)).all():
                wrong.append(f"{group}.{name}")
        needed = {"rows": ("head", "second", "confidence", "feature", "target"), "test": ("head", "feature", "truth")}
        wrong += [f"{group}.{name}" for name in needed[group] if group in {"rows", *tensors} and name not in columns]
    if wrong:
        raise InputError(f"{folder} does not hold the answers of a run: {wrong[0]} is missing or cannot be right.")


def _texts(values: Any, *, shown: bool = True) -> bool:
    """Whether it is a list of texts, on one line each if they are shown."""
    return isinstance(values, list | tuple) and all(
        isinstance(one, str) and (one.isprintable() or not shown) for one in values
    )


def in_cache(name: str) -> bool:
    """Whether a Hugging Face model is a folder here or in its cache: a manifest alone fetches nothing."""
    if Path(name).expanduser().is_dir():
        return True
    try:
        from huggingface_hub import snapshot_download

        snapshot_download(name, allow_patterns=["config.json"], local_files_only=True)
    except Exception:  # not installed, not there, or no name of a model at all
        return False
    return True
