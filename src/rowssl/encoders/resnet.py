"""ResNet from a Hugging Face folder, without their package: importing it takes longer than importing PyTorch.

Layers and names are those of `transformers`' ResNetModel, so that its files, and tails saved by earlier runs, load as they are.
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from rowssl.core.errors import InputError
from rowssl.encoders.weights import DEEPEST, FILE, WIDEST, is_whole, read_state

# What ResNetConfig takes where a config.json is silent.
DEFAULTS: dict[str, Any] = {
    "embedding_size": 64,
    "hidden_sizes": [256, 512, 1024, 2048],
    "depths": [3, 4, 6, 3],
    "layer_type": "bottleneck",
    "hidden_act": "relu",
    "downsample_in_first_stage": False,
    "downsample_in_bottleneck": False,
}


class Convolution(nn.Module):
    """Convolution, batch normalisation and, unless a sum follows, ReLU."""

    def __init__(self, channels: int, out: int, kernel: int = 3, stride: int = 1, *, relu: bool = True) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(channels, out, kernel, stride, padding=kernel // 2, bias=False)
        self.normalization = nn.BatchNorm2d(out)
        self.activation = nn.ReLU() if relu else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.normalization(self.convolution(x)))


class Residual(nn.Module):
    """Two 3x3 convolutions, or a bottleneck of three, beside a shortcut."""

    def __init__(self, channels: int, out: int, stride: int, config: dict[str, Any]) -> None:
        super().__init__()
        same = channels == out and stride == 1
        self.shortcut = nn.Identity() if same else Convolution(channels, out, 1, stride, relu=False)
        if config["layer_type"] == "bottleneck":
            early = stride if config["downsample_in_bottleneck"] else 1
            self.layer = nn.Sequential(
                Convolution(channels, out // 4, 1, early),
                Convolution(out // 4, out // 4, 3, stride // early),
                Convolution(out // 4, out, 1, relu=False),
            )
        else:
            self.layer = nn.Sequential(Convolution(channels, out, 3, stride), Convolution(out, out, relu=False))
        self.activation = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.layer(x).add_(self.shortcut(x)))


class Stage(nn.Module):
    """Residual layers of one width, the first of which may halve the picture."""

    def __init__(self, channels: int, out: int, stride: int, depth: int, config: dict[str, Any]) -> None:
        super().__init__()
        more = [Residual(out, out, 1, config) for _ in range(depth - 1)]
        self.layers = nn.Sequential(Residual(channels, out, stride, config), *more)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class ResNet(nn.Module):
    """`embedder` and `encoder.stages`: the parts that `cut_stage` puts together."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        width, sizes = config["embedding_size"], config["hidden_sizes"]
        self.embedder = nn.Sequential(OrderedDict(embedder=Convolution(3, width, 7, 2), pooler=nn.MaxPool2d(3, 2, 1)))
        strides = [2 if config["downsample_in_first_stage"] else 1, *[2] * (len(sizes) - 1)]
        plan = zip([width, *sizes[:-1]], sizes, strides, config["depths"], strict=True)
        self.encoder = nn.Module()
        self.encoder.stages = nn.ModuleList(Stage(*one, config) for one in plan)
        self.config = SimpleNamespace(hidden_sizes=sizes)


def load_resnet(folder: Path, config: dict[str, Any]) -> ResNet | None:
    """The model of a folder in float32 and evaluation mode; None if only `transformers` can read it."""
    config = {**DEFAULTS, **config}
    if config["hidden_act"] != "relu" or not (folder / FILE).is_file():
        return None
    found = {name.removeprefix("resnet."): value for name, value in read_state(folder / FILE).items()}
    if wrong := _unusable(config, len(found)):
        raise InputError(f"{folder} cannot be loaded as an encoder: config.json does not say what {wrong} is")
    with torch.device("meta"):  # nothing is drawn, nothing allocated
        model = ResNet(config)
    wanted = model.state_dict()
    for name, value in wanted.items():
        if name.endswith("num_batches_tracked"):  # counts what a frozen network never sees, and is left out by some
            count = found.get(name)
            found[name] = count if count is not None and count.shape == () else torch.zeros((), dtype=torch.int64)
        elif name not in found or found[name].shape != value.shape:
            raise InputError(f"{folder} lacks weights of its own model, `{name}` among them")
    as_float = {
        name: found[name].float() if value.is_floating_point() else found[name] for name, value in wanted.items()
    }
    model.load_state_dict(as_float, assign=True)
    return model.eval()


def _unusable(config: dict[str, Any], tensors: int) -> str:
    """The first entry that cannot be one of a ResNet with so many tensors: nothing is built that the file could not fill."""
    sizes, depths = config["hidden_sizes"], config["depths"]
    fine = {
        "layer_type": config["layer_type"] in ("basic", "bottleneck"),
        "embedding_size": is_whole(config["embedding_size"], 1, WIDEST),
        "hidden_sizes": isinstance(sizes, list) and bool(sizes) and all(is_whole(size, 1, WIDEST) for size in sizes),
        "depths": isinstance(depths, list)
        and isinstance(sizes, list)
        and len(depths) == len(sizes)
        and all(is_whole(depth, 1, tensors) for depth in depths)
        and sum(depths) <= min(tensors, DEEPEST),
        **{name: isinstance(config[name], bool) for name in ("downsample_in_first_stage", "downsample_in_bottleneck")},
    }
    return next((name for name, usable in fine.items() if not usable), "")
