"""A vision transformer with the parameter names of DINO, split into a frozen trunk and a trainable tail.

The names and shapes are those of the published DINO and DINOv2 checkpoints, so these load strictly. Only the CLS token
is used downstream, which the last block exploits: see `Block.cls_only`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TOKENS = 1600  # that pass a trunk together on the CPU: their activations stay in its caches


@dataclass(frozen=True)
class Architecture:
    """The facts about a ViT that its weights alone do not (all) tell.

    `position_offset` and `position_antialias` say how the position embedding is resized: DINO, and DINOv2 without
    registers, add 0.1 to the target size before dividing; DINOv2 with registers gives the size itself and antialiases.
    """

    patch: int
    dim: int
    depth: int
    heads: int
    hidden: int  # width of the MLP inside a block
    grid: int  # patches along one side at the resolution of pretraining
    layer_scale: bool = False
    mask_token: bool = False  # in DINOv2's files; never used here
    registers: int = 0
    norm_eps: float = 1e-6
    position_offset: float = 0.1
    position_antialias: bool = False


def vit_architecture(size: str, patch: int, *, version: int = 1, registers: int = 0) -> Architecture:
    """The published architectures: size in {"s", "b", "l"}, version 1 (DINO, 224 px) or 2 (DINOv2, 518 px)."""
    dim, depth, heads = {"s": (384, 12, 6), "b": (768, 12, 12), "l": (1024, 24, 16)}[size]
    two = version == 2
    return Architecture(
        patch=patch,
        dim=dim,
        depth=depth,
        heads=heads,
        hidden=4 * dim,
        grid=(518 if two else 224) // patch,
        layer_scale=two,
        mask_token=two,
        registers=registers,
        position_offset=0.0 if registers else 0.1,
        position_antialias=registers > 0,
    )


class PatchEmbed(nn.Module):
    """Pixels (B, 3, H, W) -> patch tokens (B, HW/p^2, d)."""

    def __init__(self, patch: int, dim: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, dim, kernel_size=patch, stride=patch)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.proj(pixels).flatten(2).transpose(1, 2)


class Attention(nn.Module):
    """Multi-head self-attention with one joint projection, (B, T, d) -> (B, T, d)."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def _split(self, x: Tensor) -> Tensor:
        """(B, T, 3 d) -> (3, B, heads, T, d / heads)."""
        batch, tokens, _ = x.shape
        return x.view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self._split(self.qkv(x)).unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value)
        return self.proj(mixed.transpose(1, 2).flatten(2))

    def first_tokens(self, x: Tensor, gain: Tensor, shift: Tensor, queries: int = 1) -> Tensor:
        """`forward(gain * x + shift)[:, :queries]` without keys and values of the tokens: (B, T, d) -> (B, queries, d).

        Per head, q . (W_k x_t + b_k) = (W_k^T q) . x_t + a number that is the same for every t, which softmax ignores; and
        sum_t p_t (W_v x_t + b_v) = W_v (sum_t p_t x_t) + b_v. So W_k and W_v meet one vector for each query instead of T
        tokens, and `gain` and `shift` of the norm before go the same way: x needs no gradient.
        """
        (batch, _, dim), heads = x.shape, self.heads
        w_q, w_k, w_v = self.qkv.weight.split(dim)
        b_q, _, b_v = self.qkv.bias.split(dim)
        query = F.linear(x[:, :queries] * gain + shift, w_q, b_q).reshape(batch * queries, heads, -1)
        width = query.shape[2]
        asked = torch.einsum("nhe,hed->nhd", query * width**-0.5, w_k.view(heads, width, dim)) * gain
        share = F.softmax(asked.reshape(batch, queries * heads, dim) @ x.transpose(1, 2), dim=2)
        mean = (share @ x).reshape(batch * queries, heads, dim) * gain + shift
        value = torch.einsum("nhd,hed->nhe", mean, w_v.view(heads, width, dim)).reshape(batch, queries, dim)
        return self.proj(value + b_v)


