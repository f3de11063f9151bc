"""What the paper says, as differences that can be computed from our runs: of methods, and of DTS's parts, options and pictures."""

from __future__ import annotations

from rowssl.bench.published import METHODS
from rowssl.paper import quotes
from rowssl.paper.spec import Claim, Where, pick

NAMES = {name: word for name, word in METHODS.items() if name != "dts"}
METRICS = ("Tr-ACC", "Tr-bACC", "In-bACC")


def _others(methods: tuple[str, ...] = tuple(NAMES), **where: str) -> tuple[Where, ...]:
    return tuple(pick(method=NAMES[name], **where) for name in methods)


def _lead(source: str, prior: str, metric: str, group: str, methods: tuple[str, ...] = tuple(NAMES)) -> Claim:
    """DTS above the best of the others."""
    where = {"prior": prior, "metric": metric, "group": group}
    says = f"DTS above the best other method on {metric} {group} (prior {prior})"
    return Claim(says, source, pick(method="DTS", **where), _others(methods, **where))


MAIN = tuple(
    claim
    for prior in ("match", "mismatch")
    for claim in (
        *(_lead(f"Table 2. {quotes.OVERALL}", prior, metric, "All") for metric in METRICS),
        _lead(f"Table 2. {quotes.NOVEL}", prior, "Tr-bACC", "New"),
        _lead(f"Table 2. {quotes.NOVEL}", prior, "In-bACC", "New"),
    )
)

_FIVE = ("kmeans", "orca", "gcd", "simgcd", "bacon")
_SPLITS = ("split1 80:20", "split2 50:50")


def _judged(split: str, how: str, **where: str) -> Where:
    return pick(variant=f"{split}, {how}", metric="bACC", group="All", **where)


STRATEGIES = (
    *(
        Claim(
            f"BaCon above every other method when the test set is reclustered and rematched ({split})",
            f"Table 1. {quotes.BACON_HIGH}",
            _judged(split, "test recluster+rematch", method="BaCon"),
            tuple(
                _judged(split, "test recluster+rematch", method=name)
                for name in ("k-means", "ORCA", "GCD", "SimGCD", "DTS")
            ),
        )
        for split in _SPLITS
    ),
    Claim(
        "BaCon below the best other baseline on the training set (split 2)",
        f"Table 1. {quotes.BACON_TRAIN}",
        _judged(_SPLITS[1], "train", method="BaCon"),
        tuple(_judged(_SPLITS[1], "train", method=name) for name in ("k-means", "ORCA", "GCD", "SimGCD")),
        sign=-1,
    ),
    *(
        Claim(
            f"reclustering raises k-means' accuracy on the test set ({split})",
            f"Table 1. {quotes.UNIFORM}",
            _judged(split, "test recluster+rematch", method="k-means"),
            _judged(split, "test rematch", method="k-means"),
        )
        for split in _SPLITS
    ),
    *(
        Claim(
            f"DTS above the best other method in inductive inference ({split})",
            "Table 1",
            _judged(split, "test inductive", method="DTS"),
            tuple(_judged(split, "test inductive", method=NAMES[name]) for name in _FIVE),
        )
        for split in _SPLITS
    ),
)

_SIX = ("kmeans", "orca", "gcd", "trssl", "simgcd", "bacon")
BALANCED = tuple(_lead(f"Table D.6. {quotes.RATIOS}", "match", metric, "All", _SIX) for metric in METRICS)
RATIO_10 = tuple(
    claim
    for prior in ("match", "mismatch")
    for claim in (
        *(_lead(f"Table D.7. {quotes.RATIOS}", prior, metric, "All", _SIX) for metric in METRICS),
        Claim(
            f"BaCon above DTS on Tr-ACC New (prior {prior})",
            f"Table D.7. {quotes.BACON_NEW}",
            pick(method="BaCon", prior=prior, metric="Tr-ACC", group="New"),
            pick(method="DTS", prior=prior, metric="Tr-ACC", group="New"),
        ),
        Claim(
            f"DTS above BaCon on In-bACC New (prior {prior})",
            f"Table D.7. {quotes.BACON_NEW}",
            pick(method="DTS", prior=prior, metric="In-bACC", group="New"),
            pick(method="BaCon", prior=prior, metric="In-bACC", group="New"),
        ),
    )
)


