"""How far the answer can be trusted: what was tried, the accuracy to expect, and whether confidence keeps its word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rowssl.report.markup import count, escape, finite
from rowssl.report.metrics import points


def trust_section(trust: dict[str, Any] | None, noun: str = "image") -> str:
    """The parts that there are: what to expect, a table of candidates, a reliability plot for each kind of answer."""
    trust = trust if isinstance(trust, dict) else {}
    tried, kinds = trust.get("tried"), trust.get("reliability")
    parts = (
        expected(trust, noun),
        candidates([one for one in tried if isinstance(one, dict)] if isinstance(tried, list) else ()),
        reliability(kinds if isinstance(kinds, dict) else {}, noun),
    )
    return "".join(parts)


def expected(trust: dict[str, Any], noun: str) -> str:
    """The accuracy to expect and what it does not know, or why there is none; nothing for methods that do not judge themselves."""
    if "tried" not in trust:
        return ""
    said = trust.get("expected")
    said = said if isinstance(said, dict) else {}
    low, middle, high = (finite(said.get(key)) for key in ("low", "expected", "high"))
    if low is None or middle is None or high is None:
        return (
            '<p class="lead">How often this is right cannot be told: fewer than four known classes have two labels, so '
            "none could be hidden and looked for.</p>"
        )
    return (
        f'<p class="expect"><b>{middle:.0f}\u202f%</b> of the unlabelled {noun}s are expected to be right '
        f"({low:.0f} to {high:.0f}\u202f%).</p>"
        '<p class="why">So much was right when known classes were hidden and looked for. It holds as far as novel classes are '
        "like known ones; a wrong number of classes is not in it.</p>"
    )


def candidates(tried: Sequence[dict[str, Any]]) -> str:
    """A line per candidate, the chosen one in bold."""
    if not tried:
        return ""
    lines = []
    for one in tried:
        name = escape(str(one.get("candidate", ""))).replace("k-means", "k\u2011means")
        name = f"{name} <small>chosen</small>" if one.get("chosen") else f"<span>{name}</span>"
        behind = f"{points(one.get('behind_best'))} ± {points(one.get('standard_error'))}"
        cells = f"<td>{points(one.get('hidden_classes'))}</td><td>{behind}</td>"
        lines.append(f'<tr><th scope="row">{name}</th>{cells}</tr>')
    heads = "".join(f'<th scope="col">{title}</th>' for title in ("right,&nbsp;%", "behind the best"))
    tuned = any("tuned" in str(one.get("candidate", "")) for one in tried)
    about = " For tuned ones the end of the network was trained on the labels first." if tuned else ""
    return (
        '<h3>What was tried</h3><p class="why">Half of the known classes were hidden at a time and looked for as if nobody had '
        "named them, every class counting alike within its kind. Chosen is the most usual candidate within one standard error "
        "(±) of the best. The smaller rho, the more is made of what the known classes teach; with 1 it is nothing."
        f"{about}</p>"
        f'<table class="numbers small"><thead><tr><th scope="col">Candidate</th>{heads}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table>"
    )


def reliability(kinds: dict[str, Any], noun: str) -> str:
    """Confidence against the share that was right, one plot for known and one for novel answers."""
    plots = [plot(kind, bins, noun) for kind in ("known", "novel") if (bins := kinds.get(kind))]
    if not plots:
        return ""
    return (
        '<h3>Does confidence keep its word?</h3><p class="why">When classes were hidden, each half judged by what the other '
        "half taught. On the line, answers given with 70 % confidence are right 7 times of 10; below it they are right less "
        f'often. The larger the dot, the more {noun}s.</p><div class="curves">{"".join(plots)}</div>'
    )


def plot(kind: str, bins: Sequence[Sequence[float]], noun: str) -> str:
    """Bins (mean confidence, share right, rows) as dots beside the diagonal."""
    width, height, left, top, bottom = 300, 258, 46, 30, 34
    rows = [one for one in bins if isinstance(one, list) and len(one) == 3] if isinstance(bins, list) else []
    points = [tuple(map(finite, one)) for one in rows]
    known = [(x, y, n) for x, y, n in points if x is not None and y is not None and n is not None and n > 0]
    if not known:
        return ""
    most, total = max(n for *_, n in known), sum(n for *_, n in known)
    error = 100 * sum(n * abs(x - y) for x, y, n in known) / total

    def at(x: float, y: float) -> tuple[float, float]:
        return left + x * (width - left - 10), top + (1 - y) * (height - top - bottom)

    grid = "".join(
        f'<path class="grid" d="M{left} {at(0, y)[1]:.1f}H{width - 10}"/>'
        f'<text x="{left - 8}" y="{at(0, y)[1] + 4:.1f}" text-anchor="end">{100 * y:.0f}</text>'
        f'<text x="{at(y, 0)[0]:.1f}" y="{height - bottom + 16}" text-anchor="middle">{100 * y:.0f}</text>'
        for y in (0.0, 0.5, 1.0)
    )
    (x0, y0), (x1, y1) = at(0, 0), at(1, 1)
    dots = "".join(
        f'<circle class="{kind}" cx="{at(x, y)[0]:.1f}" cy="{at(x, y)[1]:.1f}" r="{2.5 + 7 * (n / most) ** 0.5:.1f}">'
        f"<title>confidence {100 * x:.0f} %, right {100 * y:.0f} %, {count(int(n), noun)}</title></circle>"
        for x, y, n in known
    )
    return (
        f'<figure class="chart reliability"><figcaption><b>{kind} classes</b><span>off by {error:.0f} points</span></figcaption>'
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="Reliability of answers that name a {kind} class: '
        f'off by {error:.0f} points on average">{grid}<path class="diagonal" d="M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}"/>{dots}'
        f'<text x="{(left + width - 10) / 2}" y="{height - 2}" text-anchor="middle">confidence, %</text>'
        f'<text x="4" y="12">right, %</text></svg></figure>'
    )