class Mlp(nn.Module):
    """Two linear layers with an activation between them, GELU unless another is given."""

    def __init__(self, dim: int, hidden: int, *, quick_gelu: bool = False) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim)
        self.quick_gelu = quick_gelu  # CLIP's x * sigmoid(1.702 x)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x)
        return self.fc2(x * torch.sigmoid(1.702 * x) if self.quick_gelu else F.gelu(x))


class LayerScale(nn.Module):
    """A learned gain for each channel of a residual branch (DINOv2)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class Block(nn.Module):
    """One pre-norm transformer block, (B, T, d) -> (B, T, d); no dropout, no drop-path."""

    def __init__(
        self,
        dim: int,
        heads: int,
        hidden: int,
        *,
        layer_scale: bool = False,
        norm_eps: float = 1e-6,
        quick_gelu: bool = False,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=norm_eps)
        self.attn = Attention(dim, heads)
        self.ls1 = LayerScale(dim) if layer_scale else nn.Identity()
        self.norm2 = nn.LayerNorm(dim, eps=norm_eps)
        self.mlp = Mlp(dim, hidden, quick_gelu=quick_gelu)
        self.ls2 = LayerScale(dim) if layer_scale else nn.Identity()

    def _finish(self, x: Tensor, attended: Tensor) -> Tensor:
        x = x + self.ls1(attended)
        return x + self.ls2(self.mlp(self.norm2(x)))

    def forward(self, x: Tensor) -> Tensor:
        return self._finish(x, self.attn(self.norm1(x)))

    def cls_only(self, x: Tensor, queries: int = 1) -> Tensor:
        """`forward(x)[:, :queries]` at a hundredth of the work: no product of a d x d matrix with all tokens remains."""
        norm = self.norm1
        standard = F.layer_norm(x, norm.normalized_shape, eps=norm.eps)
        attended = self.attn.first_tokens(standard, norm.weight, norm.bias, queries)
        return self._finish(x[:, :queries], attended)


class ViT(nn.Module):
    """DINO's vision transformer: pixels (B, 3, H, W) -> the CLS token after the final norm (B, d).

    Parameters
    ----------
    architecture
        Sizes, as `vit_architecture` gives them for the published models.
    """

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        a = architecture
        self.architecture = a
        self.patch_embed = PatchEmbed(a.patch, a.dim)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, a.dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + a.grid**2, a.dim))
        if a.mask_token:
            self.mask_token = nn.Parameter(torch.zeros(1, a.dim))
        if a.registers:
            self.register_tokens = nn.Parameter(torch.zeros(1, a.registers, a.dim))
        self.blocks = nn.ModuleList(
            Block(a.dim, a.heads, a.hidden, layer_scale=a.layer_scale, norm_eps=a.norm_eps) for _ in range(a.depth)
        )
        self.norm = nn.LayerNorm(a.dim, eps=a.norm_eps)

    def positions(self, height: int, width: int) -> Tensor:
        """The position embedding (1, 1 + rows * columns, d) for an image of height x width pixels."""
        a = self.architecture
        rows, columns = height // a.patch, width // a.patch
        if (rows, columns) == (a.grid, a.grid):
            return self.pos_embed
        square = self.pos_embed[:, 1:].reshape(1, a.grid, a.grid, a.dim).permute(0, 3, 1, 2)
        if a.position_offset:
            # The offset keeps rounding from losing a row, and it shifts the sampling points a little; the published
            # features of DINO at other resolutions contain that shift, so it is kept.
            scale = [(side + a.position_offset) / a.grid for side in (rows, columns)]
            resized = F.interpolate(square, scale_factor=scale, mode="bicubic", antialias=a.position_antialias)
        else:
            resized = F.interpolate(square, size=(rows, columns), mode="bicubic", antialias=a.position_antialias)
        return torch.cat([self.pos_embed[:, :1], resized.flatten(2).transpose(1, 2)], dim=1)

    def embed(self, pixels: Tensor) -> Tensor:
        """Pixels (B, 3, H, W) -> the tokens that enter block 0 (B, T, d): CLS, registers if any, patches."""
        cls = self.cls_token.expand(pixels.shape[0], -1, -1)
        tokens = torch.cat([cls, self.patch_embed(pixels)], dim=1) + self.positions(*pixels.shape[-2:])
        if self.architecture.registers:  # registers have no position
            registers = self.register_tokens.expand(pixels.shape[0], -1, -1)
            tokens = torch.cat([tokens[:, :1], registers, tokens[:, 1:]], dim=1)
        return tokens

    def trunk(self, pixels: Tensor, n_blocks_frozen: int) -> Tensor:
        """Pixels (B, 3, H, W) -> the tokens after the first `n_blocks_frozen` blocks (B, T, d)."""
        tokens = self.embed(pixels)
        for block in self.blocks[:n_blocks_frozen]:
            tokens = block(tokens)
        return tokens

    def forward(self, pixels: Tensor) -> Tensor:
        return self.norm(self.trunk(pixels, len(self.blocks)))[:, 0]


def in_parts(trunk: Callable[[Tensor], Tensor], pixels: Tensor, patch: int) -> Tensor:
    """`trunk(pixels)`, on the CPU a few pictures at a time: the same values in less time and memory."""
    if pixels.device.type != "cpu" or torch.compiler.is_compiling():  # an exported graph takes any number of rows
        return trunk(pixels)
    _, _, height, width = pixels.shape
    parts = pixels.split(max(1, TOKENS * patch**2 // (height * width)))
    return torch.cat([trunk(part) for part in parts]) if len(parts) > 1 else trunk(pixels)


class TokenTrunk(nn.Module):
    """The first blocks of a ViT: pixels (B, 3, H, W) -> tokens (B, T, d). It keeps no last block and no final norm."""

    def __init__(self, vit: ViT, last: int) -> None:
        super().__init__()
        self.vit = vit
        vit.blocks = vit.blocks[: len(vit.blocks) - last]
        vit.norm = nn.Identity()  # type: ignore[assignment]

    def forward(self, pixels: Tensor) -> Tensor:
        depth, patch = len(self.vit.blocks), self.vit.architecture.patch
        return in_parts(lambda part: self.vit.trunk(part, depth), pixels, patch)


class LastBlocks(nn.Module):
    """Trainable tail: the last blocks of a transformer and its frozen final norm, tokens (B, T, d) -> CLS (B, d).

    All but the last block are dense; the last one does its work for CLS alone, with the same result.
    """

    def __init__(self, blocks: list[Block], norm: nn.LayerNorm) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm.requires_grad_(False)  # the paper trains block 11 and leaves the final norm as it is
        self.out_dim = norm.normalized_shape[0]

    def forward(self, tokens: Tensor) -> Tensor:
        for block in self.blocks[:-1]:
            tokens = block(tokens)
        last = self.blocks[-1]
        assert isinstance(last, Block)
        return self.norm(last.cls_only(tokens)[:, 0])


def split_vit(vit: ViT, last: int) -> tuple[TokenTrunk, LastBlocks]:
    """Cut a ViT before its `last` final blocks. The parts take the ViT's modules over: do not use it afterwards."""
    depth = len(vit.blocks)
    if not 1 <= last <= depth:
        raise ValueError(f"cannot train the last {last} blocks of {depth}")
    tail = LastBlocks([block for block in vit.blocks[depth - last :] if isinstance(block, Block)], vit.norm)
    return TokenTrunk(vit, last), tail


def square_side(count: int) -> int | None:
    """The side of a square of `count` patches, or None when it is no square."""
    side = math.isqrt(max(count, 0))
    return side if side > 0 and side * side == count else None
