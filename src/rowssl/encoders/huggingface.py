"""Encoders from Hugging Face folders: ResNet, ConvNeXt, ViT, DINOv2 and v3, CLIP's vision tower, cut in two.

Only safetensors are read, no code from a repository is ever run, and a folder on disk needs no network. A folder may be
untrusted input: no network is built that is larger than the weights there.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval
from torch.overrides import TorchFunctionMode

from rowssl.core.errors import InputError
from rowssl.core.files import LARGEST_CONFIG, read_json, read_plain
from rowssl.encoders.base import IMAGENET_MEAN, IMAGENET_STD, Parts, Preprocessing, check_size, parse_tail, refuse
from rowssl.encoders.resnet import load_resnet
from rowssl.encoders.tails import Pool, StageTail
from rowssl.encoders.vit import Block, LastBlocks, in_parts
from rowssl.encoders.weights import DEEPEST, check_values, hub_answers, is_whole, one_line, stored_sizes, verify

# Supported kinds; every one can have an adapter, the first a `stage` tail, the second (not DINOv3) a `blocks` tail.
NAMES = {"hf:": "a model of huggingface.co by its name, or a folder that holds one"}
CONVOLUTIONAL = {"resnet", "convnext", "convnextv2"}
TRANSFORMERS = {"vit", "dinov2", "dinov2_with_registers", "dinov3_vit", "clip", "clip_vision_model"}
LARGEST_SIDE = 4096  # pixels
LARGEST = 2**18  # of the numbers in a config.json, where the words of a tokenizer are counted too
# Entries by which transformers would read other files than the ones that are looked at here.
ELSEWHERE = {"configuration_files", "transformers_weights"}
# How the layers of these transformers name their parts, in old and new releases of the package -> names of `Block`.
RENAMES = [
    (r"(norm1|layernorm_before|layer_norm1)\.", "norm1."),
    (r"(norm2|layernorm_after|layer_norm2)\.", "norm2."),
    (r"(attention\.attention\.query|attention\.q_proj|self_attn\.q_proj)\.", "query."),
    (r"(attention\.attention\.key|attention\.k_proj|self_attn\.k_proj)\.", "key."),
    (r"(attention\.attention\.value|attention\.v_proj|self_attn\.v_proj)\.", "value."),
    (r"(attention\.output\.dense|attention\.o_proj|self_attn\.out_proj)\.", "attn.proj."),
    (r"(intermediate\.dense|mlp\.fc1)\.", "mlp.fc1."),
    (r"(output\.dense|mlp\.fc2)\.", "mlp.fc2."),
    (r"layer_scale([12])\.lambda1", r"ls\1.gamma"),
]


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
    # The numbers may be untrusted input: what is made of them is allocated.
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


@contextlib.contextmanager
def _quiet(logging: Any) -> Iterator[None]:
    """Keep transformers from printing its own progress and reports."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def check_numbers(folder: Path) -> None:
    """An InputError unless a config.json holds numbers that an encoder could have: transformers counts up to some of them."""
    path = folder / "config.json"
    left = [("", read_json(path, LARGEST_CONFIG, links=True))]
    while left:
        name, value = left.pop()
        if isinstance(value, dict):
            left += value.items()
        elif isinstance(value, list):
            left += ((name, one) for one in value)
        if name in ELSEWHERE or (type(value) is int and abs(value) > LARGEST):
            raise InputError(f"{path} has a {one_line(name)} that no encoder has")


