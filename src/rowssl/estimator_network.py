"""A trained method as a function of rows of numbers: lift, tail and classifier."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.utils import assert_all_finite
from torch import Tensor, nn

from rowssl.methods import METHODS
from rowssl.nn.heads import CosineClassifier
from rowssl.nn.lift import Lift
from rowssl.nn.tails import AdapterTail

CHUNK = 4096  # rows at once


class RowNetwork(nn.Module):
    """A trained method on rows of X: lift (or none), tail, classifier with its heads in the order of `classes_`.

    It computes in float64, so that what a row gets does not depend, not even in the last shown digit, on the rows beside it.
    """

    def __init__(self, lift: Lift | None, tail: nn.Module, classifier: CosineClassifier, order: np.ndarray) -> None:
        super().__init__()
        self.lift, self.tail, self.classifier = lift, tail.cpu(), classifier.cpu()
        with torch.no_grad():
            for value in classifier.state_dict().values():
                value.copy_(value[torch.from_numpy(order)].clone())
        self.double().eval().requires_grad_(False)

    @torch.no_grad()
    def features(self, X: np.ndarray) -> np.ndarray:
        """Unit features (n, out_dim), float64."""
        parts = np.array_split(X, range(CHUNK, len(X), CHUNK))
        rows = (torch.from_numpy(prepared(part, self.lift).astype(np.float64)) for part in parts)
        return torch.cat([F.normalize(self.tail(row), dim=1) for row in rows]).numpy()

    @torch.no_grad()
    def scores(self, X: np.ndarray) -> np.ndarray:
        """Probability of each head (n, C), float64."""
        probability: np.ndarray = self.classifier.probabilities(torch.from_numpy(self.features(X))).numpy()
        return probability

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """What `save` writes; the weights were trained in float32."""
        parts = {"tail": self.tail, "classifier": self.classifier}
        groups = {name: {k: v.float() for k, v in part.state_dict().items()} for name, part in parts.items()}
        return groups if self.lift is None else {**groups, "lift": dict(self.lift.state_dict())}

    @classmethod
    def from_tensors(
        cls, tensors: dict[str, dict[str, Tensor]], *, method: str, options: dict[str, Any], seed: int
    ) -> RowNetwork:
        """The network `tensors` came from; the method may have wrapped its tail."""
        lift = None
        if "lift" in tensors:
            lift = Lift(len(tensors["lift"]["mean"]))
            lift.load_state_dict(tensors["lift"])
        heads, dim = tensors["classifier"]["weight"].shape
        tail = METHODS[method].wrap_tail(AdapterTail(dim), {**options, "seed": seed})
        tail.load_state_dict(tensors["tail"])
        classifier = CosineClassifier(dim, heads, generator=torch.Generator())
        classifier.load_state_dict(tensors["classifier"])
        return cls(lift, tail, classifier, np.arange(heads))


@torch.no_grad()
def prepared(X: np.ndarray, lift: Lift | None) -> np.ndarray:
    """Rows lifted (float64), or as they are (float32); a value too large for that is an error."""
    with np.errstate(over="ignore"):
        rows = X.astype(np.float32) if lift is None else lift(torch.from_numpy(X.astype(np.float64))).numpy()
    assert_all_finite(rows, input_name="X")
    return rows
