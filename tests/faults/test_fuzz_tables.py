"""Tables, arrays, options and histories changed at random: read, or refused with an InputError; no other exception, no hang."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from fuzz import fuzz
from hostile import within
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from faults.readers import SEEDS, refusal, targets
from rowssl.core.errors import InputError
from rowssl.core.files import read_directory
from rowssl.data.table import read_table
from rowssl.runs.checks import check_answers, check_facts
from rowssl.runs.edits import Edits
from rowssl.runs.folder import check_model_facts
from rowssl.runs.run import Run

TRIES, MINUTES = 150, 10


@pytest.mark.parametrize("name", SEEDS)
def test_changed_at_random(name: str, tmp_path: Path, full: bool, tally: Callable[[str, int, int], None]) -> None:
    if name == "x.parquet":
        pytest.importorskip("pyarrow")
    target = targets(tmp_path)[name]
    seconds = MINUTES * 60 / len(SEEDS)
    with within(megabytes=300, seconds=1e9):
        done, refusals = fuzz(target, SEEDS[name](), tries=10**9 if full else TRIES, seconds=seconds)
    assert refusals > done / 20, "the changes do something"
    tally(f"{name} changed at random: read or refused", done, done)


def test_with_coverage(tmp_path: Path, full: bool, tally: Callable[[str, int, int], None]) -> None:
    """All readers in one process that Atheris drives: an exception, a hang or too much memory is its exit code."""
    pytest.importorskip("atheris", reason="there is no Atheris for this platform")
    pytest.importorskip("pyarrow")
    command = [sys.executable, "-m", "faults.fuzz_atheris", str(tmp_path), str(MINUTES * 60)]
    command += [] if full else ["-runs=500"]
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    kept = [file.read_bytes()[:2000] for file in tmp_path.iterdir() if file.is_file() and file.suffix != ".txt"]
    assert done.returncode == 0, (kept, (done.stdout + done.stderr)[-6000:])
    found = re.search(r"number_of_executed_units: (\d+)", done.stderr)
    assert found, done.stderr[-2000:]
    assert len(list((tmp_path / "corpus").iterdir())) > 25, "no input reached anything new: nothing is instrumented"
    tally("all readers under Atheris: read or refused", int(found[1]), int(found[1]))


plain = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from(["a", "b", "novel-01"])
)
anything = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4)
)
edit = st.fixed_dictionaries(
    {"do": st.sampled_from(["rename", "merge", "split", "move", "undo", "x"])},
    optional={
        "class": st.sampled_from(["a", "b", "c", "a.1", "novel-01"]) | anything,
        "into": st.sampled_from(["a", "b", "c", "a.2"]) | anything,
        "name": anything,
        "parts": st.lists(st.sampled_from(["a.1", "a.2", "b"]), max_size=3) | anything,
        "directions": st.lists(st.lists(st.floats(), min_size=2, max_size=2), max_size=3) | anything,
        "temperature": plain,
        "rows": st.dictionaries(st.sampled_from(["x", "y"]), st.sampled_from(["a", "b"])) | anything,
        "new": st.lists(st.sampled_from(["a", "n", "m"]), max_size=2) | anything,
    },
)
EXAMPLES = 5_000 if os.environ.get("ROWSSL_FULL") else 60
SETTINGS = settings(deadline=None, max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), derandomize=True)


@SETTINGS
@given(st.lists(edit | anything, max_size=8))
def test_any_history_of_edits_is_followed_or_refused(history: list[object]) -> None:
    edits = Edits(("a", "b", "c", "novel-01"), 3, "", tuple(one for one in history if isinstance(one, dict)), 2)
    try:
        edits.check()
    except InputError:
        return
    for one in (*edits.class_ids, *edits.names, *edits.names.values()):
        said = refusal(lambda one=one: edits.place[edits.find(one)])
        assert not said or "was split" in said or "There is no class" in said
    assert sum(len(one.leaves) for one in edits.classes) >= 4
    edits.regroup()


def replaced(value: object, path: list[int], new: object) -> object:
    """A copy of a JSON value in which one place, found by numbers, is another value."""
    if not path or not isinstance(value, dict | list) or not value:
        return new
    if isinstance(value, dict):
        key = sorted(value)[path[0] % len(value)]
        return {**value, key: replaced(value[key], path[1:], new)}
    place = path[0] % len(value)
    return [*value[:place], replaced(value[place], path[1:], new), *value[place + 1 :]]


@pytest.fixture(scope="module")
def parts(finished: object) -> tuple[dict[str, object], dict[str, object], dict[str, object], int]:
    run: Path = finished.run  # type: ignore[attr-defined]
    facts = read_directory(run / "model")[1]
    tensors, answers = read_directory(run / "answers")
    return facts, answers, tensors, len(facts["classes"])


@SETTINGS
@given(place=st.lists(st.integers(0, 50), min_size=1, max_size=4), new=anything)
def test_any_manifest_is_used_or_refused(parts: tuple, place: list[int], new: object) -> None:
    facts, answers, tensors, classes = parts
    for check in (
        lambda: check_model_facts(replaced(facts, place, new), Path("model")),
        lambda: check_facts({**facts, "encoder": replaced(facts["encoder"], place, new)}, Path("model")),
        lambda: check_answers(replaced(answers, place, new), tensors, classes, Path("answers")),
    ):
        assert "\n" not in refusal(check)


@SETTINGS
@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes_as_a_table_of_labels(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.csv"
        path.write_bytes(b"path,label\n" + data)
        said = refusal(lambda: read_table(path, check_images=False))
        assert not said or "x.csv" in said


def test_corrections_changed_at_random(own_run: Path, tmp_path: Path, full: bool) -> None:
    seeds = [b"file,label\n000.png,a\n001.png,new\n", b"row,label\n3,b\n4,novel-01\n"]
    before, read = (own_run / "model" / "manifest.json").read_bytes(), Run.load(own_run)

    def target(data: bytes) -> object:
        (tmp_path / "corrections.csv").write_bytes(data)
        (own_run / "edits.json").unlink(missing_ok=True)
        return read.relabel(tmp_path / "corrections.csv")

    fuzz(target, seeds[:1], tries=2000 if full else 40)
    assert (own_run / "model" / "manifest.json").read_bytes() == before
    json.loads((own_run / "edits.json").read_text()) if (own_run / "edits.json").exists() else None
