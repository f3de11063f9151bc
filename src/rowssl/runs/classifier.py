"""A finished model: saved by a run, loaded from safetensors and JSON alone, answering for one image at a time."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
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
from rowssl.runs.edits import EditedClass, Edits
from rowssl.runs.folder import check_model_facts, model_folder
from rowssl.runs.outlier import Far, fit_far
from rowssl.runs.regroup import Regroup

if TYPE_CHECKING:
    from PIL.Image import Image

    from rowssl.runs.export import Exported
    from rowssl.runs.predict import Predictions
    from rowssl.runs.run import Run

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


class Network(nn.Module):
    """Everything between the encoder's input and the answer as one module, the part that is exported.

    Input: normalised pixels (B, 3, H, W), or embeddings (B, D). Output: class scores (B, K), class (B,), distance (B,); classes
    as edited, rows one by one.
    """

    def __init__(
        self, trunk: nn.Module, reduction: nn.Module, tail: nn.Module, classifier: CosineClassifier, far: Far,
        regroup: Regroup, temperature: float,
    ) -> None:  # fmt: skip
        super().__init__()
        self.trunk, self.reduction, self.tail = trunk, reduction, tail
        self.classifier, self.far, self.regroup = classifier, far, regroup
        self.temperature = temperature
        self.eval().requires_grad_(False)

    def regrouped(self, regroup: Regroup) -> Network:
        """The same parts with other classes."""
        return Network(
            self.trunk, self.reduction, self.tail, self.classifier, self.far, regroup, self.temperature
        )  # fmt: skip

    def trunk_output(self, inputs: Tensor) -> Tensor:
        """What the tail takes: (B, *trunk_shape), reduced where the model has a reduction."""
        output: Tensor = self.reduction(self.trunk(inputs))
        return output

    def features(self, x: Tensor) -> Tensor:
        """Trunk outputs -> unit features (B, d)."""
        return F.normalize(self.tail(x), dim=1)

    def head_scores(self, z: Tensor) -> Tensor:
        """Unit features -> probabilities of the heads (B, C)."""
        return self.classifier.probabilities(z, self.temperature)

    def answer(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Trunk outputs -> class scores (B, K), class (B,), distance (B,)."""
        z = self.features(x)
        scores, label = self.regroup(self.head_scores(z), z)
        return scores, label, self.far(z)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The whole way."""
        return self.answer(self.trunk_output(inputs))


class Classifier:
    """A trained model with the names people gave its classes.

    Attributes
    ----------
    class_ids : head -> stable id, as trained.
    n_known : the first of them had labels.
    encoder : pictures to trunk outputs; its `tail` is the trained one.
    facts : what `model/manifest.json` says.
    edits : renames, merges and splits.
    network : see `Network`.
    source : the run it belongs to, or the folder it was read from.
    """

    def __init__(
        self, facts: dict[str, Any], encoder: Encoder, network: Network, edits: Edits, source: Run | Path | None = None
    ) -> None:
        self.class_ids: tuple[str, ...] = tuple(facts["classes"])
        self.n_known: int = facts["n_known"]
        self.facts, self.encoder, self.network, self.edits, self.source = facts, encoder, network, edits, source

    @property
    def classes(self) -> tuple[EditedClass, ...]:
        """The classes that it tells apart, as edited."""
        return self.edits.classes

    def with_edits(self, edits: Edits, source: Run | None = None) -> Classifier:
        """The same weights in terms of other classes."""
        network = self.network.regrouped(edits.regroup().to(self.device))
        return Classifier(self.facts, self.encoder, network, edits, source or self.source)

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

    def predict(self, new: Any, *, top: int = 0) -> Predictions:
        """What the model says of new images or embeddings, one by one.

        Parameters
        ----------
        new
            A picture (PIL) or a list of them, an array of embeddings (N, D), or what `rowssl predict` takes: an image file, a
            folder, a CSV or parquet file with images, a file of embeddings, or a list of these.
        top
            How many of the most likely classes to list with their probabilities.
        """
        from rowssl.runs.predict import predict

        return predict(self, new, top=top)

    @torch.no_grad()
    def predict_trunk(self, x: Tensor, *, top: int = 0) -> list[Prediction]:
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
        return self.predict_trunk(self.trunk(images), top=top) if images else []

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
        return self.predict_trunk(torch.from_numpy(np.array(array, dtype=np.float32)), top=top)

    @classmethod
    def load(cls, run_or_model_dir: str | Path, *, encoder: str | None = None, device: str = "cpu") -> Classifier:
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
            network = _network(tensors, facts, built.trunk, reduction, tail, edits)
            with torch.no_grad():
                network.answer(reduction(torch.zeros(1, *built.trunk_shape)))  # parts that do not fit are found now
        except InputError:
            raise
        except Exception as error:  # torch names a missing tensor in a RuntimeError, and many other things in others
            raise InputError(f"{folder} does not hold a whole model: {' '.join(str(error).split())[:160]}.") from error
        network.to(distributed.device(device))
        encoder_now = replace(built, tail=tail, out_dim=facts["encoder"]["out_dim"])
        return cls(facts, encoder_now, network, edits, folder)

    @classmethod
    def of(cls, run: Run) -> Classifier:
        """The model of a run in the process that trained it, on the CPU."""
        tensors, facts = _parts(run)
        assert run.method is not None
        assert run.features is not None
        encoder, found = run.features.encoder, run.features.reduction
        reduction: nn.Module = nn.Identity() if found is None else deepcopy(found).cpu()
        tail = deepcopy(run.method.tail).cpu()
        network = _network(tensors, facts, encoder.trunk.cpu(), reduction, tail, run.edits)
        return cls(facts, replace(encoder, tail=tail, out_dim=facts["encoder"]["out_dim"]), network, run.edits, run)

    def export_onnx(self, path: str | Path) -> Exported:
        """Write it as one ONNX file, from pixels or embeddings to class scores, checked against this model."""
        from rowssl.runs.export import export_onnx

        return export_onnx(self, path)


def _network(
    tensors: dict[str, dict[str, Tensor]], facts: dict[str, Any], trunk: nn.Module, reduction: nn.Module, tail: nn.Module,
    edits: Edits,
) -> Network:  # fmt: skip
    classifier = CosineClassifier(facts["encoder"]["out_dim"], len(facts["classes"]))
    classifier.load_state_dict(tensors["classifier"])
    far = Far(**tensors["far"])
    return Network(trunk, reduction, tail, classifier, far, edits.regroup(), float(facts["temperature"]))


def save_model(path: Path, run: Run) -> None:
    """model/: reduction, tail, classifier and outlier score as safetensors, and JSON that says what they mean."""
    write_directory(path, *_parts(run))


def _parts(run: Run) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """The tensors and the facts of the model of a run in the process that trained it."""
    from rowssl import __version__

    assert run.method is not None
    assert run.features is not None
    method, encoder, config = run.method, run.features.encoder, run.config
    far, far_facts = fit_far(run.answers.feature, run.answers.head, run.problem.targets, seed=config.seed)
    place = Path(encoder.name.removeprefix("hf:")).expanduser()
    facts = {
        "model_format": MODEL_FORMAT,
        "version": __version__,
        "identity": run.edits.model,
        "classes": list(run.edits.class_ids),
        "n_known": run.edits.n_known,
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
    return tensors, facts


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
