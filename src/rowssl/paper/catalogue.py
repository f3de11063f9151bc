"""Every table and figure of the paper by name."""

from __future__ import annotations

from rowssl.paper import claims
from rowssl.paper.spec import (
    BALANCED,
    CUB,
    FREQUENCY,
    HERBARIUM,
    HERBARIUM_MISMATCH,
    IMAGENET,
    IMAGENET_MISMATCH,
    INDUCTIVE,
    MAIN,
    MATCH,
    MATCH_10,
    MISMATCH,
    MISMATCH_10,
    SPLIT_1,
    Block,
    Data,
    Item,
    Line,
)

ALL = ("kmeans", "orca", "gcd", "trssl", "opencon", "promptcal", "simgcd", "bacon", "dts")
SEVEN = ("kmeans", "orca", "gcd", "trssl", "simgcd", "bacon", "dts")
SIX = ("kmeans", "orca", "gcd", "simgcd", "bacon", "dts")
FOUR = ("gcd", "simgcd", "bacon", "dts")
DETAILED = (*MAIN, *FREQUENCY)
DEFAULT = ("main", "")  # where the paper states the number of an unchanged DTS


def _block(data: Data, methods: tuple[str, ...], variant: str = "") -> Block:
    return Block(data, tuple(Line(method, variant) for method in methods))


CONSTANT, NO_U = {"temperature": "constant"}, {"uncertainty": "none"}
COMPONENTS = (
    Line("simgcd", "(a) momentum=no dynamic_tau=no uncertainty=no", shown="DTS"),
    Line("dts", "(b) momentum=yes dynamic_tau=no uncertainty=no", {**CONSTANT, **NO_U}),
    Line("dts", "(c) momentum=yes dynamic_tau=yes uncertainty=no", NO_U),
    Line("dts", "(d) momentum=yes dynamic_tau=no uncertainty=yes", CONSTANT),
    Line("dts", "(e) momentum=yes dynamic_tau=yes uncertainty=yes"),
)
COMPONENT_NOTE = (
    "(a) is SimGCD, the baseline that the paper starts from; (b) to (e) are DTS with parts of it switched off."
)

