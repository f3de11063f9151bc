"""Edits as a history: what they amount to, that undo takes everything back, and that no process loses another's edit."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from finished import Finished
from rowssl.api import fit, load
from rowssl.config import build_config
from rowssl.core.errors import InputError
from rowssl.runs.classifier import Classifier
from rowssl.runs.edits import Edits
from rowssl.runs.run import Run

IDS = ("cat", "dog", "novel-01", "novel-02", "novel-03")
PLAIN = Edits(IDS, 2, "m")


def rows(count: int = 200, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Random head probabilities (N, 5) and unit features (N, 6)."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, len(IDS), generator=generator) * 2
    return logits.softmax(1), F.normalize(torch.randn(count, 6, generator=generator), dim=1)


def ids_of(edits: Edits, probability: torch.Tensor, z: torch.Tensor) -> np.ndarray:
    return np.array([edits.classes[label].id for label in edits.apply(probability, z).label])


def test_without_edits_classes_are_heads():
    probability, z = rows()
    applied = PLAIN.apply(probability, z)
    top = probability.topk(2, dim=1)
    assert applied.label.tolist() == top.indices[:, 0].tolist()
    assert applied.second.tolist() == top.indices[:, 1].tolist()
    np.testing.assert_array_equal(applied.confidence, top.values[:, 0].numpy())


def test_a_name_is_shown_and_the_id_stays():
    edits = PLAIN.rename("novel-02", "  Monstera ")
    assert edits.names["novel-02"] == "Monstera"
    assert edits.find("Monstera") == edits.find("novel-02") == "novel-02"
    assert edits.rename("Monstera", "Monstera deliciosa").names["novel-02"] == "Monstera deliciosa"
    for taken in ("cat", "novel-01"):
        with pytest.raises(InputError, match="called"):
            edits.rename("novel-02", taken)
    with pytest.raises(InputError, match="called"):
        edits.rename("novel-01", "Monstera")
    for bad in ("", "  ", "two\nlines", "x" * 500):
        with pytest.raises(InputError, match="printable"):
            edits.rename("novel-01", bad)


def test_a_merge_is_exactly_the_union_and_scores_add_up():
    probability, z = rows()
    edits = PLAIN.merge("novel-01", "novel-03")
    before, after = ids_of(PLAIN, probability, z), ids_of(edits, probability, z)
    assert (after == np.where(before == "novel-03", "novel-01", before)).all()
    applied = edits.apply(probability, z)
    joined = after == "novel-01"
    np.testing.assert_allclose(
        applied.confidence[joined], (probability[:, 2] + probability[:, 4]).numpy()[joined], atol=1e-6
    )
    assert edits.resolve("novel-03") == "novel-01"
    assert [one.id for one in edits.classes] == ["cat", "dog", "novel-01", "novel-02"]
    with pytest.raises(InputError, match="same class"):
        edits.merge("novel-01", "novel-03")


def test_a_name_is_not_lost_to_a_number():
    assert PLAIN.rename("novel-03", "Fern").merge("novel-01", "novel-03").names["novel-01"] == "Fern"
    assert PLAIN.rename("novel-01", "Moss").merge("novel-01", "novel-03").names["novel-01"] == "Moss"
    edits = PLAIN.merge("novel-01", "cat")  # a known class joins a novel one: it had labels, and they say cat
    assert edits.classes[edits.place["novel-01"]].kind == "known"
    assert edits.names["novel-01"] == "cat"
    assert edits.find("cat") == "novel-01"


def test_a_split_divides_one_class_and_leaves_the_others_alone():
    probability, z = rows()
    before = ids_of(PLAIN, probability, z)
    mine = before == "novel-02"
    edits = PLAIN.split("novel-02", z[torch.from_numpy(mine)].numpy())
    after = ids_of(edits, probability, z)
    assert (after[~mine] == before[~mine]).all()
    parts, sizes = np.unique(after[mine], return_counts=True)
    assert parts.tolist() == ["novel-02.1", "novel-02.2"]
    assert sizes[0] >= sizes[1] > 0
    again = PLAIN.split("novel-02", z[torch.from_numpy(mine)].numpy())
    assert again.history[0]["directions"] == edits.history[0]["directions"]
    scores, _ = edits.regroup()(probability, z)
    np.testing.assert_allclose(scores.sum(1).numpy(), 1, atol=1e-5)  # nothing is lost between the parts
    with pytest.raises(InputError, match=r"split into novel-02\.1 and novel-02\.2"):
        edits.resolve("novel-02")
    deeper = edits.split("novel-02.1", z[torch.from_numpy(after == "novel-02.1")].numpy())
    assert set(ids_of(deeper, probability, z)[after == "novel-02.1"]) == {"novel-02.1.1", "novel-02.1.2"}
    back = edits.merge("novel-02.1", "novel-02.2")
    assert (ids_of(back, probability, z)[mine] == "novel-02.1").all()
    with pytest.raises(InputError, match="1 images"):
        PLAIN.split("novel-02", z[:1].numpy())
    with pytest.raises(InputError, match="look too much alike"):
        PLAIN.split("novel-02", z[:1].numpy().repeat(5, axis=0))


def test_a_class_nobody_knows_is_answered_with_the_nearest():
    edits = PLAIN.rename("novel-02", "Monstera")
    with pytest.raises(InputError, match="did you mean novel-02"):
        edits.rename("novel-2", "x")
    with pytest.raises(InputError, match=r"did you mean novel-02 \(Monstera\)\?"):
        edits.merge("cat", "Monstra")
    with pytest.raises(InputError, match="the classes are cat, dog"):
        edits.split("zzzzz", np.eye(3))


MOVES = st.lists(
    st.tuples(st.sampled_from(["rename", "merge", "split", "move", "undo"]), st.integers(0, 99)), max_size=12
)


@settings(max_examples=40, deadline=None)
@given(MOVES)
def test_any_history_can_be_undone_step_by_step(moves):
    probability, z = rows(60)
    edits, states = PLAIN, [PLAIN]
    for do, number in moves:
        here = [one.id for one in edits.classes]
        one, other = here[number % len(here)], here[(number // 7) % len(here)]
        try:
            if do == "rename":
                edits = edits.rename(one, f"name {number}")
            elif do == "merge":
                edits = edits.merge(one, other)
            elif do == "split":
                edits = edits.split(one, z.numpy()[ids_of(edits, probability, z) == one])
            elif do == "move":
                edits = edits.move({f"file {number}": one})
            else:
                edits = edits.undo()
        except InputError:  # refused: too small, taken, the same, nothing to undo
            continue
        states = states[:-1] if do == "undo" else [*states, edits]
        assert edits.state == states[-1].state
        assert Edits(IDS, 2, "m", tuple(json.loads(json.dumps(edits.history)))).state == edits.state
        scores, label = edits.regroup()(probability, z)
        assert scores.shape == (60, len(edits.classes))
        np.testing.assert_allclose(scores.sum(1).numpy(), 1, atol=1e-4)
        assert int(label.max()) < len(edits.classes)
    while edits.effective:
        edits = edits.undo()
    assert edits.state == PLAIN.state


def table(run: Path, name: str) -> list[dict[str, str]]:
    with (run / name).open(newline="") as file:
        return list(csv.DictReader(file))


def test_edits_hold_in_every_file_and_in_prediction_and_undo_restores_them(own_run: Path, finished: Finished):
    before = (own_run / "predictions.csv").read_text()
    sizes = {row["class"]: int(row["size"]) for row in table(own_run, "classes.csv")}
    first, second = [one for one in sizes if one.startswith("novel-")][:2]
    fresh = Classifier.load(own_run).predict_images(finished.fresh[:80])

    load(own_run).rename(first, "<b>Monstera</b>")
    load(own_run).merge("<b>Monstera</b>", second)
    Run.load(own_run).split("a")
    load(own_run).move(["000.png"], first)
    after = {row["class"]: row for row in table(own_run, "classes.csv")}
    assert after[first]["name"] == "<b>Monstera</b>"
    assert second not in after
    assert int(after["a.1"]["size"]) + int(after["a.2"]["size"]) >= sizes["a"] - 1
    rows_now = {row["file"]: row for row in table(own_run, "predictions.csv")}
    assert rows_now["000.png"]["class"] == first
    assert rows_now["000.png"]["labelled"] == "yes"
    assert sum(row["class"] == first for row in rows_now.values()) == int(after[first]["size"])
    report = (own_run / "report.html").read_text()
    assert "&lt;b&gt;Monstera&lt;/b&gt;" in report
    assert "<b>Monstera" not in report

    answers = Classifier.load(own_run).predict_images(finished.fresh[:80])
    assert any(answer.name == "<b>Monstera</b>" for answer in answers)
    for old, new in zip(fresh, answers, strict=True):
        expected = {first: {first}, second: {first}, "a": {"a.1", "a.2"}}.get(old.class_id, {old.class_id})
        assert new.class_id in expected
        assert new.confidence >= old.confidence - 1e-6 or old.class_id == "a"
    stored = Run.load(own_run)
    assert len(stored.names.ids) == len(stored.edits.classes) == 10

    for _ in range(4):
        Run.load(own_run).undo()
    assert (own_run / "predictions.csv").read_text() == before
    assert Classifier.load(own_run).predict_images(finished.fresh[:80]) == fresh
    with pytest.raises(InputError, match="no edit to undo"):
        load(own_run).undo()
    assert len(Edits.load(own_run).history) == 8  # nothing is forgotten


def test_a_moved_image_follows_its_class(own_run: Path, finished: Finished):
    Run.load(own_run).move(["003.png", str(finished.pictures / "004.png")], "b")
    Run.load(own_run).merge("c", "b")
    Run.load(own_run).split("c")
    rows_now = {row["file"]: row["class"] for row in table(own_run, "predictions.csv")}
    assert {rows_now["003.png"], rows_now["004.png"]} <= {"c.1", "c.2"}
    with pytest.raises(InputError, match=r"nothing\.png is not among the training images"):
        load(own_run).move(["nothing.png"], "c.1")


def test_a_report_whose_pictures_are_gone_is_left_and_said(own_run: Path, finished: Finished):
    moved = finished.pictures.with_name("moved")
    finished.pictures.rename(moved)
    try:
        report = (own_run / "report.html").read_text()
        changed = load(own_run).rename("a", "zero")
    finally:
        moved.rename(finished.pictures)
    assert "no longer there" in changed.unwritten[0]
    assert (own_run / "report.html").read_text() == report
    assert {row["name"] for row in table(own_run, "classes.csv")} >= {"zero"}


def test_two_processes_lose_no_edit(own_run: Path):
    program = (
        "import sys, time, pathlib; from rowssl.runs.run import Run\n"
        "while not pathlib.Path(sys.argv[1], 'go').exists(): time.sleep(0.01)\n"
        "run = Run.load(sys.argv[1])\n"
        "for i in range(40): run = run.rename('a', f'{sys.argv[2]} {i}')"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", program, str(own_run), name], stderr=subprocess.DEVNULL, env=os.environ)
        for name in "xy"
    ]
    (own_run / "go").touch()
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
    names = [edit["name"] for edit in Edits.load(own_run).history]
    for name in "xy":  # each in its own order, none missing
        assert [n for n in names if n[0] == name] == [f"{name} {i}" for i in range(40)]


def test_the_same_fit_again_keeps_the_edits_and_another_model_does_not_get_them(tmp_path: Path):
    x = np.random.default_rng(0).normal(size=(60, 8)) + 5 * np.eye(8)[np.arange(60) % 4]
    np.savez(
        tmp_path / "x.npz", embeddings=x.astype(np.float32), labels=np.where(np.arange(60) < 8, np.arange(60) % 2, -1)
    )
    content = {"data": {"source": str(tmp_path / "x.npz")}, "method": {"name": "kmeans"}, "classes": 4}
    fit(build_config(content), tmp_path / "run")
    load(tmp_path / "run").rename("novel-01", "Moss")
    load(tmp_path / "run").merge("0", "1", "novel-02", "Moss")
    load(tmp_path / "run").undo()
    fit(build_config(content), tmp_path / "run")
    assert {row["name"] for row in table(tmp_path / "run", "classes.csv")} == {"0", "Moss"}
    for classes, aside in ((3, "edits.old.json"), (4, "edits.old-2.json"), (3, "edits.old-3.json")):
        Run.load(tmp_path / "run").rename("0", aside)
        (tmp_path / "run" / "metrics.json").unlink()  # else another model may be refused its place
        fit(build_config({**content, "classes": classes}), tmp_path / "run")
        assert {row["name"] for row in table(tmp_path / "run", "classes.csv")} >= {"0", "1", "novel-01"}
        assert not Edits.load(tmp_path / "run").history
    for aside in ("edits.old.json", "edits.old-2.json", "edits.old-3.json"):  # none was written over
        assert aside in (tmp_path / "run" / aside).read_text()


def test_a_damaged_history_is_refused_in_a_sentence(own_run: Path):
    Run.load(own_run).rename("a", "zero")
    path = own_run / "edits.json"
    content = json.loads(path.read_text())
    changed = {**content, "history": [{**content["history"][0], "name": "one"}]}
    broken = [("{", "cannot be read"), (json.dumps({**content, "format": 9}), "format 9")]
    broken += [(json.dumps(changed), "is not as it was written.*take out `self`")]
    content.pop("self")
    broken += [(json.dumps({**content, "model": "other"}), "another model")]
    broken += [(json.dumps({**content, "history": [{"do": "merge", "into": "x", "class": "a"}]}), "edit 1")]
    broken += [(json.dumps({**content, "history": ["?"]}), "edit 1")]
    for text, words in broken:
        path.write_text(text)
        with pytest.raises(InputError, match=words):
            Edits.load(own_run)
    del changed["self"]  # mended by hand
    path.write_text(json.dumps(changed))
    assert Edits.load(own_run).names["a"] == "one"
