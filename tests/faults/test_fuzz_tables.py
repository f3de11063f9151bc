"""Tables, arrays, options and histories changed at random: read, or refused with an InputError; no other exception, no hang."""

from __future__ import annotations

import io
import json
import os
import pickle
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from fuzz import fuzz, refusal
from hostile import within
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from rowssl.checkpoint import read_directory
from rowssl.config import build_config, load_config
from rowssl.data.images import open_image
from rowssl.data.labels import encode_labels, read_csv
from rowssl.data.pickled_arrays import read_pickled_arrays
from rowssl.data.split_file import Split
from rowssl.data.splits import make_split
from rowssl.data.table import read_table
from rowssl.edit_run import relabel
from rowssl.edits import Edits
from rowssl.errors import InputError
from rowssl.model_checks import check_answers, check_facts
from rowssl.run_folder import check_model_facts

TRIES, MINUTES = 150, 10
ROWS = np.arange(12, dtype=np.float32).reshape(6, 2)


def saved(write: Callable[..., object], *arguments: object, **options: object) -> bytes:
    stream = io.BytesIO()
    write(stream, *arguments, **options)
    return stream.getvalue()


def picture(kind: str) -> bytes:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8))
    return saved(lambda stream: image.save(stream, kind))


def parquet() -> list[bytes]:
    arrow, module = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    info = {"huggingface": '{"info": {"features": {"label": {"names": ["a", "b"]}}}}'}
    pictures = [{"bytes": picture("PNG"), "path": f"{i}.png"} for i in range(4)]
    tables = [
        arrow.table({"image": pictures, "label": [0, 1, None, 0]}).replace_schema_metadata(info),
        arrow.table({"path": ["a.png", "b.png"], "label": ["x", None]}),
        arrow.table({"img": [picture("PNG"), None], "class": [1.0, 2.0]}),
    ]
    return [saved(lambda stream, table=table: module.write_table(table, stream)) for table in tables]


def file_target(folder: Path, name: str, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    def target(data: bytes) -> object:
        (folder / name).write_bytes(data)
        return read(folder / name)

    return target


def read_whole(path: Path) -> object:
    """Read a table and what is lazy in it."""
    table = read_table(path, check_images=False)
    if table.images is not None:
        table.images[0]
    return table.class_names


SEEDS: dict[str, Callable[[], Sequence[bytes]]] = {
    "labels.csv": lambda: [b"path,label\na.png,x", b'path;label\na.png;"a ""b"" c"\nb.png;2\n', b"\xef\xbb\xbffile,class\nb.png,"],
    "table.tsv": lambda: [b"path\tlabel\na.png\tx\nb.png\t\n", b"file,class\n./a.png,1\n/b.png,-1\n"],
    "x.npy": lambda: [saved(np.save, ROWS), saved(np.save, ROWS.astype(">i2")), saved(np.save, ROWS.astype(np.float16).T)],
    "x.npz": lambda: [saved(np.savez, embeddings=ROWS, labels=np.array(["a", "b", "", "a", "-1", "c"])),
                      saved(np.savez_compressed, embeddings=ROWS, views=ROWS[None], truth=np.arange(6))],
    "x.parquet": parquet,
    "split.json": lambda: [_split()],
    "options.yaml": lambda: [b"method: {name: dts, options: {tau_max: 0.8}}\ntrain:\n  epochs: 3\n", b"a: &a {b: 1}\nc: *a"],
    "pickle": lambda: [pickle.dumps({b"data": ROWS.astype(np.uint8), b"labels": [1, 2], "n": ["a"]}, protocol=4)],
    "image": lambda: [picture(kind) for kind in ("PNG", "JPEG", "GIF", "TIFF", "WEBP", "BMP", "PPM")],
}  # fmt: skip


def _split() -> bytes:
    labels = np.repeat(np.arange(4), 6)
    with tempfile.TemporaryDirectory() as folder:
        make_split(labels, labels, protocol="longtail", known=2).save(Path(folder) / "split.json")
        return (Path(folder) / "split.json").read_bytes()


def options(path: Path) -> object:
    said = refusal(lambda: build_config(load_config([path])))
    assert "\n" not in said
    if said and "extra inputs" not in said:
        raise InputError(said)
    return said


@pytest.mark.parametrize("name", SEEDS)
def test_changed_at_random(name: str, tmp_path: Path, full: bool, tally: Callable[[str, int, int], None]) -> None:
    for letter in "ab":
        (tmp_path / f"{letter}.png").write_bytes(picture("PNG"))
    targets: dict[str, Callable[[bytes], object]] = {
        "labels.csv": file_target(tmp_path, name, lambda path: _labels(tmp_path, path)),
        "split.json": file_target(tmp_path, name, lambda path: Split.load(path, n_train=24, n_test=24)),
        "options.yaml": file_target(tmp_path, name, options),
        "pickle": lambda data: read_pickled_arrays(data, "x"),
        "image": lambda data: open_image(data, name="x"),
    }
    target = targets.get(name) or file_target(tmp_path, name, read_whole)
    seconds = MINUTES * 60 / len(SEEDS)
    with within(megabytes=300, seconds=1e9):
        done, refusals = fuzz(target, SEEDS[name](), tries=10**9 if full else TRIES, seconds=seconds)
    assert refusals > done / 20, "the changes do something"
    tally(f"{name} changed at random: read or refused", done, done)


def _labels(folder: Path, path: Path) -> object:
    said = refusal(lambda: read_table(folder, labels=path, check_images=False))
    assert not said or "labels.csv" in said, said
    encode_labels([cell for _, cells in read_csv(path).rows for cell in cells])
    if said:
        raise InputError(said)
    return said


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
    edits = Edits(("a", "b", "c", "novel-01"), 3, "", tuple(one for one in history if isinstance(one, dict)))
    try:
        edits.check(2)
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
    before = (own_run / "model" / "manifest.json").read_bytes()

    def target(data: bytes) -> object:
        (tmp_path / "corrections.csv").write_bytes(data)
        (own_run / "edits.json").unlink(missing_ok=True)
        return relabel(own_run, tmp_path / "corrections.csv", report=False)

    fuzz(target, seeds[:1], tries=2000 if full else 40)
    assert (own_run / "model" / "manifest.json").read_bytes() == before
    json.loads((own_run / "edits.json").read_text()) if (own_run / "edits.json").exists() else None
