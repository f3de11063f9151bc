"""What `import rowssl` offers, as a person uses it from a notebook or a program."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import rowssl
from finished import Finished, digit_pictures
from rowssl.core.errors import InputError
from rowssl.methods.kmeans import KMeans

ROOT = Path(__file__).resolve().parents[1]


def blobs(rows: int = 120, classes: int = 6) -> tuple[np.ndarray, np.ndarray]:
    truth = np.arange(rows) % classes
    x = np.random.default_rng(0).normal(size=(rows, 16)) + 6 * np.eye(16)[truth]
    return x.astype(np.float32), truth


def write_blobs(path: Path, *, true: bool = True) -> Path:
    x, truth = blobs()
    labels = np.where((truth < 3) & (np.arange(len(x)) % 4 < 2), truth, -1)
    np.savez(path, embeddings=x, labels=labels, **({"truth": truth} if true else {}))
    return path


@pytest.fixture
def run(tmp_path: Path) -> rowssl.Run:
    return rowssl.fit(write_blobs(tmp_path / "x.npz"), tmp_path / "run", method="kmeans", classes=6)


def test_the_import_is_cheap_and_every_name_is_there() -> None:
    program = "import rowssl, sys; assert 'torch' not in sys.modules; [getattr(rowssl, n) for n in rowssl.__all__]"
    subprocess.run([sys.executable, "-c", program], check=True)
    assert {"fit", "load", "count", "compare", "evaluate", "Run", "METHODS", "InputError"} <= set(dir(rowssl))
    with pytest.raises(AttributeError, match="nothing"):
        rowssl.nothing  # noqa: B018


def test_the_code_of_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As printed, on handwritten digits; only the benchmark, which is not on every machine, is a small file."""
    pytest.importorskip("onnxruntime")
    images, digits = digit_pictures()
    lines = ["path,label"]
    for folder, some in (("photos", range(400)), ("new", range(400, 420))):
        (tmp_path / folder).mkdir()
        for i in some:
            images[i].save(tmp_path / folder / f"{i:03d}.png")
            if folder == "photos" and digits[i] < 5 and i % 3 == 0:
                lines.append(f"{i:03d}.png,{'abcde'[digits[i]]}")
    (tmp_path / "labels.csv").write_text("\n".join(lines))
    write_blobs(tmp_path / "cifar100.npz")
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"## From Python\n```python\n(.*?)```", page, flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(code.replace('"cifar100"', '"cifar100.npz"'), "README.md", "exec"), {})
    assert rowssl.load("run").history == [
        "novel-01 renamed to six", "novel-04 merged into novel-01", "undo",
    ]  # fmt: skip
    assert "six" in Path("run", "report.html").read_text()
    assert ">six<" not in Path("report.html").read_text()  # `run` itself is as it was


def test_an_edit_in_memory_is_the_edit_in_the_folder(run: rowssl.Run, tmp_path: Path) -> None:
    rows = list(run.problem.table.names)
    here = rowssl.fit(tmp_path / "x.npz", method="kmeans", classes=6)
    assert here.folder is None

    def edited(one: rowssl.Run) -> rowssl.Run:
        one = one.rename("novel-01", "six").merge("six", "novel-02").split("0").move(rows[7], "1")
        return one.relabel({rows[5]: "2", rows[11]: "new"}).rename("1", "uno").undo()

    there = edited(run)
    here = edited(here)
    again = rowssl.load(tmp_path / "run")
    assert here.names == there.names == again.names
    assert "new" in {one.id for one in again.classes}
    for one in (there, again):
        np.testing.assert_array_equal(here.answers.head, one.answers.head)
        np.testing.assert_array_equal(here.problem.targets, one.problem.targets)
        np.testing.assert_allclose(here.answers.confidence, one.answers.confidence, atol=2e-3)
        assert here.evaluation.metrics == one.evaluation.metrics
        assert [each.id for each in one.classifier.classes] == [each.id for each in here.edits.classes]
    assert not run.history
    assert len(again.history) == 7
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["tr_acc"] == run.evaluation.metrics["tr_acc"]
    with pytest.raises(InputError, match="There is no class 'moss'"):
        here.rename("moss", "x")


