"""The ViT: published names and shapes, numbers against a naive forward, trunk and tail against the whole."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rowssl.encoders.vit import Architecture, LastBlocks, ViT, split_vit, vit_architecture
from rowssl.encoders.weights import PUBLISHED

TINY = Architecture(patch=8, dim=64, depth=3, heads=4, hidden=96, grid=4)
TINY_V2 = Architecture(
    patch=8,
    dim=64,
    depth=3,
    heads=4,
    hidden=96,
    grid=4,
    layer_scale=True,
    mask_token=True,
    registers=2,
    position_offset=0.0,
    position_antialias=True,
)

# name: width, depth, heads, patch, positions (with CLS), DINOv2?, registers
FACTS = {
    "dino_vits16": (384, 12, 6, 16, 197, False, 0),
    "dino_vits8": (384, 12, 6, 8, 785, False, 0),
    "dino_vitb16": (768, 12, 12, 16, 197, False, 0),
    "dino_vitb8": (768, 12, 12, 8, 785, False, 0),
    "dinov2_vits14": (384, 12, 6, 14, 1370, True, 0),
    "dinov2_vitb14": (768, 12, 12, 14, 1370, True, 0),
    "dinov2_vitl14": (1024, 24, 16, 14, 1370, True, 0),
    "dinov2_vits14_reg": (384, 12, 6, 14, 1370, True, 4),
    "dinov2_vitb14_reg": (768, 12, 12, 14, 1370, True, 4),
    "dinov2_vitl14_reg": (1024, 24, 16, 14, 1370, True, 4),
}


def published_shapes(dim: int, depth: int, patch: int, positions: int, second: bool, registers: int) -> dict:
    """Name -> shape of every tensor in a published checkpoint, written out."""
    shapes = {
        "cls_token": (1, 1, dim),
        "pos_embed": (1, positions, dim),
        "patch_embed.proj.weight": (dim, 3, patch, patch),
        "patch_embed.proj.bias": (dim,),
        "norm.weight": (dim,),
        "norm.bias": (dim,),
    }
    if second:
        shapes["mask_token"] = (1, dim)
    if registers:
        shapes["register_tokens"] = (1, registers, dim)
    for i in range(depth):
        block = {
            "norm1.weight": (dim,),
            "norm1.bias": (dim,),
            "attn.qkv.weight": (3 * dim, dim),
            "attn.qkv.bias": (3 * dim,),
            "attn.proj.weight": (dim, dim),
            "attn.proj.bias": (dim,),
            "norm2.weight": (dim,),
            "norm2.bias": (dim,),
            "mlp.fc1.weight": (4 * dim, dim),
            "mlp.fc1.bias": (4 * dim,),
            "mlp.fc2.weight": (dim, 4 * dim),
            "mlp.fc2.bias": (dim,),
        }
        if second:
            block |= {"ls1.gamma": (dim,), "ls2.gamma": (dim,)}
        shapes |= {f"blocks.{i}.{name}": shape for name, shape in block.items()}
    return shapes


def random_vit(architecture: Architecture, seed: int = 0) -> ViT:
    generator = torch.Generator().manual_seed(seed)
    vit = ViT(architecture)
    for parameter in vit.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return vit.eval()


def random_pixels(size: int = 32, batch: int = 3, seed: int = 1) -> Tensor:
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(seed))


def naive_forward(vit: ViT, pixels: Tensor, positions: Tensor) -> Tensor:
    """CLS after the final norm with loops over images, patches and heads, in float64, from the state dictionary."""
    w = {name: value.detach().double() for name, value in vit.state_dict().items()}
    a = vit.architecture

    def norm(x: Tensor, name: str) -> Tensor:
        x = x - x.mean(-1, keepdim=True)
        return x / torch.sqrt((x**2).mean(-1, keepdim=True) + 1e-6) * w[f"{name}.weight"] + w[f"{name}.bias"]

    rows = []
    for image in pixels.double():
        patches = []
        for i in range(image.shape[1] // a.patch):
            for j in range(image.shape[2] // a.patch):
                cut = image[:, i * a.patch : (i + 1) * a.patch, j * a.patch : (j + 1) * a.patch]
                kernel = w["patch_embed.proj.weight"]
                patches.append((kernel * cut).sum((1, 2, 3)) + w["patch_embed.proj.bias"])
        x = torch.stack([w["cls_token"][0, 0], *patches]) + positions[0].double()
        if a.registers:
            x = torch.cat([x[:1], w["register_tokens"][0], x[1:]])
        for n in range(a.depth):
            b = f"blocks.{n}"
            qkv = norm(x, f"{b}.norm1") @ w[f"{b}.attn.qkv.weight"].T + w[f"{b}.attn.qkv.bias"]
            q, k, v = qkv.split(a.dim, dim=1)
            heads = []
            width = a.dim // a.heads
            for h in range(a.heads):
                s = slice(h * width, (h + 1) * width)
                score = q[:, s] @ k[:, s].T / math.sqrt(width)
                weight = torch.exp(score - score.max(1, keepdim=True).values)
                heads.append(weight / weight.sum(1, keepdim=True) @ v[:, s])
            mixed = torch.cat(heads, 1) @ w[f"{b}.attn.proj.weight"].T + w[f"{b}.attn.proj.bias"]
            x = x + mixed * w.get(f"{b}.ls1.gamma", torch.ones(1))
            hidden = norm(x, f"{b}.norm2") @ w[f"{b}.mlp.fc1.weight"].T + w[f"{b}.mlp.fc1.bias"]
            hidden = hidden * 0.5 * (1 + torch.erf(hidden / math.sqrt(2)))
            x = x + (hidden @ w[f"{b}.mlp.fc2.weight"].T + w[f"{b}.mlp.fc2.bias"]) * w.get(
                f"{b}.ls2.gamma", torch.ones(1)
            )
        rows.append(norm(x, "norm")[0])
    return torch.stack(rows)


def test_every_published_encoder_has_facts() -> None:
    assert PUBLISHED.keys() == FACTS.keys()


@pytest.mark.parametrize("name", FACTS)
def test_names_and_shapes_are_those_of_the_published_checkpoints(name: str) -> None:
    dim, depth, heads, patch, positions, second, registers = FACTS[name]
    architecture = PUBLISHED[name].architecture
    assert architecture.heads == heads
    assert architecture.position_antialias == bool(registers)
    with torch.device("meta"):
        vit = ViT(architecture)
    found = {key: tuple(value.shape) for key, value in vit.state_dict().items()}
    assert found == published_shapes(dim, depth, patch, positions, second, registers)
    assert all(norm.eps == 1e-6 for norm in vit.modules() if isinstance(norm, nn.LayerNorm))


def test_known_parameter_counts() -> None:
    counts = {"s": 21_665_664, "b": 85_798_656}  # of DINO's ViT-S/16 and ViT-B/16 without a head
    for size, count in counts.items():
        with torch.device("meta"):
            vit = ViT(vit_architecture(size, 16))
        assert sum(p.numel() for p in vit.parameters()) == count


@pytest.mark.parametrize("architecture", [TINY, TINY_V2], ids=["dino", "dinov2"])
def test_forward_is_the_naive_one(architecture: Architecture) -> None:
    vit = random_vit(architecture)
    pixels = random_pixels()
    expected = naive_forward(vit, pixels, vit.pos_embed)
    assert (vit(pixels).double() - expected).abs().max() <= 1e-5


@pytest.mark.parametrize("architecture", [TINY, TINY_V2], ids=["dino", "dinov2"])
@pytest.mark.parametrize(("height", "width"), [(48, 48), (24, 40)])
def test_positions_resize_for_other_resolutions(architecture: Architecture, height: int, width: int) -> None:
    vit = random_vit(architecture)
    rows, columns = height // 8, width // 8
    grid = vit.pos_embed[:, 1:].reshape(1, 4, 4, 64).permute(0, 3, 1, 2)
    if architecture.registers:
        resized = F.interpolate(grid, size=(rows, columns), mode="bicubic", antialias=True)
    else:  # DINO passes a scale factor with 0.1 added to the number of patches
        resized = F.interpolate(grid, scale_factor=((rows + 0.1) / 4, (columns + 0.1) / 4), mode="bicubic")
    expected = torch.cat([vit.pos_embed[:, :1], resized.permute(0, 2, 3, 1).reshape(1, -1, 64)], dim=1)
    assert expected.shape[1] == 1 + rows * columns
    torch.testing.assert_close(vit.positions(height, width), expected, rtol=0, atol=1e-6)
    pixels = random_pixels(48)[:, :, :height, :width]
    assert (vit(pixels).double() - naive_forward(vit, pixels, expected)).abs().max() <= 1e-5


def test_a_scale_with_offset_never_loses_a_row() -> None:
    vit = random_vit(Architecture(patch=2, dim=64, depth=1, heads=1, hidden=8, grid=7))
    for side in range(1, 40):
        assert vit.positions(2 * side, 2 * side).shape[1] == 1 + side * side


@pytest.mark.parametrize("architecture", [TINY, TINY_V2], ids=["dino", "dinov2"])
@pytest.mark.parametrize("last", [1, 2, 3])
def test_trunk_and_tail_give_the_dense_result(architecture: Architecture, last: int) -> None:
    vit = random_vit(architecture)
    pixels = random_pixels()
    dense = vit(pixels)
    tokens = vit.trunk(pixels, 3 - last)
    trunk, tail = split_vit(copy.deepcopy(vit), last)
    assert isinstance(tail, LastBlocks)
    assert tail.out_dim == 64
    torch.testing.assert_close(trunk(pixels), tokens, rtol=0, atol=0)
    assert tokens.shape == (3, 17 + architecture.registers, 64)
    assert (tail(tokens) - dense).abs().max() <= 1e-6
    assert len(trunk.vit.blocks) == 3 - last
    assert not any(name.startswith("vit.norm") for name, _ in trunk.named_parameters())


def test_gradients_of_the_cls_only_block_are_the_dense_ones() -> None:
    vit = random_vit(TINY_V2)
    pixels = random_pixels()
    vit(pixels).square().sum().backward()
    dense = {name: p.grad for name, p in vit.blocks[-1].named_parameters()}
    vit_copy = random_vit(TINY_V2)
    trunk, tail = split_vit(vit_copy, 1)
    tail(trunk(pixels).detach()).square().sum().backward()
    for name, parameter in tail.blocks[0].named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, dense[name], rtol=1e-4, atol=1e-4)
    assert all(p.grad is None and not p.requires_grad for p in tail.norm.parameters())


def test_a_row_never_depends_on_its_batch() -> None:
    trunk, tail = split_vit(random_vit(TINY).train(), 2)
    pixels = random_pixels(batch=4)
    together = tail(trunk(pixels))
    alone = torch.cat([tail(trunk(row[None])) for row in pixels])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)


@pytest.mark.parametrize("batch", [1, 4, 5, 11])
def test_a_trunk_takes_a_few_pictures_at_a_time(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    vit, pixels = random_vit(TINY), random_pixels(batch=batch)
    whole = vit.trunk(pixels, 2)
    trunk, _ = split_vit(vit, 1)
    sizes: list[int] = []
    trunk.vit.blocks[0].register_forward_hook(lambda _, inputs, __: sizes.append(len(inputs[0])))
    monkeypatch.setattr("rowssl.encoders.vit.TOKENS", 4 * 16)  # pictures of 16 patches
    torch.testing.assert_close(trunk(pixels), whole, rtol=0, atol=1e-6)
    assert sizes == [4] * (batch // 4) + [batch % 4] * (batch % 4 > 0)
    monkeypatch.setattr("rowssl.encoders.vit.TOKENS", 1)  # a picture is never cut
    sizes.clear()
    torch.testing.assert_close(trunk(pixels), whole, rtol=0, atol=1e-5)
    assert sizes == [1] * batch


@pytest.mark.parametrize("last", [0, 4])
def test_impossible_splits_are_refused(last: int) -> None:
    with pytest.raises(ValueError, match="of 3"):
        split_vit(random_vit(TINY), last)
