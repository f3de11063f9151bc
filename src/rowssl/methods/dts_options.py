"""Every choice of DTS by name: the paper's symbols, where the paper and its public code differ, and the paper's ablations."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from rowssl.errors import InputError

Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class DTSOptions:
    """Options of DTS. The defaults are the `paper` preset: the paper's equations and appendix B."""

    projector_hidden: Count | None = None  # default: by the size of z
    projector_out: Count | None = None
    lambda_rep: Share = 0.35  # weight of l_sup, Eq. (3)
    epsilon: float = 4.0  # weight of the mean-entropy regulariser
    tau_s: Positive = 0.1  # student temperature
    tau_t: tuple[Positive, Positive] = (0.07, 0.04)  # teacher temperature, first epoch and from tau_t_epochs on
    tau_t_epochs: Count = 30
    tau_t_shape: Literal["linear", "cosine"] = "linear"
    key_momentum: Share = 0.999  # of the key network; 0: the key network is the query network of the step before

    queue_size: Count = 4096  # Q
    queue_init: Literal["empty", "random", "data"] = (
        "empty"  # validity mask; random keys of class 0; keys of random rows
    )
    mask_same_image: bool = False  # leave older keys of the anchor's own image out of its negatives
    sup_temperature: Annotated[float, Field(ge=0.025)] = 1.0  # of l_sup; below, e^{1 / tau} would not fit
    sup_on: Literal["labelled", "all"] = "labelled"  # l_sup averaged over B_l or over B
    ignore_unlabelled_negatives: bool = False  # unlabelled queue entries are not negatives of l_sup

    n_prototypes: Count | None = None  # M, default C
    n_neighbours: Count = 15  # K
    knn_weighting: Literal["rank", "uniform"] = "rank"
    density_scale: Literal["mean", "sum"] = "mean"
    proto_init: Literal["queue", "train"] = "queue"  # k-means on Q random rows' keys, or on two views of all rows
    proto_update: Literal["queue", "batch"] = "queue"  # Eq. (8) over the queue, or over the batch's keys
    lambda_tail: Share = 0.9
    tau_min: Positive = 0.05  # Eq. (9)
    tau_max: Positive = 1.0

    lambda_var: float = 1.0  # Eq. (11)
    u_scale: float = 1.0
    u_mask: Literal["all", "top1"] = "all"  # u enters every logit, or only the largest
    u_moves: Literal["anywhere", "within"] = "anywhere"  # probability from class to class, or never from known to novel
    u_momentum: Share = 0.0  # 0: std of this epoch; 0.9: smoothed
    u_empty: Literal["zero", "keep", "one", "max"] = "zero"  # class with none or one sample
    pseudo_label: Literal["teacher", "student"] = "teacher"  # class of S^c: argmax of q, or of the plain logits
    # Start of the classifier: random; k-means of the encoder's features (the public code's experiments), clusters of known
    # classes matched to them on the labelled rows; semi-supervised k-means, labelled rows pinned to their classes; or the
    # answer of the closed form `transfer`.
    classifier_init: Literal["random", "kmeans", "semi_kmeans", "transfer"] = "random"

    # Ablations of the paper's appendix.
    score: Literal["prototype", "instance", "loss"] = "prototype"
    temperature: Literal["density", "constant", "cosine", "estimated_prior", "true_prior"] = "density"
    tau_constant: Positive = 0.07  # for temperature="constant"
    uncertainty: Literal["tailedness", "none", "confidence", "estimated_prior", "true_prior"] = "tailedness"

    @property
    def oracle(self) -> bool:
        """Whether an option looks at the true classes."""
        return "true_prior" in (self.temperature, self.uncertainty)


OFFICIAL = {
    "queue_size": 8192,
    "queue_init": "random",
    "knn_weighting": "uniform",
    "density_scale": "sum",
    "proto_init": "train",
    "proto_update": "batch",
    "sup_on": "all",
    "u_mask": "top1",
    "u_momentum": 0.9,
    "u_empty": "keep",
    "pseudo_label": "student",
}
PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    "official": OFFICIAL,
    "tuned": {
        "epsilon": 1.0,
        "u_momentum": 0.9,
        "u_empty": "max",
        "u_moves": "within",
        "classifier_init": "transfer",
    },  # the default: see docs/methods/dts.md
}


def dts_options(preset: str = "tuned", **overrides: Any) -> DTSOptions:
    """Options of a preset with some of them changed."""
    if preset not in PRESETS:
        raise InputError(f"DTS has no preset '{preset}': choose one of {', '.join(PRESETS)}.")
    names = {field.name for field in fields(DTSOptions)}
    for name in overrides:
        if name not in names:
            raise InputError(f"DTS has no option '{name}': choose among {', '.join(sorted(names))}.")
    try:
        return DTSOptions(**{**PRESETS[preset], **overrides})
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"DTS option {first['loc'][0]}: {first['msg'].lower()}, not {first['input']!r}.") from error