def test_edits_of_others_in_the_folder_are_kept(run: rowssl.Run, tmp_path: Path) -> None:
    other = rowssl.load(tmp_path / "run")
    run.rename("0", "zero")
    assert other.rename("1", "one").names.shown[:2] == ("zero", "one")
    rowssl.fit(write_blobs(tmp_path / "x.npz"), tmp_path / "run", method="kmeans", classes=6)  # the same model again
    assert other.rename("2", "two").names.shown[:3] == ("zero", "one", "two")
    (tmp_path / "run" / "metrics.json").unlink()
    rowssl.fit(tmp_path / "x.npz", tmp_path / "run", method="kmeans", classes=5)
    with pytest.raises(InputError, match="trained again"):
        other.rename("0", "null")


def test_one_edit_opens_every_file_of_the_run_once(run: rowssl.Run, tmp_path: Path) -> None:
    """In a process of its own: an audit hook cannot be taken away."""
    program = (
        "import sys, collections, rowssl; from rowssl.api import load; seen = collections.Counter()\n"
        "def hook(event, given):\n"
        "    name = str(given[0])\n"
        "    if event == 'open' and sys.argv[1] in name and name.endswith(('.json', '.jsonl', '.safetensors')):\n"
        "        seen[name] += '.tmp' not in name\n"
        "sys.addaudithook(hook)\n"
        "load(sys.argv[1]).rename('0', 'zero')\n"
        "print(max(seen.values()), len([name for name in seen if seen[name]]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "run")], capture_output=True, text=True, check=True
    )
    most, files = map(int, done.stdout.split())
    assert most == 1
    assert files >= 4


def test_a_run_is_saved_elsewhere_with_its_edits(run: rowssl.Run, tmp_path: Path) -> None:
    renamed = run.rename("novel-01", "six").merge("six", "novel-02")
    x = blobs()[0][:10]
    for one in (renamed, rowssl.load(tmp_path / "run")):
        place = tmp_path / f"copy-{one.method is None}"
        one.save(place)
        copy = rowssl.load(place)
        assert copy.history == renamed.history
        assert [str(p) for p in copy.classifier.predict(x)] == [str(p) for p in renamed.classifier.predict(x)]
        assert (place / "report.html").exists()


def test_tables_show_themselves(run: rowssl.Run) -> None:
    assert "<th>confidence</th>" in run.classes._repr_html_()
    assert repr(run.classes).splitlines()[0].split() == ["id", "name", "known", "size", "labelled", "confidence"]
    assert run.classes["0"].labelled == 10
    hostile = run.rename("0", "<script>x</script>")
    assert "<script>x" not in hostile._repr_html_()
    assert hostile.classes["<script>x</script>"].id == "0"
    assert "Tr-ACC" in repr(run.evaluation)
    assert "Tr-ACC" in run.evaluation._repr_html_()
    assert "6 classes, 3 of them known" in repr(run)
    predictions = run.classifier.predict(blobs()[0][:3])
    assert len(predictions) == 3
    assert predictions[0].class_id == "0"
    assert "<td>row 2</td>" in predictions._repr_html_()


def test_pictures_stand_beside_their_classes(finished: Finished) -> None:
    assert rowssl.load(finished.run).classes._repr_html_().count('<img src="data:image/jpeg') >= 10
    new = rowssl.load(finished.run).classifier.predict([finished.fresh[0], finished.fresh[1]])
    assert len(new) == 2


def test_data_frames(run: rowssl.Run) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed, and is no dependency")
    assert run.classes.to_pandas().set_index("id").loc["0", "labelled"] == 10
    assert list(run.predictions().columns[:4]) == ["file", "class", "name", "kind"]
    assert len(run.predictions()) == 120


def test_without_pandas_it_is_said(run: rowssl.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match="pip install pandas"):
        run.classes.to_pandas()


