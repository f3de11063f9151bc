"""predict, edit, relabel and `fit --from` as a person uses them: what is printed, written, and refused."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from finished import Finished
from rowssl.api import fit
from rowssl.config import build_config
from rowssl.runs.edits import Edits
from rowssl.runs.run import Run

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(run: Call) -> Call:
    """The command line in this process."""
    return run


def refused(result: tuple[int, str, str], *words: str) -> None:
    code, _, err = result
    assert code == 2, err
    assert err.startswith("rowssl: ")
    assert len(err.strip().splitlines()) == 1, err
    for word in words:
        assert word in err, err


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def new(finished: Finished, tmp_path: Path) -> Path:
    """A folder of new pictures: digits, one of them in a subfolder, noise, and a file that is none."""
    folder = tmp_path / "new"
    (folder / "more").mkdir(parents=True)
    for i, image in enumerate(finished.fresh[:9]):
        image.save(folder / f"{i}.png")
    finished.fresh[9].save(folder / "more" / "9.png")
    noise = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(noise).save(folder / "noise.png")
    (folder / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n and nothing")
    return folder


def test_predict_files(call: Call, finished: Finished, new: Path):
    code, out, err = call(
        "predict", finished.run, new / "0.png", new / "noise.png", new / "broken.png", new / "gone.png"
    )
    assert code == 0, err
    rows = list(csv.DictReader(out.splitlines()))
    assert list(rows[0]) == ["file", "class", "name", "kind", "confidence", "second", "far"]
    assert [row["file"] for row in rows] == [str(new / "0.png"), str(new / "noise.png")]
    assert [row["far"] for row in rows] == ["no", "yes"]
    assert 0 < float(rows[0]["confidence"]) <= 1
    assert rows[0]["second"] != rows[0]["class"]
    assert f"skipped {new / 'broken.png'}: it is not an image" in err
    assert "gone.png: there is no such file" in err
    assert "2 skipped" in err


def test_predict_a_folder_into_a_file(call: Call, finished: Finished, new: Path, tmp_path: Path):
    code, out, err = call("predict", finished.run, new, "--out", tmp_path / "deep" / "new.csv")
    assert (code, out) == (0, ""), err
    rows = read(tmp_path / "deep" / "new.csv")
    assert len(rows) == 11
    assert str(new / "more" / "9.png") in {row["file"] for row in rows}
    assert "11 answered" in err
    one = next(csv.DictReader(call("predict", finished.run, new / "3.png")[1].splitlines()))
    assert one == next(row for row in rows if row["file"] == one["file"])  # alone as among others
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["new.csv"]


def test_predict_on_a_terminal_is_a_table(call: Call, finished: Finished, new: Path, monkeypatch):
    from rowssl.core.console import out

    monkeypatch.setattr(out, "_force_terminal", True)
    code, text, err = call("predict", finished.run, new)
    assert code == 0, err
    assert "confidence" in text
    assert "┃" in text


def test_predict_the_most_likely_classes(call: Call, own_run: Path, finished: Finished, new: Path):
    from rowssl.runs.classifier import Classifier

    def ask(*words: object) -> list[dict[str, str]]:
        code, out, err = call("predict", own_run, new, *words)
        assert code == 0, err
        return list(csv.DictReader(out.splitlines()))

    plain, rows = ask(), ask("--top", 3)
    tops = [column for k in (1, 2, 3) for column in (f"top_{k}", f"probability_{k}")]
    assert list(rows[0]) == [*plain[0], *tops]
    for before, row in zip(plain, rows, strict=True):
        assert {name: row[name] for name in before} == before
        assert (row["top_1"], row["probability_1"], row["top_2"]) == (row["name"], row["confidence"], row["second"])
        assert float(row["probability_1"]) >= float(row["probability_2"]) >= float(row["probability_3"]) >= 0
    whole = ask("--top", 12)  # there are ten classes
    assert all(row["top_10"] and not row["top_11"] and not row["probability_12"] for row in whole)
    assert sum(float(row[f"probability_{k}"]) for k in range(1, 11) for row in whole[:1]) == pytest.approx(1, abs=2e-3)

    # Merged, split and renamed classes are the classes that are listed.
    call("edit", own_run, "merge", "novel-01", "novel-02", "--no-report")
    call("edit", own_run, "split", "a", "--no-report")
    call("edit", own_run, "rename", "novel-01", "Monstera", "--no-report")
    model = Classifier.load(own_run)
    edited = ask("--top", 4)
    files = [row["file"] for row in edited]
    scores, label, _ = model.network.answer(model.trunk([Image.open(path).convert("RGB") for path in files]))
    names = [one.name for one in model.edits.classes]
    assert "Monstera" in names
    for row, score, chosen in zip(edited, scores.numpy(), label.tolist(), strict=True):
        order = [chosen, *[int(k) for k in np.argsort(-score, kind="stable") if k != chosen]]
        assert [row[f"top_{k}"] for k in range(1, 5)] == [names[k] for k in order[:4]]
        assert [float(row[f"probability_{k}"]) for k in range(1, 5)] == pytest.approx(score[order[:4]], abs=1e-3)
    refused(call("predict", own_run, new, "--top", -1), "--top")


def test_predict_abstains(call: Call, own_run: Path, new: Path, tmp_path: Path, monkeypatch):
    from rowssl.core.console import out as console

    plain = list(csv.DictReader(call("predict", own_run, new)[1].splitlines()))
    limit = sorted(float(row["confidence"]) for row in plain)[4] + 1e-3
    unsure = sum(float(row["confidence"]) < limit for row in plain)
    assert 0 < unsure < len(plain)
    code, _, err = call("predict", own_run, new, "--abstain", limit, "--top", 2, "--out", tmp_path / "new.csv")
    assert code == 0, err
    assert f"{len(plain) - unsure} answered, {unsure} abstained" in err
    rows = read(tmp_path / "new.csv")
    assert [name for name in rows[0] if name not in plain[0]] == [
        "abstained", "guess", "top_1", "probability_1", "top_2", "probability_2"
    ]  # fmt: skip
    for before, row in zip(plain, rows, strict=True):
        assert (row["confidence"], row["second"], row["far"]) == (before["confidence"], before["second"], before["far"])
        if float(before["confidence"]) < limit:
            assert [row[name] for name in ("class", "name", "kind")] == ["", "", ""]
            assert (row["abstained"], row["guess"]) == ("yes", before["name"])
        else:
            assert [row[name] for name in ("class", "name", "kind")] == [before[n] for n in ("class", "name", "kind")]
            assert (row["abstained"], row["guess"]) == ("no", "")
    assert "0 answered, 11 abstained" in call("predict", own_run, new, "--abstain", 1)[2]
    assert "11 answered, 0 abstained" in call("predict", own_run, new, "--abstain", 0)[2]
    for wrong in (80, -0.1, "nan"):
        refused(call("predict", own_run, new, "--abstain", wrong), "--abstain", "from 0 to 1")
    monkeypatch.setattr(console, "_force_terminal", True)
    code, text, err = call("predict", own_run, new, "--abstain", limit, "--top", 2)
    assert code == 0, err
    assert "probability" not in text  # one column on a terminal


def test_predict_refuses_in_a_sentence(call: Call, finished: Finished, new: Path, tmp_path: Path):
    refused(call("predict", tmp_path / "nowhere", new), "nowhere")
    refused(call("predict", tmp_path, new / "0.png"), "no finished run")
    (tmp_path / "notes.txt").write_text("hello")
    refused(call("predict", finished.run, tmp_path / "notes.txt"), "notes.txt")
    np.save(tmp_path / "x.npy", np.zeros((3, 5), dtype=np.float32))
    refused(call("predict", finished.run, tmp_path / "x.npy"), "looks at pictures")
    code, _, err = call("predict", finished.run, new / "broken.png", "--out", tmp_path / "none.csv")
    assert code == 2
    assert "None of the images could be read" in err
    assert not list(tmp_path.glob("*none.csv*"))


def test_predict_embeddings(call: Call, tmp_path: Path):
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(size=(60, 8)) + 4 * np.eye(8)[c] for c in range(3)]).astype(np.float32)
    np.savez(tmp_path / "train.npz", embeddings=x, labels=np.where(np.arange(180) < 20, 0, -1))
    np.save(tmp_path / "new.npy", np.concatenate([x[:5], -9 * x[:2]]))
    code, _, err = call("fit", tmp_path / "train.npz", "--method", "kmeans", "--classes", 3, "--out", tmp_path / "run")
    assert code == 0, err
    code, out, err = call("predict", tmp_path / "run", tmp_path / "new.npy")
    assert code == 0, err
    rows = list(csv.DictReader(out.splitlines()))
    assert [row["file"] for row in rows] == [f"row {i}" for i in range(7)]
    assert {row["class"] for row in rows[:5]} == {"0"}
    assert [row["far"] for row in rows[5:]] == ["yes", "yes"]
    refused(call("predict", tmp_path / "run", tmp_path / "run" / "report.html"), "report.html")
    code, out, err = call("edit", tmp_path / "run", "move", 17, 170, "0")  # rows by number
    assert (code, out.strip()) == (0, "2 moved to 0"), err
    assert Edits.load(tmp_path / "run").moves == {"row 17": "0", "row 170": "0"}


def test_edit(call: Call, own_run: Path, new: Path):
    assert call("edit", own_run, "rename", "novel-01", "Monstera")[1].strip() == "novel-01 is now called Monstera"
    assert (
        call("edit", own_run, "merge", "Monstera", "novel-02", "novel-03")[1].strip()
        == "novel-02, novel-03 joined novel-01"
    )
    assert call("edit", own_run, "split", "b", "--into", 3, "--no-report")[1].strip() == "b is now b.1 and b.2 and b.3"
    names = {row["class"]: row["name"] for row in read(own_run / "classes.csv")}
    assert names["novel-01"] == "Monstera"
    assert not {"novel-02", "novel-03", "b"} & set(names)
    answered = list(csv.DictReader(call("predict", own_run, new)[1].splitlines()))
    assert not {"novel-02", "novel-03", "b"} & {row["class"] for row in answered}
    code, out, _ = call("edit", own_run, "history")
    assert code == 0
    assert [line.split("  ", 1)[1] for line in out.strip().splitlines()] == [
        "novel-01 renamed to Monstera",
        "novel-02 merged into novel-01",
        "novel-03 merged into novel-01",
        "b split into b.1 and b.2 and b.3",
    ]
    assert call("edit", own_run, "undo")[1].strip() == "undone: b split into b.1 and b.2 and b.3"
    refused(call("edit", own_run, "rename", "novel-0", "X"), "did you mean", "novel-0")
    refused(call("edit", own_run, "paint", "b"), "rename, merge, split, move, undo")
    refused(call("edit", own_run, "merge", "b"), "merge CLASS OTHER...")
    refused(call("edit", own_run, "move", "099.png", "nothing"), "nothing")


def test_relabel(call: Call, own_run: Path, tmp_path: Path):
    call("edit", own_run, "rename", "novel-01", "Monstera", "--no-report")
    before = {row["file"]: row["class"] for row in read(own_run / "predictions.csv")}
    wrong = [name for name, one in before.items() if one != "novel-01"][:2]
    right = next(name for name, one in before.items() if one == "novel-01")
    table = tmp_path / "corrections.csv"
    table.write_text(f"file,label\n{wrong[0]},Monstera\n{wrong[1]},Monstra\n{right},novel-01\n{right},\n")
    code, out, err = call("relabel", own_run, table)
    assert code == 0, err
    assert "2 corrected, 1 confirmed; new labels: Monstra" in out
    assert "did you mean novel-01 (Monstera)?" in err
    after = {row["file"]: row for row in read(own_run / "predictions.csv")}
    assert after[wrong[0]]["class"] == "novel-01"
    assert after[wrong[1]]["class"] == "Monstra"
    assert {after[name]["labelled"] for name in (*wrong, right)} == {"yes"}
    assert call("edit", own_run, "undo", "--no-report")[0] == 0

    # An edited copy of predictions.csv: only what was changed counts.
    rows = read(own_run / "predictions.csv")
    rows[5]["class"] = "e" if rows[5]["class"] != "e" else "d"
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    code, out, err = call("relabel", own_run, table, "--no-report")
    assert (code, out.splitlines()[0]) == (0, "1 corrected, 0 confirmed"), err
    assert Edits.load(own_run).moves == {rows[5]["file"]: rows[5]["class"]}

    for text, words in (
        ("file,label\nnothing.png,a\n", ("corrections.csv row 2", "nothing.png")),
        (f"file,label\n{right},a\n{right},b\n", ("row 3", "row 2")),
        ("x,y\n1,2\n", ("label",)),
        (f"file,label\n{right},\n", ("no correction",)),
    ):
        table.write_text(text)
        refused(call("relabel", own_run, table), *words)


def test_fit_from_a_run_keeps_ids_and_names_and_learns_the_corrections(
    call: Call, own_run: Path, finished: Finished, tmp_path: Path
):
    """The classes of the run go on: renamed, merged, corrected and new ones, and those nobody touched."""
    rows = read(own_run / "predictions.csv")
    novel = [row["class"] for row in read(own_run / "classes.csv") if row["kind"] == "novel"]
    call("edit", own_run, "rename", novel[0], "Monstera", "--no-report")
    call("edit", own_run, "rename", novel[1], "Fern", "--no-report")
    call("edit", own_run, "merge", "a", "b", "--no-report")
    hidden = [i for i, row in enumerate(rows) if row["labelled"] == "no"]
    inside = [finished.digits[i] for i, row in enumerate(rows) if row["class"] == novel[0]]
    digit = int(np.bincount(inside).argmax())  # what Monstera mostly is
    same = [i for i in hidden if finished.digits[i] == digit][:8]
    nine = [i for i in hidden if finished.digits[i] == 9][:8]
    assert digit != 9
    lines = [f"{rows[i]['file']},Monstera" for i in same] + [f"{rows[i]['file']},nine" for i in nine]
    (tmp_path / "corrections.csv").write_text("file,label\n" + "\n".join(lines) + "\n")
    assert call("relabel", own_run, tmp_path / "corrections.csv", "--no-report")[0] == 0

    code, _, err = call("fit", "--from", own_run, "--out", tmp_path / "again", "--epochs", 6)
    assert code == 0, err
    assert "6 known classes" in err  # a (with b), c, d, e, nine, Monstera
    facts = json.loads((tmp_path / "again" / "model" / "manifest.json").read_text())
    assert facts["classes"][:6] == ["a", "c", "d", "e", "nine", novel[0]]
    after = {row["class"]: row for row in read(tmp_path / "again" / "classes.csv")}
    assert (after[novel[0]]["name"], after[novel[0]]["kind"]) == ("Monstera", "known")
    assert after[novel[1]]["name"] == "Fern"
    assert after["nine"]["kind"] == "known"
    assert "b" not in after

    before = {row["file"]: row["class"] for row in read(own_run / "predictions.csv")}
    now = {row["file"]: row["class"] for row in read(tmp_path / "again" / "predictions.csv")}
    assert np.mean([now[rows[i]["file"]] == novel[0] for i in same]) > 0.6
    assert np.mean([now[rows[i]["file"]] == "nine" for i in nine]) > 0.7
    for one in novel:  # a novel class is still about the same images
        mine = [name for name, label in before.items() if label == one]
        if len(mine) >= 20:
            values, counts = np.unique([now[name] for name in mine], return_counts=True)
            assert values[counts.argmax()] == one

    refused(call("fit", "--from", own_run, "--out", own_run), "--out")
    refused(call("fit", "--from", tmp_path / "nothing", "--out", tmp_path / "x"), "nothing")


def test_other_corrections_are_another_run(own_run: Path, tmp_path: Path):
    """The identity follows the model and the corrections, not the place of the folder."""
    from rowssl.runs.warm_start import Start, continued_content, open_start

    def digest(folder: Path) -> str:
        start = open_start(str(folder), None)
        assert isinstance(start, Start)
        return start.digest

    moved = Path(shutil.copytree(own_run, tmp_path / "moved"))
    assert digest(own_run) == digest(moved)

    Run.load(moved).rename("a", "zero")
    assert digest(own_run) != digest(moved)
    content = continued_content(own_run, with_data=True)
    content["method"] = {"name": "kmeans"}
    run = fit(build_config(content))
    assert run.metrics["identity"] != fit(build_config({**content, "start": str(moved)})).metrics["identity"]
    assert set(run.names.ids[: run.names.n_old]) == set("abcde")