def detailed(
    prior: str, table: str, methods: tuple[str, ...] = tuple(NAMES), groups: tuple[str, ...] = ("New", "KFew", "UFew")
) -> tuple[Claim, ...]:
    """Of the tables with Many, Med and Few: novel and tail classes."""
    return tuple(_lead(f"{table}. {quotes.TAIL_CLASSES}", prior, "In-bACC", group, methods) for group in groups)


def imagenet(prior: str, table: str) -> tuple[Claim, ...]:
    """Of ImageNet-100-LT."""
    three = ("gcd", "simgcd", "bacon")
    where = {"prior": prior, "metric": "Tr-ACC", "group": "New"}
    return (
        *(_lead(f"{table}. {quotes.IMAGENET}", prior, "In-bACC", group, three) for group in ("All", "New", "UFew")),
        Claim(
            f"GCD above the other methods on Tr-ACC New (prior {prior})",
            f"{table}. {quotes.GCD_BEST}",
            pick(method="GCD", **where),
            tuple(pick(method=name, **where) for name in ("SimGCD", "BaCon", "DTS")),
        ),
    )


def _variant(name: str, group: str, metric: str = "In-bACC") -> Where:
    return pick(variant=name, metric=metric, group=group)


def _above(
    says: str, source: str, left: str, right: str | tuple[str, ...], group: str, stated: float | None = None
) -> Claim:
    others = tuple(_variant(name, group) for name in ((right,) if isinstance(right, str) else right))
    return Claim(f"{says} on In-bACC {group}", source, _variant(left, group), others, stated=stated)


_TAU, _TRUE = f"Table D.1. {quotes.TEMPERATURE}", f"Table D.1. {quotes.TRUE_PRIOR}"
TEMPERATURE = (
    _above("density temperature above constant", _TAU, "tau=density", "tau=constant", "All"),
    *(
        _above("density temperature above constant", f"Table D.1. {quotes.TABLE}", "tau=density", "tau=constant", group)
        for group in ("New", "Few")
    ),
    _above("density temperature above the estimated prior", _TAU, "tau=density", "tau=estimated prior", "All"),
    *(
        _above("density temperature above the true prior (oracle)", _TRUE, "tau=density", "tau=true prior", group)
        for group in ("All", "New")
    ),
)
_U = "u=tailedness std"
UNCERTAINTY = (
    Claim(
        "tailedness no more than two points below the true prior (oracle) on In-bACC All",
        f"Table D.2. {quotes.COMPARABLE}",
        _variant(_U, "All"),
        _variant("u=true prior", "All"),
        least=-2.0,
    ),
    *(
        _above("tailedness above the true prior (oracle)", f"Table D.2. {quotes.BOOSTS}", _U, "u=true prior", group)
        for group in ("New", "Few")
    ),
    *(
        _above(f"tailedness above the {word}", f"Table D.2. {quote}", _U, f"u={word}", "All")
        for word, quote in (("confidence", quotes.TABLE), ("estimated prior", quotes.UNCERTAINTY))
    ),
)

A, B, C, D, E = (
    f"({letter}) momentum={momentum} dynamic_tau={tau} uncertainty={u}"
    for letter, momentum, tau, u in (
        ("a", "no", "no", "no"),
        ("b", "yes", "no", "no"),
        ("c", "yes", "yes", "no"),
        ("d", "yes", "no", "yes"),
        ("e", "yes", "yes", "yes"),
    )
)


def components(dataset: str) -> tuple[Claim, ...]:
    """Of the parts of DTS; what the paper states of CUB-200-LT it states in words alone."""
    cub = dataset == "CUB-200-LT"
    table = "" if cub else "Table D.3. "
    stated = (1.4, 14.0, 8.4, 11.0) if cub else (None,) * 4
    found = [
        _above("dynamic temperature, (c) above (b),", table + quotes.DYNAMIC, C, B, "Many", stated[0]),
        _above("dynamic temperature, (c) above (b),", table + quotes.DYNAMIC, C, B, "Few", stated[1]),
        _above("uncertainty, (d) above (b),", table + quotes.WITH_U, D, B, "New", stated[2]),
        _above("uncertainty, (d) above (b),", table + quotes.WITH_U, D, B, "Few", stated[3]),
    ]
    if not cub:
        found += [
            _above("uncertainty, (d) above (b),", table + quotes.IN_ALL, D, B, group)
            for group in ("All", "Old", "Many", "Med")
        ]
        found += [
            _above("the whole method, (e) above every part,", table + quotes.WHOLE, E, (A, B, C, D), group)
            for group in ("All", "Old", "New", "Many", "Med", "Few")
        ]
        found += [_above("momentum encoder, (b) above (a),", table + quotes.TABLE, B, A, "All")]
    return tuple(found)


