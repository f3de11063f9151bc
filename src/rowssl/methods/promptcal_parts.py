"""Parts of PromptCAL: the features and embeddings of a batch, and the pull towards the untrained encoder."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rowssl.distributed import gather
from rowssl.types import Batch


def encode(parts: nn.Module, batch: Batch) -> tuple[Tensor, ...]:
    """Unit z, h, p and g'(p) of both views of the whole batch, each (2B, .)."""
    tail, projector, prompt_projector = parts.children()
    z, p = tail.with_prompts(batch.both_views)  # type: ignore[operator]
    local = (F.normalize(z, dim=1), projector(z), F.normalize(p, dim=1), prompt_projector(p))
    halves = gather(len(batch.index), *(half for part in local for half in part.chunk(2)))
    return tuple(torch.cat(pair) for pair in zip(halves[::2], halves[1::2], strict=True))


def distillation(initial: nn.Module, z: Tensor, batch: Batch) -> Tensor:
    """INKD: mean squared difference to the untrained encoder's unit features; its weight falls over 5 epochs."""
    with torch.no_grad():
        local = F.normalize(initial(batch.both_views), dim=1).chunk(2)
        before = torch.cat(gather(len(batch.index), *local))
    return max(0.02, 1 - 0.98 * batch.epoch / 5) * F.mse_loss(z, before)
