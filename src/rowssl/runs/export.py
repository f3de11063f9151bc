"""A model as one ONNX file, from pixels or embeddings to class scores: checked against the model before it gets its name."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rowssl.core.errors import ImageError, InputError
from rowssl.core.files import replacing
from rowssl.data.views import LONGEST
from rowssl.encoders.base import Encoder
from rowssl.encoders.vit import ViT
from rowssl.runs.classifier import Classifier, Network

CHECKED = 200  # inputs that file and model must agree on
CUTS = (0, 1, 8, 72, 136, CHECKED)  # in batches of 1, 7 and 64: the size of a batch must not matter
SCORES = 1e-4  # largest difference of a score
DISTANCES = 1e-2  # and of a distance in units of its limit, relative to distances above 1
FAR_LIMIT = 1.0
OPSET = 18
OUTPUTS = ("scores", "label", "distance")


@dataclass(frozen=True)
class Exported:
    """What was written: the file, its size, and how many of the inputs it was checked on were training rows."""

    path: Path
    size: int
    checked: int
    real: int


class FromPixels(nn.Module):
    """uint8 (B, H, W, 3), RGB -> scores (B, K), label (B,), distance (B,): as numpy holds a picture, nothing to normalise."""

    scale: Tensor
    shift: Tensor

    def __init__(self, network: Network, encoder: Encoder) -> None:
        super().__init__()
        self.network = network
        mean, std = torch.tensor(encoder.mean), torch.tensor(encoder.std)
        self.register_buffer("scale", (encoder.rescale / std).view(1, 3, 1, 1))
        self.register_buffer("shift", (mean / std).view(1, 3, 1, 1))

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, H, W, 3) -> (B, K), (B,), (B,)."""
        return self.network(pixels.permute(0, 3, 1, 2).to(torch.float32) * self.scale - self.shift)


def export_onnx(model: Classifier, path: str | Path) -> Exported:
    """Write a model, with the edits of its classes, as one ONNX file; the encoder becomes a part of it.

    Parameters
    ----------
    path
        The file to write; it appears only once it has given the model's answers on 200 inputs, half of them training rows where
        these can still be read.

    Raises
    ------
    InputError
        One sentence: a package is missing, the model cannot be exported, or the file does not answer like the model.
    """
    from rowssl.core.console import bar

    _packages()  # before anything is loaded
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path} is a folder: give the name of the file to write, such as {path / 'model.onnx'}.")
    with replacing(path) as temporary:
        temporary.touch()  # a folder that cannot be written to is noticed before the work
        with bar("exporting", CHECKED) as progress:
            written = _convert(model)
            for name, value in metadata(model).items():
                written.metadata_props.add(key=name, value=json.dumps(value, ensure_ascii=False))
            session = _open(written, temporary)
            inputs, real = _inputs(model)
            for begin, end in pairwise(CUTS):
                _compare(model, session, inputs[begin:end])
                progress.advance(to=end)
        size = temporary.stat().st_size
    return Exported(path, size, CHECKED, real)


def _packages() -> tuple[Any, Any]:
    """onnx and onnxruntime, or one sentence that says how to get them."""
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401 (torch needs it)
    except ImportError as error:
        raise InputError(f"Export needs the package {error.name}: pip install 'rowssl[export]'.") from error
    return onnx, onnxruntime


def metadata(model: Classifier) -> dict[str, Any]:
    """What the file says of itself: classes in the order of the scores, and how to make its input."""
    from rowssl import __version__

    classes = model.edits.classes
    facts: dict[str, Any] = {
        "rowssl_version": __version__,
        "model": model.facts["identity"],
        "class_ids": [one.id for one in classes],
        "class_names": [one.name for one in classes],
        "class_kinds": [one.kind for one in classes],
        "far_limit": FAR_LIMIT,
    }
    if not model.takes_images:
        width = model.encoder.trunk_shape[0]
        return {
            **facts,
            "input_kind": "embeddings",
            "width": width,
            "recipe": f"float32 (batch, {width}): embeddings like those the model was trained on, as they are.",
        }
    size, resize = model.encoder.image_size, model.encoder.resize
    return {
        **facts,
        "input_kind": "pixels",
        "image_size": size,
        "resize": resize,
        "longest": LONGEST,
        "recipe": (
            f"uint8 (batch, {size}, {size}, 3): RGB from 0 to 255, turned as EXIF says, transparency on white; of a picture longer "
            f"than {LONGEST} times its width only the middle; shorter side to {resize} pixels (bicubic of Pillow, the longer side "
            f"rounded down); the middle {size} x {size} pixels. The file normalises."
        ),
    }


