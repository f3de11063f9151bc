"""Pictures that explain the protocol: `python -m rowssl.paper.protocol_pictures docs/images`.

The class sizes are those of the package's own split builder; the clusters are k-means on bundled handwritten digits in the plane
of their first two principal components, judged by the package's own evaluation, so that every number in a picture is real.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from rowssl.paper.svg import KNOWN, LEFT, NOVEL, WIDTH, start_svg, text_of

DIGITS = (0, 4, 6, 3, 1, 7)  # the first three are known; three are novel
SIZES = (60, 36, 22, 60, 30, 12)  # unlabelled training images of each
BLUE, LIGHT, ORANGE, GREY = "#2d6ba9", "#8fb8de", "#c0611c", "#5f6b76"
GROUPS = {"many": "#1d4b7a", "med": "#4f8bc4", "few": "#a3c6e6"}
NOVEL_GROUPS = {"many": "#8a4210", "med": "#d27a3a", "few": "#efbd97"}


def sizes_of(
    n_known: int, n_novel: int, n_max: int, gamma: float, prior: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labelled, unlabelled known and unlabelled novel images of each class, by the split builder."""
    from rowssl.data.splits import make_split
    from rowssl.report.profiles import class_sizes

    labels = np.repeat(np.arange(n_known + n_novel), n_max)
    split = make_split(labels, protocol="longtail", known=n_known, gamma=gamma, prior=prior, order="first")
    labelled, unlabelled = class_sizes(split, labels)
    return labelled[:n_known], unlabelled[:n_known], unlabelled[n_known:]


def priors_svg(n_known: int = 10, n_novel: int = 10, n_max: int = 100, gamma: float = 20.0) -> str:
    """Class sizes under the three priors: labelled images above, unlabelled ones below."""
    title = f"Class sizes under three priors ({n_known} known and {n_novel} novel classes, imbalance ratio {gamma:g})"
    parts = start_svg(title, WIDTH, 372)
    for x, colour, word in (
        (LEFT, BLUE, "labelled"),
        (LEFT + 92, LIGHT, "unlabelled, known"),
        (LEFT + 244, ORANGE, "unlabelled, novel"),
    ):
        parts.append(
            f'<rect x="{x}" y="40" width="13" height="13" rx="2" fill="{colour}"/><text x="{x + 19}" y="51">{word}</text>'
        )
    names = {
        "match": "match: labels missing at random (MCAR)",
        "mismatch": "mismatch: not at random (MNAR)",
        "uniform": "uniform",
    }
    width, gap = (WIDTH - LEFT - 24 - 2 * 30) / 3, 30
    for place, (prior, name) in enumerate(names.items()):
        labelled, known, novel = sizes_of(n_known, n_novel, n_max, gamma, prior)
        x0, slot = LEFT + place * (width + gap), width / (n_known + n_novel)
        parts.append(
            f'<text x="{x0 + width / 2:.1f}" y="84" text-anchor="middle" font-weight="600">{text_of(name)}</text>'
        )
        for base, sizes, colours in (
            (200, [*labelled, *[0] * n_novel], [BLUE] * (n_known + n_novel)),
            (324, [*known, *novel], [LIGHT] * n_known + [ORANGE] * n_novel),
        ):
            for i, (size, colour) in enumerate(zip(sizes, colours, strict=True)):
                height = 96 * size / n_max
                if size:
                    parts.append(
                        _box(x0 + i * slot, base - height, 0.82 * slot, height, colour, f"class {i}: {size} images")
                    )
            parts.append(f'<path d="M{x0:.1f} {base}h{width:.1f}" stroke="#555"/>')
        parts.append(f'<text x="{x0 + width / 4:.1f}" y="344" text-anchor="middle" fill="#666">known classes</text>')
        parts.append(
            f'<text x="{x0 + 3 * width / 4:.1f}" y="344" text-anchor="middle" fill="#666">novel classes</text>'
        )
    for y, word in ((152, "labelled"), (276, "unlabelled")):
        parts.append(f'<text transform="translate(40 {y}) rotate(-90)" text-anchor="middle" fill="#666">{word}</text>')
    return "\n".join([*parts, "</svg>", ""])


