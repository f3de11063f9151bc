"""The splits of the paper's tables, in its words and as options of a run."""

from __future__ import annotations

from rowssl.paper.spec import Data


def _cifar(gamma: float, prior: str, rows: int) -> Data:
    return Data("CIFAR-100-LT", f"{gamma:g}", prior, {"name": "cifar100", "gamma": gamma, "prior": prior}, rows)


def _herbarium(prior: str) -> Data:
    return Data("Herbarium19", "natural", prior, {"name": "herbarium19", "prior": prior}, 34_225)


MATCH, MISMATCH = _cifar(100.0, "match", 10_971), _cifar(100.0, "mismatch", 10_971)
MATCH_10, MISMATCH_10 = _cifar(10.0, "match", 19_636), _cifar(10.0, "mismatch", 19_636)
BALANCED = Data("CIFAR-100", "1", "match", {"name": "cifar100", "protocol": "gcd", "known": 50}, 50_000)
SPLIT_1 = Data(
    "CIFAR-100-LT", "100", "match",
    {"name": "cifar100", "gamma": 100.0, "prior": "match", "protocol": "bacon"}, 9_754, known_share=0.8,
)  # fmt: skip
HERBARIUM, HERBARIUM_MISMATCH = _herbarium("match"), _herbarium("mismatch")
_BACON = {"name": "imagenet100", "variant": "bacon", "protocol": "bacon"}
IMAGENET = Data("ImageNet-100-LT", "BaCon split", "match", {**_BACON, "prior": "match"}, 12_205)
IMAGENET_MISMATCH = Data(
    "ImageNet-100-LT", "BaCon split", "mismatch", {**_BACON, "prior": "mismatch"}, 12_205, made=True
)
CUB = Data("CUB-200-LT", "2", "match", {"name": "cub200", "gamma": 2.0, "prior": "match"}, 4_175)