def test_arrays_and_a_method_of_ones_own(tmp_path: Path) -> None:
    class Nearest(KMeans):
        """A method that a user wrote."""

        name = "nearest"

    x, truth = blobs()
    labels = [f"kind {one}" if one < 3 and i % 4 < 2 else None for i, one in enumerate(truth)]
    run = rowssl.fit(x, tmp_path / "run", labels=labels, method=Nearest, classes=6)
    assert run.metrics["method"] == "nearest"
    assert rowssl.load(tmp_path / "run").classes["kind 0"].size == 20
    assert not run.evaluation
    assert run.evaluation.metrics["in_bacc"] is None
    found = rowssl.evaluate(
        [run.names.ids[head] for head, one in zip(run.answers.head, labels, strict=True) if one is None],
        [f"kind {one}" for one, label in zip(truth, labels, strict=True) if label is None],
        known=["kind 0", "kind 1", "kind 2"],
    )
    assert found.metrics["tr_acc"] == {"all": 100.0, "old": 100.0, "new": 100.0}
    del rowssl.METHODS["nearest"]


def test_evaluate_judges_as_a_run_is_judged(run: rowssl.Run) -> None:
    rows = run.problem.unlabelled()
    ids = np.array(run.names.ids)
    truth = np.array(run.problem.class_names)[run.problem.truth[rows]]
    found = rowssl.evaluate(ids[run.answers.head[rows]], truth, known=run.problem.class_names[:3])
    for name in ("tr_acc", "tr_bacc", "user_tr_bacc"):
        assert found.metrics[name] == run.evaluation.metrics[name]
    with pytest.raises(InputError, match="one column"):
        rowssl.evaluate([[1]], [1], known=[1])


def test_compare_is_a_table_of_means(tmp_path: Path) -> None:
    found = rowssl.compare(["kmeans", "gcd"], write_blobs(tmp_path / "x.npz"), seeds=range(2), epochs=2)
    table = found.table()
    assert [row["method"] for row in table] == ["k-means", "GCD"]
    assert table.columns[:3] == ("method", "Tr-ACC All", "Tr-ACC All \u00b1")
    assert found._repr_html_().startswith("<table>")
    with pytest.raises(InputError, match="true classes"):
        rowssl.compare(["kmeans"], write_blobs(tmp_path / "y.npz", true=False))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"epoch": 3}, "no setting 'epoch'"),
        ({"method": "nothing"}, "no method 'nothing'"),
        ({"labels": [1, 2]}, "labels= is a CSV file"),
        ({"options": {"nonsense": 1}, "method": "kmeans"}, "no option 'nonsense'"),
    ],
)
def test_what_cannot_be_is_one_sentence(tmp_path: Path, asked: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        rowssl.fit(write_blobs(tmp_path / "x.npz"), **asked)  # type: ignore[arg-type]


def test_a_fit_goes_on_from_a_run_and_its_corrections(run: rowssl.Run, tmp_path: Path) -> None:
    corrected = run.rename("novel-01", "six").relabel({"row 3": "six", "row 9": "six"})
    again = rowssl.fit(tmp_path / "x.npz", tmp_path / "again", start=corrected)
    assert again.metrics["method"] == "kmeans"
    assert again.classes["six"].known
    assert again.classes["six"].labelled == 2
    with pytest.raises(InputError, match="save it first"):
        rowssl.fit(tmp_path / "x.npz", start=rowssl.fit(tmp_path / "x.npz", method="kmeans", classes=6))


def test_count(tmp_path: Path) -> None:
    found = rowssl.count(write_blobs(tmp_path / "x.npz"), only=["hidden"])
    assert found.used.low <= found.used.best <= found.used.high
    assert "<td>hidden</td>" in found._repr_html_()


def test_the_notebook_runs_and_is_as_it_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    made = __import__("make_notebook")
    kept = json.loads(made.NOTEBOOK.read_text(encoding="utf-8"))
    assert ["".join(cell["source"]) for cell in kept["cells"]] == list(made.CELLS)
    monkeypatch.chdir(tmp_path)
    again = made.notebook()
    shown = [[sorted(o.get("data", ())) for o in cell.get("outputs", ())] for cell in again["cells"]]
    assert shown == [[sorted(o.get("data", ())) for o in cell.get("outputs", ())] for cell in kept["cells"]]
    assert "data:image/jpeg" in json.dumps(kept)
