"""Every reader of what a user may hand over, with good files to start from; for the fuzzers."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from rowssl.config import build_config, load_config
from rowssl.core.errors import InputError
from rowssl.data import embeddings, readers  # noqa: F401  (read_table imports them when it needs them)
from rowssl.data.benchmarks.cifar import read_pickled_arrays
from rowssl.data.images import open_image
from rowssl.data.labels import encode_labels, read_csv
from rowssl.data.splits import Split, make_split
from rowssl.data.table import read_table
from rowssl.runs.edits import Edits

Target = Callable[[bytes], object]
KEPT = Path(__file__).resolve().parents[1] / "kept" / "format-1" / "run"
ROWS = np.arange(12, dtype=np.float32).reshape(6, 2)


def refusal(call: Callable[[], object]) -> str:
    """The one sentence with which a call was refused; empty if it was not."""
    try:
        call()
    except InputError as error:
        return str(error)
    return ""


def saved(write: Callable[..., object], *arguments: object, **options: object) -> bytes:
    stream = io.BytesIO()
    write(stream, *arguments, **options)
    return stream.getvalue()


def picture(kind: str) -> bytes:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8))
    return saved(lambda stream: image.save(stream, kind))


def parquet() -> list[bytes]:
    """Tables as parquet; ImportError without pyarrow."""
    import pyarrow as arrow
    import pyarrow.parquet as module

    info = {"huggingface": '{"info": {"features": {"label": {"names": ["a", "b"]}}}}'}
    pictures = [{"bytes": picture("PNG"), "path": f"{i}.png"} for i in range(4)]
    tables = [
        arrow.table({"image": pictures, "label": [0, 1, None, 0]}).replace_schema_metadata(info),
        arrow.table({"path": ["a.png", "b.png"], "label": ["x", None]}),
        arrow.table({"img": [picture("PNG"), None], "class": [1.0, 2.0]}),
    ]
    return [saved(lambda stream, table=table: module.write_table(table, stream)) for table in tables]


def split_file() -> bytes:
    labels = np.repeat(np.arange(4), 6)
    with tempfile.TemporaryDirectory() as folder:
        make_split(labels, labels, protocol="longtail", known=2).save(Path(folder) / "split.json")
        return (Path(folder) / "split.json").read_bytes()


def edits_file() -> list[bytes]:
    """Histories of the run that tests/kept has."""
    content = json.loads((KEPT / "edits.json").read_text())
    steps = [
        {"do": "rename", "class": "1", "name": "one"}, {"do": "merge", "class": "2", "into": "1"}, {"do": "undo"},
        {"do": "move", "rows": {"3": "0"}, "new": ["x"]},
    ]  # fmt: skip
    return [(KEPT / "edits.json").read_bytes(), json.dumps({**content, "history": steps}).encode()]


SEEDS: dict[str, Callable[[], Sequence[bytes]]] = {
    "labels.csv": lambda: [b"path,label\na.png,x", b'path;label\na.png;"a ""b"" c"\nb.png;2\n', b"\xef\xbb\xbffile,class\nb.png,"],
    "table.tsv": lambda: [b"path\tlabel\na.png\tx\nb.png\t\n", b"file,class\n./a.png,1\n/b.png,-1\n"],
    "x.npy": lambda: [saved(np.save, ROWS), saved(np.save, ROWS.astype(">i2")), saved(np.save, ROWS.astype(np.float16).T)],
    "x.npz": lambda: [saved(np.savez, embeddings=ROWS, labels=np.array(["a", "b", "", "a", "-1", "c"])),
                      saved(np.savez_compressed, embeddings=ROWS, views=ROWS[None], truth=np.arange(6))],
    "x.parquet": parquet,
    "split.json": lambda: [split_file()],
    "options.yaml": lambda: [b"method: {name: dts, options: {tau_max: 0.8}}\ntrain:\n  epochs: 3\n", b"a: &a {b: 1}\nc: *a"],
    "edits.json": edits_file,
    "pickle": lambda: [pickle.dumps({b"data": ROWS.astype(np.uint8), b"labels": [1, 2], "n": ["a"]}, protocol=4)],
    "image": lambda: [picture(kind) for kind in ("PNG", "JPEG", "GIF", "TIFF", "WEBP", "BMP", "PPM")],
}  # fmt: skip


def file_target(path: Path, read: Callable[[Path], object]) -> Target:
    def target(data: bytes) -> object:
        path.write_bytes(data)
        return read(path)

    return target


def read_whole(path: Path) -> object:
    """Read a table and what is lazy in it."""
    table = read_table(path, check_images=False)
    if table.images is not None:
        table.images[0]
    return table.class_names


def read_options(path: Path) -> object:
    said = refusal(lambda: build_config(load_config([path])))
    if said and "extra inputs" not in said:
        raise InputError(said)
    return said


def read_labels(path: Path) -> object:
    """Labels for the pictures beside them; the refusal names the file."""
    said = refusal(lambda: read_table(path.parent, labels=path, check_images=False))
    assert not said or path.name in said, said
    encode_labels([cell for _, cells in read_csv(path).rows for cell in cells])
    if said:
        raise InputError(said)
    return said


def read_edits(path: Path) -> object:
    edits = Edits.load(path.parent)
    return edits.classes, edits.moves, edits.regroup()


def targets(folder: Path) -> dict[str, Target]:
    """What reads each kind of file; `folder` is where it is written."""
    for letter in "ab":
        (folder / f"{letter}.png").write_bytes(picture("PNG"))
    shutil.copytree(KEPT, folder / "run")
    special: dict[str, Target] = {
        "labels.csv": file_target(folder / "labels.csv", read_labels),
        "split.json": file_target(folder / "split.json", lambda path: Split.load(path, n_train=24, n_test=24)),
        "options.yaml": file_target(folder / "options.yaml", read_options),
        "edits.json": file_target(folder / "run" / "edits.json", read_edits),
        "pickle": lambda data: read_pickled_arrays(data, "x"),
        "image": lambda data: open_image(data, name="x"),
    }
    return {name: special.get(name) or file_target(folder / name, read_whole) for name in SEEDS}
