"""Write examples/digits.ipynb: its cells are run one after another, and what they show is kept in it.

    python examples/make_notebook.py

No Jupyter is needed: a cell's value shows itself as it does in a notebook, by `_repr_html_` and `repr`.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import tempfile
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).with_name("digits.ipynb")
CELLS = (
    "# Classes that nobody has named\n"
    "Handwritten digits, 0 to 4 with a few labels, 5 to 9 with none. It runs in a minute or two and needs nothing but the package.",
    """import csv
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

import rowssl

digits = load_digits()
for i, pixels in enumerate(digits.images[:600]):
    place = Path("photos" if i < 500 else "new", f"{i:03d}.png")
    place.parent.mkdir(exist_ok=True)
    Image.fromarray(np.uint8(pixels * 255 / 16)).save(place)
with open("labels.csv", "w", newline="") as file:
    lines = csv.writer(file)
    lines.writerow(["path", "label"])
    lines.writerows([f"{i:03d}.png", digits.target[i]] for i in range(0, 500, 3) if digits.target[i] < 5)""",
    "How many classes are there? The first estimate is the one that `fit` uses.",
    'rowssl.count("photos", labels="labels.csv", only=["hidden", "density"])',
    "Train. What was found shows itself as a table: classes with a label go by it, the others are `novel-01`, `novel-02`, ...",
    """run = rowssl.fit("photos", "run", labels="labels.csv", classes=10)
run.classes""",
    "An edit gives a new run, and is recorded in its folder.",
    """largest = next(one.id for one in run.classes if not one.known)
run = run.rename(largest, "the largest new one")
run.history""",
    "New pictures, one at a time.",
    """found = run.classifier.predict("new")
found[:3]""",
    "Here the truth is known after all, so the answers can be judged: clusters and classes are matched once, on unlabelled rows.",
    """rows = np.flatnonzero(run.problem.targets < 0)
said = [run.edits.classes[head].id for head in run.answers.head[rows]]
rowssl.evaluate(said, digits.target[rows], known=range(5))""",
    "Methods side by side, on a benchmark that comes along.",
    """rowssl.compare(
    ["kmeans", "transfer"],
    "digits",
    seeds=range(2),
    encoder="gradients",
    protocol="longtail",
    known=5,
    gamma=10,
    prior="match",
).table([("Tr-bACC", "All"), ("In-bACC", "All"), ("In-bACC", "New")])""",
)


def is_code(cell: str) -> bool:
    """Whether a cell is Python."""
    try:
        ast.parse(cell)
    except SyntaxError:
        return False
    return not cell.startswith("#")


def shown(value: Any) -> dict[str, list[str]]:
    """What a notebook shows of a value."""
    data = {"text/plain": repr(value)}
    if hasattr(value, "_repr_html_"):
        data["text/html"] = value._repr_html_()
    return {kind: text.splitlines(keepends=True) for kind, text in data.items()}


def run_cell(cell: str, space: dict[str, Any]) -> list[dict[str, Any]]:
    """The outputs of a cell of code: what it printed, and the value of its last line."""
    *body, last = ast.parse(cell).body
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        if isinstance(last, ast.Expr):
            exec(compile(ast.Module(body, []), "cell", "exec"), space)
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), space)
        else:
            exec(compile(cell, "cell", "exec"), space)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        text = printed.getvalue().splitlines(keepends=True)
        outputs.append({"output_type": "stream", "name": "stdout", "text": text})
    if value is not None:
        outputs.append({"output_type": "execute_result", "data": shown(value), "metadata": {}, "execution_count": None})
    return outputs


def notebook() -> dict[str, Any]:
    """All cells with their outputs, run in the current folder."""
    space: dict[str, Any] = {"__name__": "notebook"}
    cells: list[dict[str, Any]] = []
    for number, cell in enumerate(CELLS):
        one: dict[str, Any] = {"id": f"cell-{number}", "metadata": {}, "source": cell.splitlines(keepends=True)}
        if is_code(cell):
            count = sum(other["cell_type"] == "code" for other in cells) + 1
            outputs = run_cell(cell, space)
            for output in outputs:
                if "execution_count" in output:
                    output["execution_count"] = count
            cells.append({**one, "cell_type": "code", "execution_count": count, "outputs": outputs})
        else:
            cells.append({**one, "cell_type": "markdown"})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    language = {"name": "python", "file_extension": ".py", "mimetype": "text/x-python"}
    metadata = {"kernelspec": kernel, "language_info": language}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def main() -> None:
    """Write the notebook."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            content = notebook()
        finally:
            os.chdir(before)
    NOTEBOOK.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
