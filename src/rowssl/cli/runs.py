"""The commands that use a finished run: predict, edit, suggest, relabel, export and serve. Heavy imports wait for the command."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from rowssl.cli import options as o
from rowssl.cli.options import file_to_write
from rowssl.core.errors import InputError

if TYPE_CHECKING:
    from rowssl.runs.edits import Edits
    from rowssl.runs.run import Run


SHOWN = 40  # answers in the terminal's table
LISTED = 10  # unreadable files named


def predict(
    run: o.RunFolder,
    sources: o.NewImages,
    out: o.NewTable = None,
    encoder: o.EncoderPlace = None,
    device: o.Device = None,
    top: o.Top = 0,
    abstain: o.Abstain = None,
) -> None:
    """Say what is on new images, one at a time: class, confidence, second choice, and whether it is far from everything."""
    from rich.table import Table

    from rowssl.core.console import bar, err
    from rowssl.core.console import out as console
    from rowssl.runs.classifier import Classifier
    from rowssl.runs.predict import Layout, csv_file, csv_line, open_inputs, predict_inputs

    file_to_write(out, "--out")
    plain = out is None and not console.is_terminal  # in a pipe the answers are CSV
    layout = Layout(top, abstain, narrow=out is None and not plain)
    model = Classifier.load(run, encoder=encoder, device=device or "auto")
    inputs = open_inputs(model, sources)
    total = sum(len(one.names) + len(one.skipped) for one in inputs)
    table = Table(*layout.columns)
    good = bad = far = unsure = 0
    if plain:
        print(csv_line(layout.columns))
    file = nullcontext() if out is None else csv_file(out, layout.columns)
    with bar("predicting", total) as progress, file as write:
        for name, answer in predict_inputs(model, inputs, top=top):
            progress.advance()
            if isinstance(answer, str):
                bad += 1
                if bad <= LISTED:
                    err.print(f"skipped {name}: {answer}", markup=False, soft_wrap=True)
                continue
            good, far, unsure = good + 1, far + answer.far, unsure + layout.abstains(answer)
            row = layout.cells(name, answer)
            if write is not None:
                write(row)
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


WORDS = {"rename": (2, 2), "merge": (2, 999), "split": (1, 1), "move": (2, 100_000), "undo": (0, 0), "history": (0, 0)}


def edit(
    run: o.RunFolder,
    action: o.Action,
    words: o.Words = None,
    into: o.Parts = 2,
    no_report: o.NoReport = False,
) -> None:
    """Rename, merge or split classes, move an image, undo: holds in tables, report, predictions and export alike."""
    words = words or []
    if action not in o.USAGE:
        raise InputError(f"There is no edit {action!r}: choose among {', '.join(o.USAGE)}.")
    least, most = WORDS[action]
    if not least <= len(words) <= most:
        raise InputError(f"Use: rowssl edit RUN {o.USAGE[action]}.")
    if action == "history":
        _history(run)
        return

    from rowssl.core.console import out as console

    opened = _open(run, no_report)
    match action:
        case "rename":
            edited = opened.rename(words[0], words[1])
        case "merge":
            edited = opened.merge(*words)
        case "split":
            edited = opened.split(words[0], into)
        case "move":
            edited = opened.move(words[:-1], words[-1])
        case _:
            edited = opened.undo()
    console.print(_said(edited.edits, len(words)), markup=False, soft_wrap=True)
    _tell(edited)


def _open(run: Path, no_report: bool) -> Run:
    """The run to edit; without its report it needs no pictures."""
    from rowssl.api import load
    from rowssl.runs.run import Run

    return Run.load(run, images=False) if no_report else load(run)


def _said(edits: Edits, words: int) -> str:
    """What the last edit did, as it was saved: what was there before the lock was taken may have been edited meanwhile."""
    from rowssl.runs.edits import describe

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


def _tell(run: Run) -> None:
    """What an edit could not write again."""
    from rowssl.core.console import err
    from rowssl.core.text import printable

    for problem in run.unwritten:
        err.print(printable(problem), markup=False, soft_wrap=True)
    if run.failed:
        raise typer.Exit(2)


def _history(run: Path) -> None:
    from rowssl.core.console import out as console
    from rowssl.core.text import printable
    from rowssl.runs.edits import Edits, describe

    edits = Edits.load(run)
    for one in edits.history:
        console.print(printable(f"{one.get('time', '')}  {describe(one)}"), markup=False, soft_wrap=True)
    if not edits.history:
        console.print("no edits", markup=False)


def suggest(
    run: o.RunFolder,
    most: o.Most = 20,
    as_json: o.AsJson = False,
    out: o.NewTable = None,
) -> None:
    """Propose classes to merge and to split, the most probable first, each with the command that does it."""
    import json
    from dataclasses import asdict

    from rowssl.core.console import out as console
    from rowssl.core.files import write_text
    from rowssl.core.text import printable
    from rowssl.runs.predict import csv_line
    from rowssl.runs.run import Run
    from rowssl.runs.suggest import suggest as proposals_of

    file_to_write(out, "--out")
    found = proposals_of(Run.load(run, images=False), most)
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


def relabel(
    run: o.RunFolder,
    corrections: o.Corrections,
    no_report: o.NoReport = False,
) -> None:
    """Record corrected labels of training images; `rowssl fit --from RUN` then trains with them."""
    from rowssl.core.console import err
    from rowssl.core.console import out as console

    edited, done = _open(run, no_report).relabelled(corrections)
    said = f"{done.corrected:,} corrected, {done.confirmed:,} confirmed"
    if done.new:
        said += f"; new labels: {', '.join(done.new)}"
    console.print(said, markup=False, soft_wrap=True)
    for label, hint in done.new.items():
        if hint:
            err.print(f"{label} is new: {hint}? `rowssl edit {run} undo` takes it back", markup=False, soft_wrap=True)
    _tell(edited)
    console.print(f"train with them: rowssl fit --from {run} --out NEW", markup=False, soft_wrap=True)


def export(
    run: o.RunFolder,
    onnx: o.Onnx,
    encoder: o.EncoderPlace = None,
) -> None:
    """Write the model as one ONNX file, from pixels or embeddings to class scores, checked against the model."""
    from rowssl.core.console import out as console
    from rowssl.runs.classifier import Classifier
    from rowssl.runs.export import export_onnx

    file_to_write(onnx, "--onnx")
    done = export_onnx(Classifier.load(run, encoder=encoder), onnx)
    said = f"{done.path}: {done.size / 1e6:.1f} MB, answers like the model on {done.checked} inputs"
    console.print(
        f"{said} ({done.real} training rows, {done.checked - done.real} random)", markup=False, soft_wrap=True
    )


def serve(
    run: o.RunFolder,
    port: o.Port = 8000,
    host: o.Host = "127.0.0.1",
    token: o.Token = None,
    encoder: o.EncoderPlace = None,
    device: o.Device = None,
) -> None:
    """Show a run in the browser: drop images, browse and edit the classes; with a JSON API."""
    from rowssl.serve import serve as run_server

    run_server(run, host=host, port=port, token=token, encoder=encoder, device=device or "auto")
