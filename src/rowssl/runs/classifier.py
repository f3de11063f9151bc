"""A finished model: saved by a run, loaded from safetensors and JSON alone, answering for one image at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from rowssl.core import distributed
from rowssl.core.errors import InputError
from rowssl.core.files import read_directory, write_directory
from rowssl.encoders.base import BUILT_IN, Encoder, build_encoder, parse_tail
from rowssl.encoders.reduce import Reduction
from rowssl.encoders.tails import AdapterTail
from rowssl.encoders.weights import PUBLISHED, locate
from rowssl.methods import METHODS
from rowssl.methods.heads import TEMPERATURE, CosineClassifier
from rowssl.runs.checks import check_sizes, in_cache
from rowssl.runs.edits import Edits
from rowssl.runs.folder import check_model_facts, model_folder
from rowssl.runs.network import Network
from rowssl.runs.outlier import Far, fit_far

if TYPE_CHECKING:
    from PIL.Image import Image

    from rowssl.runs.fit import Run

MODEL_FORMAT = 1
BATCH = 64
WITHIN = ("convnet", "gradients", "pixels", "identity")  # encoders whose weights, if any, are in the model itself


@dataclass(frozen=True)
class Prediction:
    """What the model says of one image.

    Attributes
    ----------
    class_id, name, kind
        The stable id; the name a person gave the class, else its id; `known` (it had labels) or `novel`.
    confidence, second
        Score of the class from 0 to 1, and the id of the second choice (empty when there is one class only).
    far, distance
        Whether the image is far from all training images: its distance to the nearest class is above 1, the calibrated limit.
    top
        Id, name and score of the most likely classes, as many as were asked for: the answer itself, then by score.
    """

    class_id: str
    name: str
    kind: str
    confidence: float
    second: str
    far: bool
    distance: float
    top: tuple[tuple[str, str, float], ...] = ()


class Model:
    """A trained model with the names people gave its classes.

    Attributes
    ----------
    class_ids : head -> stable id, as trained.
    n_known : the first of them had labels.
    encoder : pictures to trunk outputs; its `tail` is the trained one.
    facts : what `model/manifest.json` says.
    edits : renames, merges and splits; assigning other ones changes what is predicted from then on.
    network : see `Network`.
    """

    def __init__(self, facts: dict[str, Any], encoder: Encoder, network: Network, edits: Edits) -> None:
        self.class_ids: tuple[str, ...] = tuple(facts["classes"])
        self.n_known: int = facts["n_known"]
        self.facts, self.encoder, self.network = facts, encoder, network
        self.edits = edits

    @property
    def edits(self) -> Edits:
        return self._edits

    @edits.setter
    def edits(self, edits: Edits) -> None:
        self._edits = edits
        self.network.regroup = edits.regroup().to(self.device)

    @property
    def device(self) -> torch.device:
        """Where the computations happen."""
        return self.network.classifier.weight.device

    @property
    def takes_images(self) -> bool:
        """False for a model trained on embeddings."""
        return self.encoder.image_size > 0

    def clean_view(self, image: Image) -> np.ndarray:
        """The part of a picture that the model looks at, uint8 (size, size, 3)."""
        from rowssl.data.views import clean_view, view_recipe

        if not self.takes_images:
            raise InputError("The model was trained on embeddings and cannot look at pictures: give .npy or .npz.")
        return clean_view(image, view_recipe("standard", self.encoder.image_size, self.encoder.resize))

    @torch.no_grad()
    def trunk_of_views(self, views: np.ndarray) -> Tensor:
        """Clean views, uint8 (B, size, size, 3) -> trunk outputs."""
        parts = [
            self.network.trunk_output(self.encoder.normalise(torch.from_numpy(views[i : i + BATCH]).to(self.device)))
            for i in range(0, len(views), BATCH)
        ]
        return torch.cat(parts).float()

    def trunk(self, images: Sequence[Image]) -> Tensor:
        """Clean views of pictures through the frozen trunk, and the reduction if there is one: (B, *shape)."""
        return self.trunk_of_views(np.stack([self.clean_view(image) for image in images]))

    @torch.no_grad()
    def features(self, x: Tensor) -> Tensor:
        """Trunk outputs -> unit features (B, d)."""
        return self.network.features(x.to(self.device))

    @torch.no_grad()
    def scores(self, x: Tensor) -> Tensor:
        """Trunk outputs -> probabilities of the heads as trained, (B, C)."""
        return self.network.head_scores(self.features(x))

    @torch.no_grad()
    def predict(self, x: Tensor, *, top: int = 0) -> list[Prediction]:
        """What the model says of trunk outputs, one by one; with the `top` most likely classes."""
        if len(x) == 0:
            return []
        scores, label, distance = (part.cpu().numpy() for part in self.network.answer(x.to(self.device)))
        classes, rows = self.edits.classes, np.arange(len(label))
        confidence = scores[rows, label]
        others = scores.copy()
        others[rows, label] = -1.0
        second = others.argmax(1)
        others[rows, label] = np.inf  # an edited class may have a higher sum than the one that the head decides for
        order = np.argsort(-others, axis=1, kind="stable")[:, :top] if top else label[:, None][:, :0]
        return [
            Prediction(
                classes[c].id, classes[c].name, classes[c].kind, float(confidence[i]),
                classes[second[i]].id if second[i] != c else "",  # one class is left
                bool(distance[i] > 1), float(distance[i]),
                tuple((classes[k].id, classes[k].name, float(scores[i, k])) for k in order[i]),
            )
            for i, c in enumerate(label)
        ]  # fmt: skip

    def predict_images(self, images: Sequence[Image], *, top: int = 0) -> list[Prediction]:
        """One answer per picture; none depends on the others."""
        return self.predict(self.trunk(images), top=top) if images else []

    def predict_embeddings(self, array: np.ndarray, *, top: int = 0) -> list[Prediction]:
        """One answer per row of (N, D)."""
        if self.takes_images:
            raise InputError(
                f"The model looks at pictures through encoder {self.encoder.name}: embeddings mean nothing to it."
            )
        array = np.asarray(array)
        width = self.encoder.trunk_shape[0]
        if array.ndim != 2 or array.shape[1] != width:
            raise InputError(f"The model takes embeddings of {width} columns, not an array of shape {array.shape}.")
        return self.predict(torch.from_numpy(np.array(array, dtype=np.float32)), top=top)


def save_model(path: Path, run: Run) -> None:
    """model/: reduction, tail, classifier and far distance as safetensors, and JSON that says what they mean."""
    from rowssl import __version__

    method, encoder, config = run.method, run.features.encoder, run.config
    far, far_facts = fit_far(run.answers.feature, run.answers.head, run.problem.targets, seed=config.seed)
    place = Path(encoder.name.removeprefix("hf:")).expanduser()
    facts = {
        "model_format": MODEL_FORMAT,
        "version": __version__,
        "identity": run.metrics["identity"],
        "classes": list(run.names.ids),
        "n_known": run.names.n_old,
        "temperature": TEMPERATURE,
        "method": config.method.name,
        "options": dict(config.method.options),
        "seed": config.seed,
        "encoder": {
            "name": encoder.name,
            "path": str(place.resolve()) if encoder.name not in (*WITHIN, BUILT_IN) and place.exists() else None,
            "fingerprint": encoder.fingerprint,
            "tail": run.features.tail,
            "asked_size": encoder.image_size if encoder.name in WITHIN else config.encoder.image_size,
            "image_size": encoder.image_size,
            "resize": encoder.resize,  # the clean view: shorter side to `resize`, then the middle `image_size` pixels
            "trunk_shape": list(encoder.trunk_shape),
            "out_dim": method.out_dim,
        },
        "far": far_facts,
    }
    tensors = {
        "tail": method.tail.state_dict(),
        "classifier": method.classifier.state_dict(),
        "far": far.state_dict(),
    }
    if run.features.reduction is not None:
        tensors["reduction"] = run.features.reduction.state_dict()
    write_directory(path, tensors, facts)


def load_model(run_or_model_dir: str | Path, *, encoder: str | None = None, device: str = "cpu") -> Model:
    """The model of a run, ready to predict; nothing in its files is executed.

    Parameters
    ----------
    run_or_model_dir
        A run directory, or its `model` folder; edits beside it are applied.
    encoder
        Where the pretrained encoder is, if it is no longer where it was at training; it must have the same fingerprint.
    device
        `cpu`, `cuda` or `auto`.

    Raises
    ------
    InputError
        One sentence: what is missing, damaged or of another version.
    """
    folder = model_folder(run_or_model_dir)
    tensors, facts = read_directory(folder)
    check_model_facts(facts, folder)
    check_sizes(facts, tensors, folder)
    edits = Edits.load(folder)
    try:
        built = _encoder(facts, encoder)
        reduction: nn.Module = nn.Identity()
        tail = built.tail
        if "reduction" in tensors:
            reduction = Reduction(tensors["reduction"]["mean"], tensors["reduction"]["components"])
            tail = AdapterTail(tensors["reduction"]["components"].shape[1], parse_tail(facts["encoder"]["tail"])[1])
        tail = METHODS[facts["method"]].wrap_tail(tail, {**facts["options"], "seed": facts["seed"]})
        tail.load_state_dict(tensors["tail"])
        classifier = CosineClassifier(facts["encoder"]["out_dim"], len(facts["classes"]))
        classifier.load_state_dict(tensors["classifier"])
        far = Far(**tensors["far"])
        network = Network(built.trunk, reduction, tail, classifier, far, edits.regroup(), float(facts["temperature"]))
        with torch.no_grad():
            network.answer(reduction(torch.zeros(1, *built.trunk_shape)))  # parts that do not fit are found now
    except InputError:
        raise
    except Exception as error:  # torch names a missing tensor in a RuntimeError, and many other things in others
        raise InputError(f"{folder} does not hold a whole model: {' '.join(str(error).split())[:160]}.") from error
    network.to(distributed.device(device))
    return Model(facts, replace(built, tail=tail, out_dim=facts["encoder"]["out_dim"]), network, edits)


def _encoder(facts: dict[str, Any], asked: str | None) -> Encoder:
    """The encoder the model was trained with, by name or path, checked by its fingerprint."""
    about = facts["encoder"]
    name, path = about["name"], about["path"]
    within = name in WITHIN
    place = name if within else asked or (path if path and Path(path).exists() else name)
    absent = place.startswith("hf:") and not in_cache(place.removeprefix("hf:"))
    if not asked and (absent or (place in PUBLISHED and locate(place) is None)):
        raise InputError(
            f"The model needs encoder {place}, which is not on this machine: --encoder {place} fetches it."
        )
    try:
        built = build_encoder(
            place,
            tail=about["tail"],
            image_size=about["asked_size"] or None,
            embedding_dim=about["trunk_shape"][0] if name == "identity" else None,
            seed=facts["seed"],
        )
    except InputError as error:
        if within:
            raise
        reason = str(error).rstrip(".")
        raise InputError(
            f"The model needs encoder {path or name}, which cannot be opened ({reason}): say where it is with --encoder PATH."
        ) from error
    if built.fingerprint != about["fingerprint"]:
        raise InputError(
            f"{place} is not the encoder the model was trained with (its fingerprint differs): "
            "say where the right one is with --encoder PATH."
        )
    return built
