"""What was found: the headline, the long tail, the table of classes with their galleries, and the review list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rowssl.report.markup import DASH, chip, count, decimal, escape, finite, percent, short
from rowssl.report.thumbnails import REVIEW_ROWS, STRIP, Pictures
from rowssl.report.thumbnails import galleries as gallery_rows

if TYPE_CHECKING:
    from rowssl.report.page import ClassCard, ReportData

REVIEW_OPEN = 12  # shown at once, the others behind one click

GALLERIES = (
    ("Most typical", "Closest to the centre of the class."),
    ("Most uncertain", "In this class, with the least confidence."),
    ("Nearest to other classes", "Where two classes may touch or be one."),
)


def by_size(data: ReportData) -> list[tuple[int, ClassCard]]:
    """(position, card), largest class first, ties by name so that the order never changes between runs."""
    return sorted(enumerate(data.classes), key=lambda item: (-item[1].size, item[1].name, item[0]))


def noun(pictures: Pictures) -> str:
    """What a row is called: an image, or a row of embeddings."""
    return "image" if pictures else "row"


def summary(data: ReportData, pictures: Pictures) -> str:
    """`10 classes found in 1,234 images: 5 known, 5 novel.`"""
    known = sum(card.known for card in data.classes)
    novel = len(data.classes) - known
    split = "all known" if not novel else "all novel" if not known else f"{known:,} known, {novel:,} novel"
    rows = count(len(data.row_names), noun(pictures))
    return f"{count(len(data.classes), 'class', 'classes')} found in {rows}: {split}."


def warning(data: ReportData) -> str:
    """What is wrong with the whole answer, if anything."""
    said = facts_of(data).get("problem")
    return f'<p class="warning" role="alert">{escape(said)}</p>' if isinstance(said, str) and said else ""


def facts_of(data: ReportData) -> dict[str, Any]:
    """What metrics.json says, which may be anything where somebody else wrote it."""
    return data.trust if isinstance(data.trust, dict) else {}


def headline(data: ReportData, pictures: Pictures) -> str:
    """The few numbers a person looks for first."""
    known = sum(card.known for card in data.classes)
    sizes = [card.size for card in data.classes if card.size > 0]
    free = [value for value, told in zip(data.row_confidence, data.row_known_label, strict=True) if not told]
    confidences = [value for value in map(finite, free) if value is not None]
    rows = len(data.row_names)
    labelled = sum(map(bool, data.row_known_label))
    tiles = [
        (f"{rows:,}", f"{noun(pictures)}s", f"{labelled:,} labelled"),
        (f"{len(data.classes):,}", "classes", f"{known:,} known, {len(data.classes) - known:,} novel"),
    ]
    if sizes:
        ratio = f"{max(sizes) / min(sizes):.0f}\u202f:\u202f1"
        tiles.append((ratio, "largest to smallest", f"{max(sizes):,} to {min(sizes):,}"))
    expected = facts_of(data).get("expected")
    expected = expected if isinstance(expected, dict) else {}
    low, middle, high = (finite(expected.get(key)) for key in ("low", "expected", "high"))
    if low is not None and middle is not None and high is not None:
        tiles.append((f"{middle:.0f}\u202f%", "expected right", f"{low:.0f} to {high:.0f}\u202f%, from hidden classes"))
    elif confidences:
        tiles.append(
            (percent(sum(confidences) / len(confidences)), "mean confidence", f"over unlabelled {noun(pictures)}s")
        )
    for key, label, basis in (("in_bacc", "In-bACC", "on unseen images"), ("tr_bacc", "Tr-bACC", "on unlabelled rows")):
        value = finite(((data.metrics or {}).get(key) or {}).get("all"))
        if value is not None:
            tiles.append((f"{value:.1f}\u202f%", label, basis))
            break
    issues = sum(position is not None for position in data.row_issue or ())
    small = f"{count(issues, 'label')} in doubt" if issues else f"most doubtful {noun(pictures)}s"
    tiles.append((f"{len(data.review):,}", "to review", small))
    return (
        '<ul class="headline">'
        + "".join(f"<li><b>{big}</b><span>{label}</span><small>{small}</small></li>" for big, label, small in tiles)
        + "</ul>"
    )


def long_tail(data: ReportData) -> str:
    """All class sizes in one picture, largest first; every bar leads to its class."""
    order = by_size(data)
    if len(order) < 2:
        return ""
    largest = max(card.size for _, card in order) or 1
    bars = "".join(
        f'<a href="#class-{position}" class="{"known" if card.known else "novel"}" '
        f'style="--h:{100 * card.size / largest:.2f}%" title="{escape(card.name)}: {card.size:,}" tabindex="-1">'
        "<i></i></a>"
        for position, card in order
    )
    return (
        f'<figure class="tail"><div class="axis"><span>{largest:,}</span><span>0</span></div>'
        f'<div class="bars" role="img" aria-label="Class sizes, largest first: from {largest:,} to '
        f'{order[-1][1].size:,}">{bars}</div></figure>'
    )


def legend(data: ReportData) -> str:
    """What the colours mean, with the class filters and the order beside it."""
    kinds = [word for word, flag in (("known", True), ("novel", False)) if any(c.known == flag for c in data.classes)]
    keys = "".join(f'<span class="key {word}">{word}</span>' for word in kinds)
    keys += '<span class="key labelled">labelled part</span>' if any(card.labelled for card in data.classes) else ""
    orders = "".join(f'<option value="{key}">{key}</option>' for key in ("size", "confidence", "name"))
    tools = '<label>Order by <select id="order">' + orders + "</select></label>"
    if len(kinds) == 2:
        options = "".join(f'<option value="{word}">{word}</option>' for word in ("all", *kinds))
        tools = '<label>Show <select id="filter">' + options + "</select></label>" + tools
    tools += '<button type="button" id="open-all" aria-pressed="false">Open all</button>'
    return f'<div class="toolbar"><div class="keys">{keys}</div><div class="tools js" hidden>{tools}</div></div>'


def class_table(data: ReportData, pictures: Pictures) -> str:
    """One line per class, largest first; each opens to its galleries."""
    if not data.classes:
        return "<p>No class was found.</p>"
    largest = max(card.size for card in data.classes) or 1
    tailed = any(card.tailedness is not None for card in data.classes)
    lines = "".join(class_line(data, pictures, at, card, largest, tailed) for at, card in by_size(data))
    heads = ["Class", "Size", "Confidence", *(["Tailedness"] if tailed else []), *(["Typical"] if pictures else [])]
    head = "".join(f"<span>{title}</span>" for title in heads)
    kind = ("" if tailed else " no-tailedness") + ("" if pictures else " no-pictures")
    return (
        f'{legend(data)}<div class="classes{kind}"><div class="class-head" aria-hidden="true">{head}</div>{lines}</div>'
    )


def class_line(data: ReportData, pictures: Pictures, position: int, card: ClassCard, largest: int, tailed: bool) -> str:
    """The line of one class and, inside it, the galleries."""
    word = "known" if card.known else "novel"
    width = 100 * card.size / largest
    part = 100 * card.labelled / card.size if card.size else 0
    identifier = f"<small>{escape(card.id)}</small>" if card.id != card.name else ""
    strip = ""
    if pictures:
        shown = "".join(pictures.show(row, "") for row in card.typical[:STRIP])
        strip = f'<span class="strip" role="img" aria-label="{len(card.typical[:STRIP])} typical images">{shown}</span>'
    tailedness = (
        f'<span class="number tailedness"><em>tailedness </em>{decimal(card.tailedness)}</span>' if tailed else ""
    )
    sized = f'data-size="{card.size}" data-confidence="{finite(card.confidence) or 0:.6f}"'
    return (
        f'<details class="class {word}" id="class-{position}" {sized} data-name="{escape(card.name)}"><summary>'
        f'<span class="name"><b>{escape(card.name)}</b>{chip(card.known)}{identifier}</span>'
        f'<span class="size"><span class="bar {word}" style="width:{width:.2f}%"><i style="width:{part:.2f}%"></i>'
        f'</span><span class="number">{card.size:,}</span></span>'
        f'<span class="number confidence">{percent(card.confidence)}<em> confidence</em></span>'
        f"{tailedness}{strip}</summary>"
        f'<div class="inside">{details(data, card)}{galleries(data, pictures, card)}</div></details>\n'
    )


def details(data: ReportData, card: ClassCard) -> str:
    """One sentence of numbers about a class."""
    part = card.size / max(len(data.row_names), 1)
    share = f" ({percent(part, 1) if part >= 0.001 else 'under ' + percent(0.001, 1)} of all)" if card.size else ""
    parts = [f"{count(card.size, 'member')}{share}", f"{card.labelled:,} labelled"]
    if card.matched_to is not None:
        parts.append(f"matched with the true class <b>{escape(card.matched_to)}</b>")
    if card.recall is not None:
        parts.append(f"recall {percent(card.recall, 1)}")
    return f'<p class="facts-line">{" · ".join(parts)}</p>'


def galleries(data: ReportData, pictures: Pictures, card: ClassCard) -> str:
    """The three views of one class."""
    blocks = []
    for (title, why), rows in zip(GALLERIES, gallery_rows(data, card), strict=True):
        if rows:
            shown = "".join(figure(data, pictures, row) for row in rows)
            blocks.append(f'<div><h3>{title}</h3><p class="why">{why}</p><div class="gallery">{shown}</div></div>')
    return "".join(blocks) or '<p class="why">No members to show.</p>'


def figure(data: ReportData, pictures: Pictures, row: int, where: str = "") -> str:
    """One member: its picture if any, its name, how sure the model is or that a person said so, and (`where`) its class."""
    name = str(data.row_names[row])
    mark = '<abbr title="labelled by a person">labelled</abbr> ' if data.row_known_label[row] else ""
    picture = pictures.show(row, name) if pictures else ""
    sure = "" if mark else f"{percent(data.row_confidence[row])}{' sure' if where else ''}"
    issue = None if data.row_issue is None else data.row_issue[row]
    if issue is not None and 0 <= issue < len(data.classes):
        sure = f"but looks like {escape(data.classes[issue].name)}"
    shown = name if where else name.replace("\\", "/").rsplit("/", 1)[-1]
    return (
        f'<figure>{picture}<figcaption>{where}<span class="file" title="{escape(name)}">{short(shown)}</span>'
        f'<small title="confidence">{mark}{sure}</small>'
        "</figcaption></figure>"
    )


def class_link(data: ReportData, row: int) -> str:
    """The class of a row, as a link to its line in the table."""
    position = int(data.row_class[row])
    if not 0 <= position < len(data.classes):
        return f"<b>{DASH}</b>"
    card = data.classes[position]
    return f'<a href="#class-{position}" class="{"known" if card.known else "novel"}">{escape(card.name)}</a>'


def review(data: ReportData, pictures: Pictures) -> str:
    """Rows a person should look at, most doubtful first."""
    rows = data.review[:REVIEW_ROWS]
    if not rows:
        return ""
    shown = [figure(data, pictures, row, class_link(data, row)) for row in rows]
    kind = "gallery review" + ("" if pictures else " no-pictures")
    body = f'<div class="{kind}">{"".join(shown[:REVIEW_OPEN])}</div>'
    if len(shown) > REVIEW_OPEN:
        more = f'<div class="{kind}">{"".join(shown[REVIEW_OPEN:])}</div>'
        body += f'<details class="more"><summary>{len(shown) - REVIEW_OPEN:,} more</summary>{more}</details>'
    if len(data.review) > len(rows):
        body += f'<p class="why">The first {len(rows):,} of {len(data.review):,} are shown here.</p>'
    return body
