"""CIFAR from parquet files and from the original archive, and what a hostile archive can do: nothing."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rowssl.core.errors import InputError
from rowssl.data.benchmarks import cifar, load_benchmark


def python2_pickle(content: dict[str, Any]) -> bytes:
    """What Python 2 wrote with protocol 2: byte strings as BINSTRING, arrays by numpy.core.multiarray._reconstruct."""

    def value(item: Any) -> bytes:
        if isinstance(item, str):
            return b"T" + struct.pack("<i", len(item)) + item.encode()
        if isinstance(item, int):
            return b"J" + struct.pack("<i", item)
        if isinstance(item, list):
            return b"](" + b"".join(map(value, item)) + b"e"
        shape = b"".join(map(value, item.shape)) + b"\x86"
        kind = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        raw = item.tobytes()
        start = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R("
        return start + b"K\x01" + shape + kind + b"\x89T" + struct.pack("<i", len(raw)) + raw + b"tb"

    return b"\x80\x02}" + b"".join(value(key) + value(item) + b"s" for key, item in content.items()) + b"."


def cifar_content(classes: int, n: int) -> dict[str, Any]:
    rng = np.random.default_rng(n)
    key = "fine_labels" if classes == 100 else "labels"
    pixels = rng.integers(0, 256, (n, 3072), dtype=np.uint8)
    return {"data": pixels, key: rng.integers(0, classes, n).tolist(), "filenames": [f"im_{i}.png" for i in range(n)]}


def cifar100_members() -> dict[str, bytes]:
    names = [f"thing {i}" for i in range(100)]
    return {
        "train": python2_pickle(cifar_content(100, 30)),
        "test": python2_pickle(cifar_content(100, 12)),
        "meta": python2_pickle({"fine_label_names": names}),
    }


def write_tar(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))


@pytest.mark.parametrize("place", ["cifar100/cifar-100-python", "cifar-100-python", "."])
def test_cifar100_folder(tmp_path: Path, place: str) -> None:
    (tmp_path / place).mkdir(parents=True, exist_ok=True)
    for name, data in cifar100_members().items():
        (tmp_path / place / name).write_bytes(data)
    train, test = load_benchmark("cifar100", tmp_path)
    content = cifar_content(100, 30)
    assert (len(train), len(test)) == (30, 12)
    assert train.labels.tolist() == content["fine_labels"]
    assert train.class_names[7] == "thing 7"
    assert train.names[3] == "im_3.png"
    planes = content["data"][5].reshape(3, 32, 32)
    assert np.asarray(train.image(5))[10, 20].tolist() == planes[:, 10, 20].tolist()


def test_cifar100_archive_stays_in_memory(tmp_path: Path) -> None:
    write_tar(tmp_path / "cifar-100-python.tar.gz", {f"cifar-100-python/{k}": v for k, v in cifar100_members().items()})
    train, _ = load_benchmark("cifar100", tmp_path)
    assert len(train) == 30
    assert os.listdir(tmp_path) == ["cifar-100-python.tar.gz"]


def test_cifar10_batches(tmp_path: Path) -> None:
    folder = tmp_path / "cifar10" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for i in range(1, 6):  # as a newer Python writes them, without file names
        content = cifar_content(10, 10 + i)
        del content["filenames"]
        (folder / f"data_batch_{i}").write_bytes(pickle.dumps(content, protocol=4))
    (folder / "test_batch").write_bytes(pickle.dumps(cifar_content(10, 4), protocol=4))
    with pytest.raises(InputError, match=r"only a part of CIFAR-10: batches\.meta is missing"):
        load_benchmark("cifar10", tmp_path)
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": list("abcdefghij")}, protocol=4))
    train, test = load_benchmark("cifar10", tmp_path)
    assert (len(train), len(test)) == (65, 4)
    assert train.names[64] == "row 64"
    assert train.labels[:11].tolist() == cifar_content(10, 11)["labels"]


class Evil:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.target}",)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_with_code_is_refused_unrun(tmp_path: Path, protocol: int) -> None:
    members = cifar100_members()
    members["train"] = pickle.dumps({"data": Evil(tmp_path / "ran")}, protocol=protocol)
    write_tar(tmp_path / "cifar-100-python.tar.gz", {f"cifar-100-python/{k}": v for k, v in members.items()})
    with pytest.raises(
        InputError, match=r"train is not a file of the CIFAR archive and was refused: it asks for posix"
    ):
        load_benchmark("cifar100", tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("member", "data", "message"),
    [
        ("train", b"", "train is not a file of the CIFAR archive"),
        ("train", b"\x80\x04garbage", "train is not a file of the CIFAR archive"),
        ("train", pickle.dumps([1]), "it holds no dictionary"),
        ("train", pickle.dumps({"data": [1]}), "train holds no images of 32 x 32 pixels"),
        ("train", pickle.dumps({"data": eval}), "it asks for builtins.eval"),
        ("test", python2_pickle(cifar_content(100, 12) | {"fine_labels": [0] * 3}), "one label of 100 for each image"),
        ("test", python2_pickle(cifar_content(100, 2) | {"fine_labels": [0, 100]}), "one label of 100 for each image"),
        ("meta", python2_pickle({"fine_label_names": ["one"]}), "meta does not name 100 classes"),
    ],
)
def test_damaged_cifar(tmp_path: Path, member: str, data: bytes, message: str) -> None:
    for name, content in (cifar100_members() | {member: data}).items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        load_benchmark("cifar100", tmp_path)


def test_damaged_archive(tmp_path: Path) -> None:
    path = tmp_path / "cifar-100-python.tar.gz"
    path.write_bytes(b"not an archive")
    with pytest.raises(InputError, match="is not a readable archive"):
        load_benchmark("cifar100", tmp_path)
    write_tar(path, {f"cifar-100-python/{k}": v for k, v in cifar100_members().items()})
    path.write_bytes(path.read_bytes()[:20_000])
    with pytest.raises(InputError, match="is not a readable archive"):
        load_benchmark("cifar100", tmp_path)


def test_an_archive_of_many_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, members = (
        tmp_path / "cifar-100-python.tar.gz",
        {f"cifar-100-python/{k}": v for k, v in cifar100_members().items()},
    )
    write_tar(path, {f"cifar-100-python/{i}": b"" for i in range(50)} | members)
    assert len(load_benchmark("cifar100", tmp_path)[0]) == 30
    seen = []
    following = tarfile.TarFile.next
    monkeypatch.setattr(tarfile.TarFile, "next", lambda archive: seen.append(1) or following(archive))
    write_tar(path, {f"cifar-100-python/{i}": b"" for i in range(1000)} | members)
    with pytest.raises(InputError, match=r"tar\.gz is not a readable archive: it holds more files than CIFAR has$"):
        load_benchmark("cifar100", tmp_path)
    assert len(seen) < 400  # the rest was not looked at


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_an_archive_of_headers_of_headers(tmp_path: Path, kind: bytes) -> None:
    header = tarfile.TarInfo("x")
    header.type = kind
    (tmp_path / "cifar-100-python.tar.gz").write_bytes(gzip.compress(header.tobuf() * 5000 + bytes(1024)))
    with pytest.raises(InputError, match="is not a readable archive"):
        load_benchmark("cifar100", tmp_path)


def test_a_pickle_of_many_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cifar.OPERATIONS >= 10 * 400_000  # those of the largest real file
    monkeypatch.setattr(cifar, "OPERATIONS", 1000)
    assert cifar.read_pickled_arrays(python2_pickle({"labels": [7] * 900}), "x") == {"labels": [7] * 900}
    with pytest.raises(InputError, match=r"x is not a file .* refused: it has more operations than a file of arrays$"):
        cifar.read_pickled_arrays(python2_pickle({"labels": [7] * 1100}), "x")


@pytest.mark.parametrize("place", [".", "cifar10", "cifar10/data", "cifar10/plain_text"])
@pytest.mark.parametrize("metadata", [True, False])
def test_cifar_parquet_shards(tmp_path: Path, place: str, metadata: bool) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    stream = io.BytesIO()
    Image.new("RGB", (32, 32), (9, 8, 7)).save(stream, "PNG")
    names = ",".join(f'"n{i}"' for i in range(10))
    info = {"huggingface": f'{{"info": {{"features": {{"label": {{"names": [{names}]}}}}}}}}'} if metadata else None

    def write(name: str, labels: list[int]) -> None:
        columns = {"img": [{"bytes": stream.getvalue(), "path": None} for _ in labels], "label": labels}
        path = tmp_path / place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(arrow.table(columns).replace_schema_metadata(info), path)

    write("train-00000-of-00002.parquet", [9, 3, 1, 2, 4])
    write("train-00001-of-00002.parquet", [3, 0, 7, 5, 6, 8])
    with pytest.raises(InputError, match=r"only a part of CIFAR-10: test\.parquet is missing"):
        load_benchmark("cifar10", tmp_path)
    write("test.parquet", list(range(10)))
    train, test = load_benchmark("cifar10", tmp_path)
    assert train.labels.tolist() == [9, 3, 1, 2, 4, 3, 0, 7, 5, 6, 8]
    assert train.class_names[9] == ("n9" if metadata else "9")
    assert train.names[7] == "row 7"
    assert train.image(7).getpixel((0, 0)) == (9, 8, 7)
    assert test.class_names == train.class_names
    with pytest.raises(InputError, match="is not CIFAR-100"):
        load_benchmark("cifar100", tmp_path / place)
    (tmp_path / place / "test.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match="is not a readable parquet file"):
        load_benchmark("cifar10", tmp_path)


@pytest.mark.shared
def test_real_cifar100(shared_dir: Path) -> None:
    for root in (shared_dir / "data", shared_dir / "data" / "cifar100"):
        train, test = load_benchmark("cifar100", root)
        assert (len(train), len(test)) == (50_000, 10_000)
        assert np.bincount(train.labels).tolist() == [500] * 100
        assert np.bincount(test.labels).tolist() == [100] * 100
    assert train.class_names[0] == "apple"
    assert train.image(49_999).size == (32, 32)