TABLES = (
    Item(
        "main", "Nine methods on CIFAR-100-LT, imbalance ratio 100", "Table 2",
        (_block(MATCH, ALL), _block(MISMATCH, ALL)), claims=claims.MAIN,
    ),
    Item(
        "evaluation_strategies", "How a test set is judged: recluster and rematch, on two splits", "Table 1",
        (_block(SPLIT_1, SIX, "split1 80:20"), _block(MATCH, SIX, "split2 50:50")), kind="strategies",
        columns=tuple((split, how) for split in ("split1 80:20", "split2 50:50")
                      for how in ("train", "test recluster+rematch", "test rematch", "test inductive")),
        claims=claims.STRATEGIES,
        note="Split 1 is BaCon's: classes, sizes and order are its own, the images of a class are drawn anew. Balanced "
        "accuracy of all classes. A rematch is chosen on the test set for the number that is judged, so it never lowers it.",
    ),
    Item(
        "cifar_bal", "Balanced CIFAR-100", "Table D.6", (_block(BALANCED, SEVEN),), claims=claims.BALANCED,
        note="Labelled are half of the images of the known classes, drawn over all of them as in GCD's protocol.",
    ),
    Item(
        "cifar_diff_imb", "CIFAR-100-LT, imbalance ratio 10", "Table D.7",
        (_block(MATCH_10, SEVEN), _block(MISMATCH_10, SEVEN)), claims=claims.RATIO_10,
    ),
    Item("cifar_mcar", "CIFAR-100-LT in detail, matched priors", "Table F.1", (_block(MATCH, ALL),), DETAILED,
         claims=claims.detailed("match", "Table F.1", groups=("KFew", "UFew"))),
    Item("cifar_mnar", "CIFAR-100-LT in detail, mismatched priors", "Table F.2", (_block(MISMATCH, ALL),), DETAILED,
         claims=claims.detailed("mismatch", "Table F.2", groups=("KFew", "UFew"))),
    Item("herb_mcar", "Herbarium19 in detail, matched priors", "Table F.3", (_block(HERBARIUM, ALL),), DETAILED,
         claims=claims.detailed("match", "Table F.3")),
    Item(
        "herb_mnar", "Herbarium19 in detail, mismatched priors", "Table F.4", (_block(HERBARIUM_MISMATCH, FOUR),), DETAILED,
        claims=claims.detailed("mismatch", "Table F.4", ("gcd", "simgcd", "bacon")),
        note="The authors' mismatched split is not published; ours labels a class the more the more frequent it is.",
    ),
    Item("in100_mcar", "ImageNet-100-LT in detail, matched priors", "Table G.1", (_block(IMAGENET, FOUR),), DETAILED,
         claims=claims.imagenet("match", "Table G.1")),
    Item(
        "in100_mnar", "ImageNet-100-LT in detail, mismatched priors", "Table G.2", (_block(IMAGENET_MISMATCH, FOUR),), DETAILED,
        claims=claims.imagenet("mismatch", "Table G.2"),
        note="The authors' mismatched split is not published; ours has BaCon's classes and sizes, with the unlabelled sizes of "
        "the known classes in reverse order of the labelled ones.",
    ),
    Item(
        "ablation_temperature", "What sets the temperature", "Table D.1",
        (Block(MATCH, (
            Line("dts", "tau=constant", CONSTANT),
            Line("dts", "tau=estimated prior", {"temperature": "estimated_prior"}),
            Line("dts", "tau=true prior", {"temperature": "true_prior"}),
            Line("dts", "tau=density"),
        )),), INDUCTIVE, claims=claims.TEMPERATURE,
    ),
    Item(
        "ablation_uncertainty", "What stands for the class uncertainty", "Table D.2",
        (Block(MATCH, (
            Line("dts", "u=confidence", {"uncertainty": "confidence"}),
            Line("dts", "u=estimated prior", {"uncertainty": "estimated_prior"}),
            Line("dts", "u=true prior", {"uncertainty": "true_prior"}),
            Line("dts", "u=tailedness std"),
        )),), INDUCTIVE, claims=claims.UNCERTAINTY,
    ),
    Item("components", "Parts of DTS on CIFAR-100-LT", "Table D.3", (Block(MATCH, COMPONENTS),), INDUCTIVE,
         claims=claims.components("CIFAR-100-LT"), note=COMPONENT_NOTE),
    Item(
        "components_cub", "Parts of DTS on CUB-200-LT", "Section D.4, text", (Block(CUB, COMPONENTS),), INDUCTIVE,
        claims=claims.components("CUB-200-LT"),
        note=f"{COMPONENT_NOTE} The paper states differences on CUB-200-LT in words, without a table or the imbalance ratio; "
        "it is 2 here.",
    ),
    Item(
        "unknown_classes", "When the number of classes is not known", "Table D.4",
        (Block(MATCH, (
            Line("orca", "C unknown", classes="double"),
            Line("gcd", "C unknown", classes="search"),
            Line("simgcd", "C unknown", classes="double"),
            Line("bacon", "C unknown", classes="search"),
            Line("dts", "C unknown", per_class={"n_prototypes": 1}, classes="double"),
            Line("dts", claims.IDLE, {"u_empty": "zero"}, per_class={"n_prototypes": 1}, classes="double",
                 marked=False),
            *(Line(name, "C known", paper=DEFAULT, marked=False) for name in ("gcd", "bacon", "dts")),
        )),), (("C_hat", ""), *MAIN), claims=claims.UNKNOWN,
        note="GCD and BaCon get the number that GCD's search finds on the encoder's features, which is one for both and lies "
        "between the number of known classes and four times that; the others get twice the true number of heads, and C_hat "
        "counts those that some training image chooses. DTS keeps as many prototypes as there are classes, as the authors' "
        "run did. Its default gives heads without images the greatest uncertainty, which calls them back into use; one more "
        "line leaves them idle, as the paper's equations do.",
    ),
    Item(
        "prototypes", "Number of tailedness prototypes M", "Table D.5",
        (Block(MATCH, (
            Line("dts", "M=50", per_class={"n_prototypes": 0.5}),
            Line("dts", "M=200", per_class={"n_prototypes": 2}),
            Line("dts", "M=300", per_class={"n_prototypes": 3}),
            Line("dts", "M=100"),
        )),), claims=claims.PROTOTYPES,
    ),
)  # fmt: skip