def groups_svg(n_known: int = 15, n_novel: int = 15, n_max: int = 100, gamma: float = 20.0) -> str:
    """Many, Med and Few by all training images of a class, separately for known and novel classes."""
    from rowssl.data.profiles import frequency_groups

    parts = start_svg(
        "Many, Med and Few: classes by their training images, labelled and unlabelled together", WIDTH, 330
    )
    x = float(LEFT)
    for side, colours in (("known", GROUPS), ("novel", NOVEL_GROUPS)):
        for word, colour in colours.items():
            parts.append(f'<rect x="{x:g}" y="40" width="13" height="13" rx="2" fill="{colour}"/>')
            parts.append(f'<text x="{x + 19:g}" y="51">{side} {word.capitalize()}</text>')
            x += 116
    width = (WIDTH - LEFT - 24 - 40) / 2
    for place, prior in enumerate(("match", "mismatch")):
        labelled, known, novel = sizes_of(n_known, n_novel, n_max, gamma, prior)
        total = np.concatenate([labelled + known, novel])
        words = [*frequency_groups(total[:n_known]), *frequency_groups(total[n_known:])]
        x0, slot, base = LEFT + place * (width + 40), width / len(total), 276
        parts.append(
            f'<text x="{x0 + width / 2:.1f}" y="88" text-anchor="middle" font-weight="600">prior {prior}</text>'
        )
        for i, (size, word) in enumerate(zip(total, words, strict=True)):
            colour = (GROUPS if i < n_known else NOVEL_GROUPS)[str(word)]
            height = 170 * size / n_max
            parts.append(
                _box(x0 + i * slot, base - height, 0.82 * slot, height, colour, f"class {i}: {size} images, {word}")
            )
        parts.append(f'<path d="M{x0:.1f} {base}h{width:.1f}" stroke="#555"/>')
        parts.append(f'<text x="{x0 + width / 4:.1f}" y="298" text-anchor="middle" fill="#666">known classes</text>')
        parts.append(
            f'<text x="{x0 + 3 * width / 4:.1f}" y="298" text-anchor="middle" fill="#666">novel classes</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def _box(x: float, y: float, width: float, height: float, colour: str, tip: str) -> str:
    shape = f'x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}"'
    return f'<rect {shape} fill="{colour}"><title>{text_of(tip)}</title></rect>'


def example() -> dict[str, Any]:
    """Long-tailed unlabelled and balanced test digits in the plane, their clusters, and what the evaluation says of them."""
    from sklearn.datasets import load_digits
    from sklearn.decomposition import PCA

    from rowssl.clustering.kmeans import kmeans
    from rowssl.evaluation import evaluate, fit_matching

    bundled = load_digits()
    rows = [np.flatnonzero(bundled.target == digit) for digit in DIGITS]
    train = np.concatenate([some[:size] for some, size in zip(rows, SIZES, strict=True)])
    test = np.concatenate([some[80:110] for some in rows])
    place = {digit: i for i, digit in enumerate(DIGITS)}
    truth = {
        name: np.array([place[d] for d in bundled.target[part]]) for name, part in (("train", train), ("test", test))
    }
    plane = PCA(2).fit(bundled.data[np.concatenate([train, test])])
    points = {"train": plane.transform(bundled.data[train]), "test": plane.transform(bundled.data[test])}
    n = len(DIGITS)
    found = kmeans(points["train"].astype(np.float32), n, seed=0)
    centres = np.asarray(found.centers)
    cluster = {"train": np.asarray(found.labels), "test": _nearest(points["test"], centres)}
    again = kmeans(points["test"].astype(np.float32), n, seed=0)
    result = evaluate(
        train_predicted=cluster["train"], train_truth=truth["train"], test_predicted=cluster["test"], test_truth=truth["test"],
        recluster_predicted=np.asarray(again.labels), n_old=3, n_clusters=n, n_classes=n,
    )  # fmt: skip
    once = result.matching
    anew = fit_matching(cluster["test"], truth["test"], on="rate", n_clusters=n, n_classes=n)
    whole = fit_matching(np.asarray(again.labels), truth["test"], on="rate", n_clusters=n, n_classes=n)
    panels = [
        ("transductive (Tr)", "unlabelled training images", "train", cluster["train"], once, centres, "tr_bacc"),
        ("inductive (In)", "test, training's centres and names", "test", cluster["test"], once, centres, "in_bacc"),
        ("rematch", "test, names matched anew", "test", cluster["test"], anew, centres, "in_bacc_rematch"),
        ("recluster + rematch", "test, clustered and matched anew", "test", np.asarray(again.labels), whole,
         np.asarray(again.centers), "in_bacc_recluster_rematch"),
    ]  # fmt: skip
    return {
        "points": points,
        "truth": truth,
        "cluster": cluster,
        "metrics": result.metrics,
        "matching": once,
        "panels": panels,
    }


def _nearest(points: np.ndarray, centres: np.ndarray) -> np.ndarray:
    return np.asarray(((points[:, None] - centres[None]) ** 2).sum(-1).argmin(1))


def inference_svg(made: dict[str, Any]) -> str:
    """The same digits judged in four ways: colour is the assigned class, a cross is a mistake, a ring is a cluster's centre."""
    side, gap, left = 218.0, 16.0, 20.0
    parts = start_svg(
        "One clustering, judged in four ways (handwritten digits in the plane of two principal components)", WIDTH, 398
    )
    x = float(left)
    for i, digit in enumerate(DIGITS):
        kind = "known" if i < 3 else "novel"
        parts.append(f'<circle cx="{x + 6:g}" cy="46" r="5" fill="{_shade(i)}"/>')
        parts.append(f'<text x="{x + 16:g}" y="51">{digit} {kind}</text>')
        x += 88
    parts.append(f'<text x="{x + 8:g}" y="51" fill="#666">colour: assigned class; ×: mistake; ring: centre</text>')
    whole = np.concatenate(list(made["points"].values()))
    low, high = whole.min(0), whole.max(0)
    for number, (name, about, part, cluster, matching, centres, metric) in enumerate(made["panels"]):
        x0, y0 = left + number * (side + gap), 116.0
        value = made["metrics"][metric]["all"]
        parts.append(
            f'<text x="{x0 + side / 2:.1f}" y="86" text-anchor="middle" font-weight="600">{text_of(name)}</text>'
        )
        parts.append(
            f'<text x="{x0 + side / 2:.1f}" y="104" text-anchor="middle" font-size="12" fill="#666">{text_of(about)}</text>'
        )
        parts.append(f'<rect x="{x0:.1f}" y="{y0}" width="{side}" height="{side}" fill="none" stroke="#ccc"/>')

        def at(point: np.ndarray, x0: float = x0, y0: float = y0) -> tuple[float, float]:
            share = (point - low) / (high - low)
            return x0 + 8 + share[0] * (side - 16), y0 + side - 8 - share[1] * (side - 16)

        assigned = matching.apply(cluster)
        for point, guess, true in zip(made["points"][part], assigned, made["truth"][part], strict=True):
            px, py = at(point)
            colour = _shade(int(guess)) if guess >= 0 else "#bbb"
            if guess == true:
                parts.append(f'<circle cx="{px:.1f}" cy="{py:.1f}" r="2.6" fill="{colour}" opacity="0.85"/>')
            else:
                parts.append(
                    f'<path d="M{px - 3:.1f} {py - 3:.1f}l6 6m0 -6l-6 6" stroke="{colour}" stroke-width="1.8"/>'
                )
        for centre, c in zip(centres, matching.class_of, strict=True):
            px, py = at(centre)
            colour = _shade(int(c)) if c >= 0 else "#888"
            parts.append(f'<circle cx="{px:.1f}" cy="{py:.1f}" r="8" fill="none" stroke="#fff" stroke-width="5"/>')
            parts.append(f'<circle cx="{px:.1f}" cy="{py:.1f}" r="8" fill="none" stroke="{colour}" stroke-width="3"/>')
        parts.append(
            f'<text x="{x0 + side / 2:.1f}" y="{y0 + side + 24:.1f}" text-anchor="middle">{metric} = {value:.1f}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def _shade(i: int) -> str:
    return (KNOWN[1], KNOWN[4], KNOWN[7])[i] if i < 3 else (NOVEL[0], NOVEL[3], NOVEL[8])[i - 3]


def matching_svg(made: dict[str, Any]) -> str:
    """Clusters by classes, the matched pairs outlined, and what ACC and bACC make of them."""
    from rowssl.evaluation import contingency

    n, matching = len(DIGITS), made["matching"]
    counts = contingency(made["cluster"]["train"], made["truth"]["train"], n_clusters=n, n_classes=n)
    parts = start_svg("From clusters to classes: one matching on the unlabelled training images", WIDTH, 372)
    cell, left, top = 46, 150, 92
    parts.append(f'<text x="{left + n * cell / 2}" y="60" text-anchor="middle" fill="#666">true class</text>')
    for j, digit in enumerate(DIGITS):
        style = f'text-anchor="middle" fill="{_shade(j)}" font-weight="600"'
        parts.append(f'<text x="{left + (j + 0.5) * cell}" y="82" {style}>{digit}</text>')
    order = np.argsort([c if c >= 0 else n for c in matching.class_of], kind="stable")
    for i, row in enumerate(order):
        y = top + i * cell
        parts.append(f'<text x="{left - 12}" y="{y + 28}" text-anchor="end">cluster {i + 1}</text>')
        for j in range(n):
            share = counts[row, j] / counts.max()
            shape = f'x="{left + j * cell + 1}" y="{y + 1}" width="{cell - 4}" height="{cell - 4}"'
            edge = ' stroke="#000" stroke-width="2.5"' if matching.class_of[row] == j else ""
            parts.append(f'<rect {shape} fill="{BLUE}" fill-opacity="{0.06 + 0.6 * share:.2f}"{edge}/>')
            parts.append(
                f'<text x="{left + (j + 0.5) * cell - 1}" y="{y + 28}" text-anchor="middle">{counts[row, j] or ""}</text>'
            )
    hits = np.array([counts[k, j] if (k := matching.cluster_of[j]) >= 0 else 0 for j in range(n)])
    totals, metrics = counts.sum(0), made["metrics"]
    recall = ", ".join(f"{hit}/{total}" for hit, total in zip(hits, totals, strict=True))
    lines = [
        "Outlined: the one-to-one matching with the most images (Hungarian).",
        f"tr_acc = matched images / all = {hits.sum()}/{totals.sum()} = {metrics['tr_acc']['all']:.1f} %",
        "tr_bacc = mean over classes of matched / images of the class",
        f"= mean of {recall} = {metrics['tr_bacc']['all']:.1f} %",
        f"Old: over {DIGITS[0]}, {DIGITS[1]}, {DIGITS[2]} alone: {metrics['tr_bacc']['old']:.1f} %.",
        f"New: over {DIGITS[3]}, {DIGITS[4]}, {DIGITS[5]} alone: {metrics['tr_bacc']['new']:.1f} %.",
        "A large class counts more in ACC, every class alike in bACC.",
        "Test images are judged under the same pairs: in_bacc.",
    ]
    for i, line in enumerate(lines):
        parts.append(f'<text x="470" y="{top + 22 + 33 * i}">{text_of(line)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def write(folder: Path) -> list[Path]:
    """All pictures of docs/protocol.md."""
    from rowssl.core.files import write_text

    made = example()
    pictures = {
        "protocol-priors": priors_svg(), "protocol-groups": groups_svg(), "protocol-matching": matching_svg(made),
        "protocol-inference": inference_svg(made),
    }  # fmt: skip
    paths = []
    for name, picture in pictures.items():
        write_text(folder / f"{name}.svg", picture)
        paths.append(folder / f"{name}.svg")
    return paths


if __name__ == "__main__":
    for path in write(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images")):
        print(path)
