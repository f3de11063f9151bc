"""Prompted tails: the sequence written out, and what every tail promises."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from rowssl.core.errors import InputError
from rowssl.encoders.convnet import ConvNet
from rowssl.encoders.prompts import PromptedBlocks, PromptedInput, prompted
from rowssl.encoders.tails import AdapterTail, Pool, StageTail
from rowssl.encoders.vit import Architecture, LastBlocks, ViT, split_vit
from rowssl.methods import METHODS

TINY = Architecture(patch=8, dim=32, depth=3, heads=4, hidden=48, grid=4)


def drawn(module: nn.Module, seed: int = 0) -> nn.Module:
    """With random parameters everywhere, prompts included."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return module


def token_tail(last: int) -> LastBlocks:
    return drawn(split_vit(ViT(TINY), last)[1])  # type: ignore[return-value]


def stage() -> StageTail:
    body = nn.Sequential(nn.Conv2d(6, 10, 3, stride=2), nn.BatchNorm2d(10), nn.ReLU())
    return drawn(StageTail(body, Pool(), 10))  # type: ignore[return-value]


def inputs(kind: str, rows: int = 5) -> Tensor:
    shape = {"blocks": (17, 32), "adapter": (12,), "stage": (6, 7, 7), "convnet": (3, 16, 16)}[kind]
    return torch.randn(rows, *shape, generator=torch.Generator().manual_seed(1))


KINDS = {
    "blocks": lambda: token_tail(2),
    "adapter": lambda: drawn(AdapterTail(12)),
    "stage": stage,
    "convnet": lambda: ConvNet((8, 16)),
}


@pytest.mark.parametrize("last", [1, 2, 3])
def test_prompts_stand_beside_cls_in_every_block_and_are_replaced(last: int) -> None:
    tail = token_tail(last)
    module = prompted(tail, n_prompts=4, n_supervised=2)
    assert isinstance(module, PromptedBlocks)
    assert module.prompts.shape == (last, 4, 32)
    drawn(module, 5)
    tokens = inputs("blocks")
    x = tokens
    for number, block in enumerate(tail.blocks):
        rows = [torch.cat([row[:1], module.prompts[number], row[1 if number == 0 else 5 :]]) for row in x]
        x = torch.stack([block(row[None])[0] for row in rows])
    x = tail.norm(x)
    z, p = module.with_prompts(tokens)
    torch.testing.assert_close(z, x[:, 0], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(p, (x[:, 1] + x[:, 2]) / 2, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(module(tokens), z, atol=1e-6, rtol=1e-5)


def test_only_the_last_blocks_train_when_asked_so() -> None:
    module = prompted(token_tail(3), trained_blocks=1)
    names = {name.split(".")[2] for name, p in module.named_parameters() if p.requires_grad and "blocks" in name}
    assert names == {"2"}
    assert module.prompts.requires_grad
    module.with_prompts(inputs("blocks"))[1].sum().backward()
    assert (module.prompts.grad.abs().sum(dim=(1, 2)) > 0).all()  # gradients pass through the frozen blocks


@pytest.mark.parametrize("kind", ["adapter", "stage", "convnet"])
def test_prompts_of_a_tail_without_tokens_move_its_input(kind: str) -> None:
    tail, x = KINDS[kind](), inputs(kind)
    module = prompted(tail, n_prompts=3, n_supervised=2)
    assert isinstance(module, PromptedInput)
    assert module.prompts.shape == (3, x.shape[1])
    module.calibrate(x)
    drawn(module, 5)
    z, p = module.with_prompts(x)
    for row in range(len(x)):
        pooled = x[row] if kind == "adapter" else x[row].mean(dim=(1, 2))
        y = module.gain * (pooled - module.centre)
        gate = torch.softmax(torch.stack([y @ prompt for prompt in module.prompts]) / x.shape[1] ** 0.5, dim=0)
        shift = sum(a * prompt for a, prompt in zip(gate, module.prompts, strict=True))
        shaped = [
            s / module.gain if kind == "adapter" else (s / module.gain)[:, None, None] for s in (shift, *module.prompts)
        ]
        torch.testing.assert_close(z[row], tail(x[row : row + 1] + shaped[0])[0], atol=1e-5, rtol=1e-4)
        expected = (tail(x[row : row + 1] + shaped[1]) + tail(x[row : row + 1] + shaped[2]))[0] / 2
        torch.testing.assert_close(p[row], expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompted_tail_is_a_tail(kind: str) -> None:
    inner, x = KINDS[kind](), inputs(kind)
    module = METHODS["promptcal"].wrap_tail(inner, {"n_prompts": 4, "seed": 3, "epsilon": 1.0})
    assert module.out_dim == inner.out_dim
    if hasattr(module, "calibrate"):
        module.calibrate(x)
    module.train()
    together = module(x)
    assert together.shape == (5, inner.out_dim)
    torch.testing.assert_close(together, torch.cat([module(row[None]) for row in x]), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(module.with_prompts(x)[0], together, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(copy.deepcopy(module)(x), together)
    fresh = METHODS["promptcal"].wrap_tail(KINDS[kind](), {"n_prompts": 4})
    fresh.load_state_dict(module.state_dict())
    torch.testing.assert_close(fresh(x), together)


def test_the_prompts_start_small_and_by_their_seed() -> None:
    one, two, other = (prompted(AdapterTail(64), seed=seed).prompts for seed in (0, 0, 1))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
    assert 0.015 < one.std() < 0.025
    with pytest.raises(InputError, match="n_supervised"):
        prompted(AdapterTail(4), n_prompts=2, n_supervised=3)


def test_other_methods_leave_the_tail_alone() -> None:
    tail = AdapterTail(4)
    assert all(
        kind.wrap_tail(tail, {}) is tail
        for name, kind in METHODS.items()
        if name not in ("promptcal", "transfer", "auto")
    )