class _ReadableSteps(TorchFunctionMode):
    """Keeps torch.linspace off the device "meta": older releases of transformers read what it gives them while they build."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        device = {"device": "cpu"} if func is torch.linspace else {}
        return func(*args, **{**device, **(kwargs or {})})


def check_room(folder: Path, settings: Any, build: Any) -> None:
    """An InputError unless the network that `build` makes of the settings has about as many weights as the folder holds."""
    stored = stored_sizes(folder)
    # Each kind has one of the two; a config.json may name both.
    depths = [*getattr(settings, "depths", ()), getattr(settings, "num_hidden_layers", 0)]
    if not all(is_whole(depth, 0, DEEPEST) for depth in depths) or not 1 <= sum(depths) <= min(len(stored), DEEPEST):
        raise InputError(f"{folder} cannot be loaded as an encoder: config.json asks for more layers than there are")
    if not is_whole(getattr(settings, "num_attention_heads", 1), 1, LARGEST):
        raise InputError(
            f"{folder} cannot be loaded as an encoder: config.json does not say what num_attention_heads is"
        )
    with torch.device("meta"), _ReadableSteps():  # nothing is drawn, nothing allocated
        asked = sum(value.numel() for value in build(settings).parameters())
    held = sum(stored.values())
    if asked > 2 * held:  # a pooler may be lacking, and which other weights do is reported once the rest is loaded
        raise InputError(
            f"{folder} cannot be loaded as an encoder: config.json asks for {asked} weights where its files hold {held}"
        )


def load_model(folder: Path, kind: str) -> nn.Module:
    """The model of a folder in float32 and evaluation mode, with every weight it uses read from safetensors."""
    try:
        import transformers
    except ImportError:
        raise InputError(f"{folder} needs a package: pip install 'rowssl[hf]'") from None
    modern = tuple(int(part) for part in transformers.__version__.split(".")[:2]) >= (4, 56)
    automatic = kind != "clip"
    factory = transformers.AutoModel if automatic else transformers.CLIPVisionModel
    check_numbers(folder)
    try:
        # The initial weights of parts that a checkpoint lacks are drawn from the global state: put it back.
        with torch.random.fork_rng(devices=[]), _quiet(transformers.utils.logging):
            local = {"local_files_only": True, **({"trust_remote_code": False} if automatic else {})}
            configuration = transformers.AutoConfig if automatic else transformers.CLIPVisionConfig
            settings = configuration.from_pretrained(str(folder), **local)
            check_room(folder, settings, factory.from_config if automatic else factory)
            options = {"dtype" if modern else "torch_dtype": torch.float32, "output_loading_info": True, **local}
            model, report = factory.from_pretrained(str(folder), config=settings, use_safetensors=True, **options)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{folder} cannot be loaded as an encoder: {one_line(error)}") from None
    missing = [str(name) for name in report["missing_keys"] if not str(name).startswith("pooler.")]
    missing += [str(entry) for entry in report.get("mismatched_keys", ())]
    if missing:
        raise InputError(f"{folder} lacks weights of its own model, `{sorted(missing)[0]}` among them")
    if isinstance(getattr(getattr(model, "pooler", None), "dense", None), nn.Linear):
        model.pooler = None  # ViT's extra layer on CLS: often random, never used here
    check_values(model.state_dict(), folder)
    return model.eval()


class ConvTrunk(nn.Module):
    """Stem and stages of a convolutional network: pixels -> feature map (B, C, H, W), or pooled (B, C) with a pool."""

    def __init__(self, stem: nn.Module, stages: list[nn.Module], pool: Pool | None) -> None:
        super().__init__()
        self.stem = stem
        self.stages = nn.ModuleList(stages)
        self.pool = pool

    def fold(self) -> None:
        """Fold every batch normalisation into its convolution: the same affine map of a pixel, in one pass less."""
        for module in list(self.modules()):
            norm = getattr(module, "normalization", None)
            if isinstance(norm, nn.BatchNorm2d):
                module.convolution = fuse_conv_bn_eval(module.convolution, norm)  # type: ignore[type-var]
                module.normalization = nn.Identity()
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.stem(pixels.contiguous(memory_format=torch.channels_last))
        for stage in self.stages:
            x = stage(x)
        return x.contiguous() if self.pool is None else self.pool(x)


class TransformerTrunk(nn.Module):
    """A Hugging Face transformer: pixels -> all tokens (B, T, d), or the final CLS feature (B, d)."""

    def __init__(self, model: nn.Module, *, tokens: bool) -> None:
        super().__init__()
        self.model = model
        self.tokens = tokens
        self.pooled = "clip" in str(getattr(model.config, "model_type", ""))  # CLIP norms its pooled CLS alone
        self.patch: int = getattr(model.config, "patch_size", 16)
        known = inspect.signature(model.forward).parameters
        self.options = {"interpolate_pos_encoding": True} if "interpolate_pos_encoding" in known else {}

    def forward(self, pixels: Tensor) -> Tensor:
        return in_parts(self._pass, pixels, self.patch)

    def _pass(self, pixels: Tensor) -> Tensor:
        output = self.model(pixel_values=pixels, **self.options)
        if self.tokens:
            return output.last_hidden_state
        return output.pooler_output if self.pooled else output.last_hidden_state[:, 0]


def block_of(layer: nn.Module, heads: int, norm_eps: float, activation: str) -> Block:
    """A `Block` that computes what one layer of a Hugging Face transformer does; KeyError when it cannot."""
    state: dict[str, Tensor] = {}
    for name, value in layer.state_dict().items():
        for pattern, new in RENAMES:
            name, changed = re.subn(f"^{pattern}", new, name)
            if changed:
                break
        state[name] = value
    dim = state["query.weight"].shape[1]
    for part in ("weight", "bias"):
        blank = torch.zeros(dim)  # a projection without bias has a bias of zero
        three = [state.pop(f"{name}.{part}", blank) for name in ("query", "key", "value")]
        state[f"attn.qkv.{part}"] = torch.cat(three)
    quick = {"gelu": False, "quick_gelu": True}[activation]
    hidden = state["mlp.fc1.weight"].shape[0]
    block = Block(dim, heads, hidden, layer_scale="ls1.gamma" in state, norm_eps=norm_eps, quick_gelu=quick)
    if block.state_dict().keys() != state.keys():
        raise KeyError(sorted(block.state_dict().keys() ^ state.keys())[0])
    block.load_state_dict(state)
    return block


def cut_blocks(model: Any, last: int) -> tuple[TransformerTrunk, LastBlocks]:
    """Cut a transformer before its `last` final layers, which become trainable `Block`s; KeyError when they cannot."""
    config = model.config
    depth = config.num_hidden_layers
    if config.model_type == "dinov3_vit":
        raise KeyError("rotary positions")
    if not 1 <= last <= depth:
        raise InputError(f"--tail blocks:{last} asks for more blocks than the {depth} this encoder has")
    lists = {n: m for n, m in model.named_modules() if isinstance(m, nn.ModuleList) and len(m) == depth}
    path, layers = next((n, m) for n, m in lists.items() if n.rsplit(".", 1)[-1] in {"layer", "layers"})
    norms = [n for n, _ in model.named_modules() if n.rsplit(".", 1)[-1] in {"layernorm", "post_layernorm"}]
    with torch.random.fork_rng(devices=[]):
        blocks = [
            block_of(layer, config.num_attention_heads, config.layer_norm_eps, config.hidden_act)
            for layer in layers[depth - last :]
        ]
    norm = model.get_submodule(norms[-1])
    for name, replacement in ((path, layers[: depth - last]), (norms[-1], nn.Identity())):
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, replacement)
    return TransformerTrunk(model, tokens=True), LastBlocks(blocks, norm)


def cut_stage(model: Any, kind: str, *, train_stage: bool) -> tuple[ConvTrunk, StageTail | None]:
    """Cut a convolutional network before its last stage, or after its pooling (then there is no tail yet)."""
    stem = model.embedder if kind == "resnet" else model.embeddings
    stages = list(model.encoder.stages)
    pool = Pool(None if kind == "resnet" else model.layernorm)
    if not train_stage:
        return ConvTrunk(stem, stages, pool), None
    return ConvTrunk(stem, stages[:-1], None), StageTail(stages[-1], pool, model.config.hidden_sizes[-1])


def open(spec: str, tail: str, size: int | None, **_: object) -> Parts:
    """Load the model of `hf:<name or folder>` or of a folder and cut it as `tail` asks."""
    wanted, count = parse_tail(tail)
    folder = folder_of(spec.removeprefix("hf:"))
    config = read_config(folder)
    kind = config["model_type"]
    recipe = read_preprocessing(folder, config, size)
    if kind in CONVOLUTIONAL:
        if wanted == "blocks":
            raise refuse(spec, tail, "stage or adapter")
        train_stage = wanted == "stage"
        model = (load_resnet(folder, config) if kind == "resnet" else None) or load_model(folder, kind)
        trunk, stage = cut_stage(model, kind, train_stage=train_stage)
        return Parts(trunk, stage, "map" if train_stage else "pooled", recipe, config)
    if wanted == "stage":
        raise refuse(spec, tail, "blocks:K or adapter")
    patch = config.get("patch_size")
    if patch is not None and not is_whole(patch, 1, LARGEST):
        raise InputError(f"{folder} cannot be loaded as an encoder: config.json does not say what patch_size is")
    check_size(recipe.image_size, patch, spec)
    model, count = load_model(folder, kind), count or 1
    if wanted in {"auto", "blocks"}:
        try:
            return Parts(*cut_blocks(model, count), f"tokens before the last {count} blocks", recipe, config)
        except KeyError:  # a kind of layer that `Block` does not compute
            if wanted == "blocks":
                raise refuse(spec, tail, "adapter (its layers are of another kind)") from None
    return Parts(TransformerTrunk(model, tokens=False), None, "pooled", recipe, config)