def _unknown(method: str, metric: str, group: str = "", variant: str = "C unknown") -> Where:
    return pick(method=method, variant=variant, metric=metric, group=group)


IDLE = "C unknown, idle heads left idle"
UNKNOWN = (
    Claim(
        "GCD's search (also BaCon's number) finds fewer classes than there are",
        f"Table D.4. {quotes.UNDERESTIMATE}",
        _unknown("GCD", "C_hat"),
        "C",
        sign=-1,
    ),
    *(
        Claim(
            f"{name} loses In-bACC All by it",
            f"Table D.4. {quotes.UNDERESTIMATE}",
            _unknown(name, "In-bACC", "All"),
            _unknown(name, "In-bACC", "All", "C known"),
            sign=-1,
        )
        for name in ("GCD", "BaCon")
    ),
    Claim(
        "ORCA: fewer heads in use than there are classes",
        f"Table D.4. {quotes.INACTIVE}",
        _unknown("ORCA", "C_hat"),
        "C",
        sign=-1,
    ),
    *(
        Claim(
            f"DTS loses at most two points of In-bACC All when the number of classes is not known{more}",
            f"Table D.4. {quotes.DECREASE}",
            _unknown("DTS", "In-bACC", "All", variant),
            _unknown("DTS", "In-bACC", "All", "C known"),
            least=-2.0,
            stated=-1.0,
        )
        for variant, more in (("C unknown", ""), (IDLE, ", idle heads left idle"))
    ),
    *(
        Claim(
            f"DTS above the best other method on {metric} All",
            "Table D.4",
            _unknown("DTS", metric, "All"),
            tuple(_unknown(name, metric, "All") for name in ("ORCA", "GCD", "SimGCD", "BaCon")),
        )
        for metric in METRICS
    ),
)

_M_OTHERS = ("M=50", "M=200", "M=300")
PROTOTYPES = (
    *(
        Claim(
            f"M=100 above the other M on {metric} All",
            f"Table D.5. {quotes.ALIGNED}",
            _variant("M=100", "All", metric),
            tuple(_variant(other, "All", metric) for other in _M_OTHERS),
        )
        for metric in METRICS
    ),
    *(
        Claim(
            f"{other} no more than two points below M=100 on In-bACC All",
            f"Table D.5. {quotes.ROBUST}",
            _variant(other, "All"),
            _variant("M=100", "All"),
            least=-2.0,
        )
        for other in _M_OTHERS
    ),
)


def curve(symbol: str, values: tuple[float, ...], usual: float, source: str) -> tuple[Claim, ...]:
    """The usual value is the best one."""
    others = tuple(_variant(f"{symbol}={value:g}", "All") for value in values if value != usual)
    says = f"{symbol}={usual:g} above the other values on In-bACC All"
    return (Claim(says, f"{source}. {quotes.CURVES[symbol]}", _variant(f"{symbol}={usual:g}", "All"), others),)


def _phi(score: str, group: str) -> Where:
    return pick(variant=f"score={score}", metric="phi, last epoch", group=group)


TAIL = (
    *(
        Claim(
            f"phi of the tail higher (so that of the head lower) by prototype than by {other}",
            f"Figure D.1. {quotes.DISCOVERS}",
            _phi("prototype", "tail"),
            _phi(other, "tail"),
        )
        for other in ("instance", "loss")
    ),
    *(
        Claim(
            f"phi of novel {part} classes above that of known ones",
            f"Figure D.2. {quotes.HARDER}",
            _phi("prototype", f"{part}_novel"),
            _phi("prototype", f"{part}_known"),
        )
        for part in ("head", "tail")
    ),
)
TSNE = tuple(
    Claim(
        f"DTS's features separate the classes of {part} images better than {whose}",
        f"Figure H.1. {quotes.COMPACT}",
        pick(method="DTS", metric="silhouette", group=part),
        pick(metric="silhouette", group=part, **other),
    )
    for part in ("test", "unlabelled")
    for whose, other in (
        ("the encoder's", {"variant": "encoder"}),
        ("GCD's", {"method": "GCD"}),
        ("SimGCD's", {"method": "SimGCD"}),
    )
)
