"""The commands that use a finished run, registered on the app of `cli.py`; heavy imports wait for the command."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rowssl.cli_values import file_to_write, parse_known
from rowssl.errors import InputError

if TYPE_CHECKING:
    from rowssl.edits import Edits

use = typer.Typer()

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Run directory of `rowssl fit`.")]
NoReport = Annotated[bool, typer.Option("--no-report", help="Leave report.html as it is, which is quicker.")]
EncoderPlace = Annotated[
    str | None, typer.Option("--encoder", help="Where the pretrained encoder is, if it is not where it was.")
]
SHOWN = 40  # answers in the terminal's table
LISTED = 10  # unreadable files named


@use.command()
def predict(
    run: RunFolder,
    sources: Annotated[
        list[str],
        typer.Argument(metavar="IMAGES...", help="Images, folders, CSV or parquet files, or .npy/.npz embeddings."),
    ],
    out: Annotated[Path | None, typer.Option(help="CSV file to write instead of a table on the terminal.")] = None,
    encoder: EncoderPlace = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    top: Annotated[int, typer.Option(help="List so many of the most likely classes with their probabilities.")] = 0,
    abstain: Annotated[float | None, typer.Option(help="Leave answers below this confidence empty: 0.8.")] = None,
) -> None:
    """Say what is on new images, one at a time: class, confidence, second choice, and whether it is far from everything."""
    from rich.table import Table

    from rowssl.model import load_model
    from rowssl.predict import CsvWriter, Layout, csv_line, open_inputs, predict_inputs
    from rowssl.progress import bar, err
    from rowssl.progress import out as console

    file_to_write(out, "--out")
    plain = out is None and not console.is_terminal  # in a pipe the answers are CSV
    layout = Layout(top, abstain, narrow=out is None and not plain)
    model = load_model(run, encoder=encoder, device=device)
    inputs = open_inputs(model, sources)
    total = sum(len(one.names) + len(one.skipped) for one in inputs)
    table = Table(*layout.columns)
    good = bad = far = unsure = 0
    if plain:
        print(csv_line(layout.columns))
    file = nullcontext() if out is None else CsvWriter(out, layout.columns)
    with bar("predicting", total) as progress, file as writer:
        for name, answer in predict_inputs(model, inputs, top=top):
            progress.advance()
            if isinstance(answer, str):
                bad += 1
                if bad <= LISTED:
                    err.print(f"skipped {name}: {answer}", markup=False, soft_wrap=True)
                continue
            good, far, unsure = good + 1, far + answer.far, unsure + layout.abstains(answer)
            row = layout.cells(name, answer)
            if writer is not None:
                writer.write(row)
            elif plain:
                print(csv_line(row))
            elif good <= SHOWN:
                table.add_row(*row)
        if not good:
            raise InputError("None of the images could be read.")
    if bad > LISTED:
        err.print(f"and {bad - LISTED} more that cannot be read", markup=False)
    if out is None and not plain:
        console.print(table)
        if good > SHOWN:
            console.print(f"and {good - SHOWN:,} more: --out FILE writes them all", markup=False)
    said = f"{good - unsure:,} answered, {far:,} of them far from everything the model was trained on"
    if abstain is not None:
        said = (
            f"{good - unsure:,} answered, {unsure:,} abstained (below {abstain:g}); {far:,} of all far from everything"
        )
    err.print(f"{said}{f', {bad:,} skipped' if bad else ''}{f': {out}' if out else ''}", markup=False, soft_wrap=True)


USAGE = {
    "rename": "rename CLASS NAME",
    "merge": "merge CLASS OTHER...",
    "split": "split CLASS",
    "move": "move FILE... CLASS",
    "undo": "undo",
    "history": "history",
}
WORDS = {"rename": (2, 2), "merge": (2, 999), "split": (1, 1), "move": (2, 100_000), "undo": (0, 0), "history": (0, 0)}


@use.command()
def edit(
    run: RunFolder,
    action: Annotated[str, typer.Argument(help="; ".join(USAGE.values()))],
    words: Annotated[list[str] | None, typer.Argument(help="Classes by id or name, and what the action needs.")] = None,
    into: Annotated[int, typer.Option(help="Number of parts of a split.")] = 2,
    no_report: NoReport = False,
) -> None:
    """Rename, merge or split classes, move an image, undo: holds in tables, report, predictions and export alike."""
    words = words or []
    if action not in USAGE:
        raise InputError(f"There is no edit {action!r}: choose among {', '.join(USAGE)}.")
    least, most = WORDS[action]
    if not least <= len(words) <= most:
        raise InputError(f"Use: rowssl edit RUN {USAGE[action]}.")
    if action == "history":
        _history(run)
        return

    from rowssl import edit_run
    from rowssl.progress import out as console

    report = not no_report
    match action:
        case "rename":
            changed = edit_run.rename(run, words[0], words[1], report=report)
        case "merge":
            changed = edit_run.merge(run, words[0], words[1:], report=report)
        case "split":
            changed = edit_run.split(run, words[0], parts=into, report=report)
        case "move":
            changed = edit_run.move(run, words[:-1], words[-1], report=report)
        case _:
            changed = edit_run.undo(run, report=report)
    console.print(_said(changed.edits, len(words)), markup=False, soft_wrap=True)
    _tell(changed.problems)
    if changed.failed:
        raise typer.Exit(2)


def _said(edits: Edits, words: int) -> str:
    """What the last edit did, as it was saved: what was there before the lock was taken may have been edited meanwhile."""
    last = edits.history[-1]
    match last["do"]:
        case "rename":
            return f"{last['class']} is now called {last['name']}"
        case "merge":
            return f"{', '.join(one['class'] for one in edits.history[1 - words :])} joined {last['into']}"
        case "split":
            return f"{last['class']} is now {' and '.join(last['parts'])}"
        case "move":
            return f"{words - 1} moved to {next(iter(last['rows'].values()))}"
        case _:
            return f"undone: {describe(replace(edits, history=edits.history[:-1]).effective[-1])}"


def _tell(problems: Sequence[str]) -> None:
    """What an edit could not write again."""
    from rowssl.data.images import printable
    from rowssl.progress import err

    for problem in problems:
        err.print(printable(problem), markup=False, soft_wrap=True)


def describe(one: dict[str, object]) -> str:
    """An edit of the history in a few words."""
    match one.get("do"):
        case "rename":
            return f"{one.get('class')} renamed to {one.get('name')}"
        case "merge":
            return f"{one.get('class')} merged into {one.get('into')}"
        case "split":
            parts = one.get("parts")
            return (
                f"{one.get('class')} split into {' and '.join(map(str, parts)) if isinstance(parts, list) else parts}"
            )
        case "move":
            rows = one.get("rows")
            first = next(iter(rows.items())) if isinstance(rows, dict) and rows else ("", "")
            more = f" and {len(rows) - 1} more" if isinstance(rows, dict) and len(rows) > 1 else ""
            return f"{first[0]} moved to {first[1]}{more}"
        case other:
            return str(other)


def _history(run: Path) -> None:
    from rowssl.data.images import printable
    from rowssl.edits import Edits
    from rowssl.progress import out as console

    edits = Edits.load(run)
    for one in edits.history:
        console.print(printable(f"{one.get('time', '')}  {describe(one)}"), markup=False, soft_wrap=True)
    if not edits.history:
        console.print("no edits", markup=False)


@use.command()
def suggest(
    run: RunFolder,
    most: Annotated[int, typer.Option("-n", "--most", min=1, help="Proposals to show.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    out: Annotated[Path | None, typer.Option(help="CSV file to write as well.")] = None,
) -> None:
    """Propose classes to merge and to split, the most probable first, each with the command that does it."""
    import json
    from dataclasses import asdict

    from rowssl.checkpoint import write_text
    from rowssl.data.images import printable
    from rowssl.predict import csv_line
    from rowssl.progress import out as console
    from rowssl.suggest import suggest as proposals_of

    file_to_write(out, "--out")
    found = proposals_of(run, most)
    if out is not None:
        columns = ("kind", "class", "other", "probability", "size", "other_size", "command")
        lines = [csv_line(columns)]
        for one in found:
            first, other = (*one.classes, "")[:2]
            size, other_size = map(str, one.sizes)
            lines.append(csv_line((one.kind, first, other, f"{one.probability:.3f}", size, other_size, one.command)))
        write_text(out, "\n".join([*lines, ""]))
    if as_json:
        print(json.dumps([{**asdict(one), "probability": round(one.probability, 4)} for one in found], indent=1))
        return
    rows = [("kind", "probability", "classes", "images", "command")]
    for one in found:
        classes = (i if i == name else f"{i} ({name})" for i, name in zip(one.classes, one.names, strict=True))
        sizes = " + ".join(f"{size:,}" for size in one.sizes)
        rows.append((one.kind, f"{one.probability:.0%}", " + ".join(classes), sizes, one.command))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows if found else ():  # the commands are whole, however narrow the terminal is
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        console.print(printable(line.rstrip()), markup=False, soft_wrap=True)
    if not found:
        console.print("nothing to merge or to split", markup=False)
    if out is not None:
        console.print(f"written: {out}", markup=False, soft_wrap=True)


@use.command()
def relabel(
    run: RunFolder,
    corrections: Annotated[Path, typer.Argument(help="CSV with file,label; or predictions.csv with changed classes.")],
    no_report: NoReport = False,
) -> None:
    """Record corrected labels of training images; `rowssl fit --from RUN` then trains with them."""
    from rowssl.edit_run import relabel as record
    from rowssl.progress import err
    from rowssl.progress import out as console

    done = record(run, corrections, report=not no_report)
    said = f"{done.corrected:,} corrected, {done.confirmed:,} confirmed"
    if done.new:
        said += f"; new labels: {', '.join(done.new)}"
    console.print(said, markup=False, soft_wrap=True)
    for label, hint in zip(done.new, done.hints, strict=True):
        if hint:
            err.print(f"{label} is new: {hint}? `rowssl edit {run} undo` takes it back", markup=False, soft_wrap=True)
    _tell(done.problems)
    if done.failed:
        raise typer.Exit(2)
    console.print(f"train with them: rowssl fit --from {run} --out NEW", markup=False, soft_wrap=True)


@use.command()
def export(
    run: RunFolder,
    onnx: Annotated[Path, typer.Option("--onnx", help="File to write, such as model.onnx.")],
    encoder: EncoderPlace = None,
) -> None:
    """Write the model as one ONNX file, from pixels or embeddings to class scores, checked against the model."""
    from rowssl.export import export_onnx
    from rowssl.progress import out as console

    file_to_write(onnx, "--onnx")
    done = export_onnx(run, onnx, encoder=encoder)
    said = f"{done.path}: {done.size / 1e6:.1f} MB, answers like the model on {done.checked} inputs"
    console.print(
        f"{said} ({done.real} training rows, {done.checked - done.real} random)", markup=False, soft_wrap=True
    )


@use.command()
def serve(
    run: RunFolder,
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.")] = 8000,
    host: Annotated[str, typer.Option(help="Where to listen; beyond this machine a token is needed.")] = "127.0.0.1",
    token: Annotated[str | None, typer.Option(help="Token that every request must carry [made where needed].")] = None,
    encoder: EncoderPlace = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Show a run in the browser: drop images, browse and edit the classes; with a JSON API."""
    from rowssl.serve import serve as run_server

    run_server(run, host=host, port=port, token=token, encoder=encoder, device=device)


