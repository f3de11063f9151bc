"""Our ResNet against that of `transformers`: same files, same bits, none of its imports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from rowssl.core.errors import InputError
from rowssl.encoders import huggingface
from rowssl.encoders.resnet import DEFAULTS, ResNet, load_resnet

transformers = pytest.importorskip("transformers")

SMALL: dict[str, Any] = {"embedding_size": 8, "hidden_sizes": [16, 24], "depths": [1, 2]}
VARIANTS = {
    "bottleneck": {},
    "early": {"downsample_in_bottleneck": True},
    "first": {"downsample_in_first_stage": True},
    "basic": {"layer_type": "basic"},
}


def saved(folder: Path, *, classifier: bool = False, **changes: Any) -> Any:
    """A random model of transformers, with random statistics, in a folder."""
    config = transformers.ResNetConfig(**{**SMALL, **changes})
    torch.manual_seed(5)
    model = (transformers.ResNetForImageClassification if classifier else transformers.ResNetModel)(config).eval()
    for name, value in model.state_dict().items():
        if "running" in name or name.endswith(("weight", "bias")):
            value.add_(torch.rand_like(value) * 0.1)
    model.save_pretrained(folder)
    return model.resnet if classifier else model


def ours(folder: Path) -> ResNet:
    found = load_resnet(folder, json.loads((folder / "config.json").read_text()))
    assert found is not None
    return found


@torch.no_grad()
def same_bits(one: ResNet, theirs: Any) -> bool:
    pixels = torch.randn(3, 3, 40, 40, generator=torch.Generator().manual_seed(1))
    x = one.embedder(pixels)
    for stage in one.encoder.stages:
        x = stage(x)
    return torch.equal(x, theirs(pixels).last_hidden_state)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_same_bits(variant: str, tmp_path: Path) -> None:
    theirs = saved(tmp_path, **VARIANTS[variant])
    one = ours(tmp_path)
    assert same_bits(one, theirs)
    assert one.state_dict().keys() == theirs.state_dict().keys()  # tails of earlier runs load
    assert not one.training


def test_a_classifier_half_precision_and_missing_counters(tmp_path: Path) -> None:
    theirs = saved(tmp_path, classifier=True).half().float()
    state = load_file(tmp_path / "model.safetensors")
    kept = {n: v.half() if v.is_floating_point() else v for n, v in state.items() if "num_batches" not in n}
    save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
    one = ours(tmp_path)
    assert all(p.dtype == torch.float32 for p in one.parameters())
    assert same_bits(one, theirs)


def test_what_a_config_leaves_out_is_as_transformers_has_it() -> None:
    with torch.device("meta"):
        theirs = transformers.ResNetModel(transformers.ResNetConfig())
        one = ResNet(DEFAULTS)
    assert {n: v.shape for n, v in one.state_dict().items()} == {n: v.shape for n, v in theirs.state_dict().items()}


def test_other_activations_and_files_are_left_to_transformers(tmp_path: Path) -> None:
    saved(tmp_path, hidden_act="gelu")
    assert load_resnet(tmp_path, json.loads((tmp_path / "config.json").read_text())) is None
    assert huggingface.open(str(tmp_path), "adapter", 40).trunk is not None
    (tmp_path / "model.safetensors").unlink()
    assert load_resnet(tmp_path, {}) is None


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"depths": [1, 10**12]}, "cannot be loaded as an encoder"),
        ({"depths": "many"}, "cannot be loaded as an encoder"),
        ({"hidden_sizes": [16, -24]}, "cannot be loaded as an encoder"),
        ({"hidden_sizes": [16, 10**9]}, "does not say what hidden_sizes is"),
        ({"hidden_sizes": [16, 2**16]}, "lacks weights of its own model"),
        ({"hidden_sizes": [16, "x"]}, "cannot be loaded as an encoder"),
        ({"hidden_sizes": []}, "does not say what hidden_sizes is"),
        ({"depths": [-(10**9), 10**9 + 3]}, "does not say what depths is"),
        ({"depths": [0, 0]}, "does not say what depths is"),
        ({"depths": [1, 2, 1]}, "does not say what depths is"),
        ({"depths": {"a": 1}}, "does not say what depths is"),
        ({"embedding_size": True}, "does not say what embedding_size is"),
        ({"layer_type": []}, "does not say what layer_type is"),
        ({"downsample_in_bottleneck": "yes"}, "does not say what downsample_in_bottleneck is"),
        ({"depths": [2, 2]}, "lacks weights of its own model, `encoder.stages.0.layers.1"),
        ({"embedding_size": 9}, "lacks weights of its own model, `embedder"),
    ],
)
def test_a_config_that_its_weights_do_not_bear_out(change: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    saved(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(InputError, match=sentence):
        huggingface.open(str(tmp_path), "adapter", 40)


def test_counters_of_another_shape_do_no_harm(tmp_path: Path) -> None:
    theirs = saved(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    odd = {n: torch.zeros(2, 2, dtype=torch.int64) if "num_batches" in n else v for n, v in state.items()}
    save_file(odd, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert same_bits(ours(tmp_path), theirs)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    saved(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(InputError, match=r"model\.safetensors cannot be read as weights"):
        ours(tmp_path)


def test_transformers_is_not_imported(tmp_path: Path) -> None:
    saved(tmp_path)
    program = (
        "import sys; from rowssl.encoders.base import build_encoder; "
        "build_encoder(sys.argv[1], image_size=40); print('transformers' in sys.modules)"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "False"
