"""What a table or figure of the paper is, as data: the splits, the lines, the columns, and the sentences it is to support."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Column = tuple[str, str]  # metric, group

THREE = ("All", "Old", "New")
SIX = ("All", "Old", "New", "Many", "Med", "Few")
MAIN: tuple[Column, ...] = tuple((metric, group) for metric in ("Tr-ACC", "Tr-bACC", "In-bACC") for group in THREE)
INDUCTIVE: tuple[Column, ...] = tuple(("In-bACC", group) for group in SIX)
FREQUENCY: tuple[Column, ...] = tuple(("In-bACC", side + word) for side in "KU" for word in ("Many", "Med", "Few"))


@dataclass(frozen=True)
class Data:
    """A split of a data set.

    Attributes
    ----------
    dataset, gamma, prior : in the paper's words, as in the columns of its numbers.
    options : keys of `data` in a run's configuration; `prior` and `gamma` among them.
    rows : training rows, about, for estimates of cost.
    known_share : of the classes, for the small subset.
    made : the split is made here and kept in a file, because no protocol of the package makes it.
    """

    dataset: str
    gamma: str
    prior: str
    options: Mapping[str, Any]
    rows: int
    known_share: float = 0.5
    made: bool = False

    @property
    def key(self) -> str:
        """A word for files."""
        chosen = self.options.get("protocol", "")
        parts = [self.options["name"], chosen, f"g{self.gamma}" if self.gamma[:1].isdigit() else "", self.prior]
        return "-".join(part for part in parts if part)

    @property
    def title(self) -> str:
        """For a heading."""
        ratio = f"imbalance ratio {self.gamma}" if self.gamma[:1].isdigit() else f"{self.gamma} sizes"
        sizes = "balanced" if self.gamma == "1" else ratio
        return f"{self.dataset}, {sizes}, prior {self.prior}, protocol {self.options.get('protocol', 'rowssl')}"


def profile_name(data: Data) -> str:
    """The file of the picture of a split's class sizes."""
    return f"{data.key.replace(' ', '_')}.svg"


@dataclass(frozen=True)
class Line:
    """A line of a table, which is one run for each seed.

    Attributes
    ----------
    method : its name in the package.
    variant : the paper's word for what is changed, as in its numbers.
    options : of the method; those left out are its defaults, so that lines without options are the runs of `main`.
    per_class : options that count something for each true class: `{"n_prototypes": 0.5}` is half as many as classes.
    shown : the paper's word for the method, where the package runs another one for this line.
    classes : who says how many classes there are: the truth, twice the truth as heads, or GCD's search.
    paper : table and variant of the paper's number beside this line, if they are not the table's own.
    marked : whether it may be best or second best; not so for lines that know more than the others, or that the paper lacks.
    """

    method: str
    variant: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    per_class: Mapping[str, float] = field(default_factory=dict)
    shown: str | None = None
    classes: Literal["true", "double", "search"] = "true"
    paper: tuple[str, str] | None = None
    marked: bool = True


@dataclass(frozen=True)
class Block:
    """Lines on one split."""

    data: Data
    lines: tuple[Line, ...]


Where = tuple[tuple[str, str], ...]  # columns of a row and what they must be


def pick(**where: str) -> Where:
    """Rows by their columns: `pick(method="DTS", metric="In-bACC", group="New")`."""
    return tuple(sorted(where.items()))


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper as a difference of two numbers.

    Attributes
    ----------
    says : what should be seen, in words.
    source : table and sentence of the paper.
    left, right : what is compared. Several on the right: the highest of them. A number is a constant; "C" is the true
        number of classes.
    sign : 1 if left should be above right, -1 if below.
    least : by how much; negative for "loses no more than".
    stated : the difference that the paper states in words, where its tables do not hold it.
    """

    says: str
    source: str
    left: Where
    right: Where | tuple[Where, ...] | float | Literal["C"]
    sign: int = 1
    least: float = 0.0
    stated: float | None = None


Kind = Literal["table", "strategies", "curve", "phi", "tsne", "profiles"]


@dataclass(frozen=True)
class Item:
    """A table or figure.

    Attributes
    ----------
    name, title : what it is called here, and what it is.
    source : where it stands in the paper.
    blocks : the runs it needs.
    columns : metrics and groups of its table, in order.
    kind : how it is drawn.
    claims : what the paper says of it.
    axis : for curves, the option that varies; lines give its values as their variants, `K=5`.
    note : what a reader has to know, in sentences.
    train : further options of the training that decide no number, as how often phi is measured.
    """

    name: str
    title: str
    source: str
    blocks: tuple[Block, ...]
    columns: tuple[Column, ...] = MAIN
    kind: Kind = "table"
    claims: tuple[Claim, ...] = ()
    axis: str = ""
    note: str = ""
    train: Mapping[str, Any] = field(default_factory=dict)

    @property
    def datasets(self) -> tuple[tuple[str, str | None], ...]:
        """Benchmarks it reads: name and variant."""
        seen = [(block.data.options["name"], block.data.options.get("variant")) for block in self.blocks]
        return tuple(dict.fromkeys(seen))


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