@use.command()
def count(
    source: Annotated[
        str | None, typer.Argument(help="Folder of images, CSV, parquet, or .npy/.npz/.safetensors embeddings.")
    ] = None,
    labels: Annotated[Path | None, typer.Option(help="CSV with some labels: path,label or row,label.")] = None,
    out: Annotated[Path | None, typer.Option(help="Picture of the search to write: .html or .svg.")] = None,
    max_classes: Annotated[int | None, typer.Option(help="Search no further than this.")] = None,
    only: Annotated[str | None, typer.Option(help="Estimators with commas: hidden,density,gcd,balanced,heads.")] = None,
    data: Annotated[
        str | None, typer.Option("--data", help="Benchmark instead of SOURCE: digits, cifar100, ...")
    ] = None,
    data_root: Annotated[Path | None, typer.Option(help="Folder with the benchmark's files [$ROWSSL_DATA].")] = None,
    split: Annotated[Path | None, typer.Option(help="Split file of `rowssl split`.")] = None,
    protocol: Annotated[str | None, typer.Option(help="rowssl, bacon, gcd or longtail.")] = None,
    gamma: Annotated[float | None, typer.Option(help="Imbalance ratio.")] = None,
    prior: Annotated[str | None, typer.Option(help="match, mismatch or uniform.")] = None,
    known: Annotated[str | None, typer.Option(help="Known classes: a number, a share, or names with commas.")] = None,
    max_bad: Annotated[float | None, typer.Option(help="Share of images that may be unreadable [0.05].")] = None,
    encoder: Annotated[
        str | None, typer.Option(help="Name, path, hf:NAME, identity, gradients, pixels or convnet.")
    ] = None,
    image_size: Annotated[int | None, typer.Option(help="Side of the encoder's input in pixels.")] = None,
    views: Annotated[
        int | None, typer.Option(help="Cached views per image: the same as for `fit` share a cache.")
    ] = None,
    cache: Annotated[Path | None, typer.Option(help="Folder of the trunk cache [$ROWSSL_CACHE].")] = None,
    seed: Annotated[int, typer.Option(help="Seed.")] = 0,
) -> None:
    """Estimate how many classes there are, in several ways side by side, each with an interval."""
    from rowssl.config import build_config, lay_over
    from rowssl.count_table import ESTIMATORS, check_picture, count_source, print_counts, write_picture
    from rowssl.progress import out as console

    check_picture(out)
    file_to_write(out, "--out")
    content: dict[str, Any] = {"seed": seed}
    given = {
        "data.source": source, "data.labels": labels, "data.name": data, "data.data_root": data_root,
        "data.split": split, "data.protocol": protocol, "data.gamma": gamma, "data.prior": prior,
        "data.known": parse_known(known), "data.max_bad": max_bad, "encoder.name": encoder, "encoder.image_size": image_size,
        "encoder.views": views, "encoder.cache": cache,
    }  # fmt: skip
    lay_over(content, given)
    names = tuple(name.strip() for name in only.split(",") if name.strip()) if only else ESTIMATORS
    counts = count_source(build_config(content), max_classes=max_classes, names=names)
    print_counts(counts, console)
    if out is not None:
        write_picture(out, counts)
        console.print(f"written: {out}", markup=False, soft_wrap=True)
