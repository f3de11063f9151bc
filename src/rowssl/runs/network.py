"""The whole way from an encoder's input to the answer as one module."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from rowssl.methods.heads import CosineClassifier
from rowssl.runs.outlier import Far
from rowssl.runs.regroup import Regroup


class Network(nn.Module):
    """Everything between the encoder's input and the answer as one module, the part that is exported.

    Input: normalised pixels (B, 3, H, W), or embeddings (B, D). Output: class scores (B, K), class (B,), distance (B,); classes
    as edited, rows one by one.
    """

    def __init__(
        self, trunk: nn.Module, reduction: nn.Module, tail: nn.Module, classifier: CosineClassifier, far: Far,
        regroup: Regroup, temperature: float,
    ) -> None:  # fmt: skip
        super().__init__()
        self.trunk, self.reduction, self.tail = trunk, reduction, tail
        self.classifier, self.far, self.regroup = classifier, far, regroup
        self.temperature = temperature
        self.eval().requires_grad_(False)

    def trunk_output(self, inputs: Tensor) -> Tensor:
        """What the tail takes: (B, *trunk_shape), reduced where the model has a reduction."""
        output: Tensor = self.reduction(self.trunk(inputs))
        return output

    def features(self, x: Tensor) -> Tensor:
        """Trunk outputs -> unit features (B, d)."""
        return F.normalize(self.tail(x), dim=1)

    def head_scores(self, z: Tensor) -> Tensor:
        """Unit features -> probabilities of the heads (B, C)."""
        return self.classifier.probabilities(z, self.temperature)

    def answer(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Trunk outputs -> class scores (B, K), class (B,), distance (B,)."""
        z = self.features(x)
        scores, label = self.regroup(self.head_scores(z), z)
        return scores, label, self.far(z)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The whole way."""
        return self.answer(self.trunk_output(inputs))