def _convert(model: Classifier) -> Any:
    """The model as an ONNX graph with any number of rows, without traces of the source in it."""
    network = model.network
    if any(isinstance(part, ViT) for part in network.modules()):
        network = deepcopy(network)
        for part in network.modules():
            if isinstance(part, ViT):
                _fix_positions(part, model.encoder.image_size)
    module: nn.Module
    if model.takes_images:
        size = model.encoder.image_size
        module, name = FromPixels(network, model.encoder), "pixels"
        sample = torch.zeros(2, size, size, 3, dtype=torch.uint8)
    else:
        module, name = network, "embeddings"
        sample = torch.zeros(2, model.encoder.trunk_shape[0])
    try:
        with _quiet(), torch.no_grad():
            program = torch.onnx.export(
                module.eval(), (sample,), dynamo=True, opset_version=OPSET, input_names=[name], output_names=list(OUTPUTS),
                dynamic_shapes=({0: torch.export.Dim("batch")},), external_data=False, verbose=False,
            )  # fmt: skip
        assert program is not None
        written = program.model_proto
    except Exception as error:  # whatever a network of somebody else's may do to the exporter
        raise InputError(f"Encoder {model.encoder.name} cannot be exported to ONNX: {_first(error)}.") from error
    for part in (written.graph, *written.functions):
        for node in part.node:
            del node.metadata_props[:]  # stack traces with paths of this machine
            node.doc_string = ""
    return written


def _open(written: Any, place: Path) -> Any:
    """The graph saved to a file, and opened by the runtime."""
    from rowssl.core.files import sync

    onnx, runtime = _packages()
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # errors
    try:
        onnx.save(written, str(place))
        sync(place)
        return runtime.InferenceSession(str(place), options, providers=["CPUExecutionProvider"])
    except OSError:
        raise
    except Exception as error:  # larger than the 2 GB of one file, or something the runtime does not have
        raise InputError(f"The model cannot be used as one ONNX file: {_first(error)}.") from error


def _first(error: Exception) -> str:
    """The beginning of what an error says, on one line."""
    return " ".join(str(error).split())[:160].rstrip(".")


def _fix_positions(vit: ViT, size: int) -> None:
    """Resize the position embedding once and for all, by torch: runtimes differ in how they interpolate."""
    grid = size // vit.architecture.patch
    with torch.no_grad():
        vit.pos_embed = nn.Parameter(vit.positions(size, size).clone(), requires_grad=False)
    vit.architecture = replace(vit.architecture, grid=grid)


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter's remarks are for those who work on it."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _inputs(model: Classifier) -> tuple[np.ndarray, int]:
    """200 inputs of the file in random order, and how many of them are training rows: half, or fewer if there are fewer."""
    rng = np.random.default_rng([model.facts["seed"], 61])
    real = _training_rows(model, rng)
    count = CHECKED - len(real)
    if model.takes_images:
        size = model.encoder.image_size
        chance = rng.integers(0, 256, (count, size, size, 3), dtype=np.uint8)
    else:
        scale = 10 ** rng.uniform(-1, 1, (count, 1))
        chance = (rng.normal(size=(count, model.encoder.trunk_shape[0])) * scale).astype(np.float32)
    return rng.permutation(np.concatenate([chance, real]) if real else chance), len(real)


def _training_rows(model: Classifier, rng: np.random.Generator) -> list[np.ndarray]:
    """Some of the run's own pictures or embeddings; none where they cannot be had, as with a `model` folder alone."""
    from rowssl.data.problem import load_problem
    from rowssl.runs.run import Run

    if model.source is None:
        return []
    try:
        run = model.source if isinstance(model.source, Run) else Run.load(model.source)
        whole = model.takes_images or run.problem.table.embeddings is not None
        table = run.problem.table if whole else load_problem(run.data).table
    except InputError:
        return []
    rows = rng.permutation(len(table))[: CHECKED // 2]
    if not model.takes_images:
        width = model.encoder.trunk_shape[0]
        if table.embeddings is None or table.embeddings.shape[1] != width:
            return []
        return [np.asarray(table.embeddings[row], dtype=np.float32) for row in rows]
    if not table.has_images:
        return []
    views = []
    for row in rows:
        try:
            views.append(model.clean_view(table.image(int(row))))
        except ImageError:  # gone since
            continue
    return views


@torch.no_grad()
def _compare(model: Classifier, session: Any, inputs: np.ndarray) -> None:
    """An InputError unless file and model say the same of these rows."""
    found = session.run(list(OUTPUTS), {session.get_inputs()[0].name: inputs})
    x = model.trunk_of_views(inputs) if model.takes_images else torch.from_numpy(inputs)
    scores, label, distance = (part.cpu().numpy() for part in model.network.answer(x.to(model.device)))
    if found[0].shape != scores.shape or not np.array_equal(found[1], label):
        wrong = "another class"
    elif not np.abs(found[0] - scores).max() <= SCORES:  # nan is wrong too
        wrong = f"scores that differ by {np.abs(found[0] - scores).max():.1e}"
    elif not (np.abs(found[2] - distance) <= DISTANCES * np.maximum(distance, 1)).all():
        wrong = "another distance"
    else:
        return
    raise InputError(f"The exported file gives {wrong} where the model is asked the same, so it was not written.")