def _curve(name: str, symbol: str, option: str, values: tuple[float, ...], usual: float, source: str) -> Item:
    """One option of DTS over its values; the usual one is the run of `main`."""
    lines = tuple(
        Line("dts", f"{symbol}={value:g}", paper=DEFAULT) if value == usual
        else Line("dts", f"{symbol}={value:g}", {option: value})
        for value in values
    )  # fmt: skip
    found = claims.curve(symbol, values, usual, source)
    columns = INDUCTIVE[:3]
    return Item(name, f"In-bACC over {symbol}", source, (Block(MATCH, lines),), columns, "curve", found, axis=symbol)


PHI = ("head", "tail", "head_known", "tail_known", "head_novel", "tail_novel")
FIGURES = (
    Item(
        "tail_discovery", "How well tail images are found during training (phi)", "Figures D.1 and D.2",
        (Block(MATCH, (
            Line("dts", "score=prototype"),
            Line("dts", "score=instance", {"score": "instance"}),
            Line("dts", "score=loss", {"score": "loss"}),
        )),), tuple(("phi, last epoch", group) for group in PHI),
        "phi", claims.TAIL, train={"evaluate_every": 5},
        note="phi is how often a group occurs among the tenth of the training images with the lowest density, over how often "
        "it occurs at all; 1 is chance. Tail: classes of at most the median size. Each score trains a model of its own, because "
        "it also sets tau and u: the lines differ in what is trained as well as in what is measured.",
    ),
    _curve("curve_k", "K", "n_neighbours", (5, 10, 15, 20, 25), 15, "Figure E.1a"),
    _curve("curve_tau_max", "tau_max", "tau_max", (0.5, 0.7, 0.9, 1.0, 1.5), 1.0, "Figure E.1b"),
    _curve("curve_tau_min", "tau_min", "tau_min", (0.01, 0.02, 0.05, 0.1, 0.3), 0.05, "Figure E.1c"),
    _curve("curve_lambda_var", "lambda_var", "lambda_var", (0.5, 1.0, 2.0, 3.0), 1.0, "Figure E.1d"),
    Item(
        "tsne", "Features of the encoder, GCD, SimGCD and DTS", "Figure H.1",
        (Block(MATCH, (Line("kmeans", "encoder"), Line("gcd"), Line("simgcd"), Line("dts"))),),
        (("silhouette", "test"), ("silhouette", "unlabelled")), "tsne", claims.TSNE,
        note="The encoder's features are those that k-means works on. Silhouette, between -100 and 100, of the true classes by "
        "cosine distance on the images drawn, up to 40 of each of 10 known and 10 novel classes: a number for what the paper "
        "reads off the picture.",
    ),
    Item(
        "class_prior_profiles", "Class sizes of the splits", "Figure 1a",
        tuple(Block(data, ()) for data in (MATCH, MISMATCH, MATCH_10, MISMATCH_10, BALANCED, SPLIT_1, HERBARIUM, HERBARIUM_MISMATCH,
                                           IMAGENET, IMAGENET_MISMATCH, CUB)),
        (), "profiles", note="Of the data sets that are at hand.",
    ),
)  # fmt: skip

ITEMS: dict[str, Item] = {item.name: item for item in (*TABLES, *FIGURES)}
