"""Prompts: learnable vectors beside the input of a tail, some of which give a second, auxiliary feature.

A prompted tail is a tail: it treats a row alone and can be deep-copied. `forward` gives z; `with_prompts` gives z and the
mean output of the supervised prompts.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rowssl.core.errors import InputError
from rowssl.encoders.standardised import Standardised
from rowssl.encoders.vit import Block, LastBlocks

STANDARD_DEVIATION = 0.02  # of the initial prompts


class PromptedBlocks(nn.Module):
    """Tokens (B, T, d) -> CLS (B, d) with prompts beside CLS in every block, replaced from block to block."""

    def __init__(self, tail: LastBlocks, n_prompts: int, n_supervised: int, trained_blocks: int, seed: int) -> None:
        super().__init__()
        self.tail, self.out_dim, self.n_supervised = tail, tail.out_dim, n_supervised
        self.prompts = _prompts(len(tail.blocks), n_prompts, tail.out_dim, seed=seed)
        if trained_blocks:
            for block in list(tail.blocks)[:-trained_blocks]:
                block.requires_grad_(False)

    def _outputs(self, tokens: Tensor, wanted: int) -> Tensor:
        """The first `wanted` tokens after the last block and the norm: CLS, then prompts. (B, wanted, d)."""
        *early, last = (block for block in self.tail.blocks if isinstance(block, Block))
        first = 1 + self.prompts.shape[1]
        cls, rest = tokens[:, :1], tokens[:, 1:]
        for block, prompts in zip(early, self.prompts, strict=False):
            tokens = block(torch.cat([cls, prompts.expand(len(tokens), -1, -1), rest], dim=1))
            cls, rest = tokens[:, :1], tokens[:, first:]
        tokens = torch.cat([cls, self.prompts[-1].expand(len(tokens), -1, -1), rest], dim=1)
        return self.tail.norm(last.cls_only(tokens, wanted))

    def forward(self, tokens: Tensor) -> Tensor:
        return self._outputs(tokens, 1)[:, 0]

    def with_prompts(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """z and the mean of the supervised prompts' outputs, each (B, d)."""
        outputs = self._outputs(tokens, 1 + self.n_supervised)
        return outputs[:, 0], outputs[:, 1:].mean(1)


class PromptedInput(Standardised):
    """Prompts for a tail without tokens: they are added to its input, a vector (B, c) or a map (B, c, H, W).

    There is no sequence that a prompt could join, so a row draws on the prompts by a gate: with y the standardised (and, for
    a map, pooled) input, z = tail(x + sum_k a_k p_k), a = softmax_k(y . p_k / sqrt(c)). The output of a supervised prompt
    is tail(x + p_k). Prompts are in units of the input's standard deviation.
    """

    def __init__(self, tail: nn.Module, width: int, n_prompts: int, n_supervised: int, seed: int) -> None:
        super().__init__(width)
        self.tail, self.out_dim, self.n_supervised = tail, int(tail.out_dim), n_supervised  # type: ignore[arg-type]
        self.prompts = _prompts(n_prompts, width, seed=seed)

    @torch.no_grad()
    def calibrate(self, x: Tensor) -> None:
        """Set the unit of the prompts, and whatever the tail itself sets, from a sample of trunk outputs."""
        self.fit_standard(_pooled(x))
        inner = getattr(self.tail, "calibrate", None)
        if inner is not None:
            inner(x)

    def _moved(self, x: Tensor, shift: Tensor) -> Tensor:
        """x plus a vector of standardised units, (B, c, ...) and (B or 1, c)."""
        return x + (shift / self.gain).view(*shift.shape, *(1,) * (x.dim() - 2))

    def _prompted(self, x: Tensor) -> Tensor:
        gate = torch.softmax(self.standard(_pooled(x)) @ self.prompts.T / self.prompts.shape[1] ** 0.5, dim=1)
        return self._moved(x, gate @ self.prompts)

    def forward(self, x: Tensor) -> Tensor:
        return self.tail(self._prompted(x))

    def with_prompts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """z and the mean of the supervised prompts' outputs, each (B, out_dim); the tail runs on 1 + n_supervised inputs."""
        supervised = [self._moved(x, prompt[None]) for prompt in self.prompts[: self.n_supervised]]
        z, *outputs = self.tail(torch.cat([self._prompted(x), *supervised])).chunk(1 + self.n_supervised)
        return z, torch.stack(outputs).mean(0)


def prompted(
    tail: nn.Module, *, n_prompts: int = 5, n_supervised: int = 2, trained_blocks: int = 0, seed: int = 0
) -> PromptedBlocks | PromptedInput:
    """A tail with prompts.

    Parameters
    ----------
    n_prompts, n_supervised
        Prompts (in every block, for a tail of blocks), and how many of them feed the auxiliary feature.
    trained_blocks
        Of a tail of blocks only the last so many train, beside the prompts of all; 0: all blocks.
    """
    if not 1 <= n_supervised <= n_prompts:
        raise InputError(f"Option n_supervised must lie between 1 and n_prompts ({n_prompts}), not be {n_supervised}.")
    if isinstance(tail, LastBlocks):
        return PromptedBlocks(tail, n_prompts, n_supervised, trained_blocks, seed)
    convolution = next((part for part in tail.modules() if isinstance(part, nn.Conv2d)), None)
    width = int(tail.out_dim) if convolution is None else convolution.in_channels  # type: ignore[arg-type]
    return PromptedInput(tail, width, n_prompts, n_supervised, seed)


def _pooled(x: Tensor) -> Tensor:
    return x.flatten(2).mean(2) if x.dim() > 2 else x


def _prompts(*shape: int, seed: int) -> nn.Parameter:
    generator = torch.Generator().manual_seed(seed)
    return nn.Parameter(nn.init.trunc_normal_(torch.empty(shape), std=STANDARD_DEVIATION, generator=generator))
