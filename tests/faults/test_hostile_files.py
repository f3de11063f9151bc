"""Files made to harm whoever reads them: refused in one sentence, nothing run, nothing as large made as they say."""

from __future__ import annotations

import os
import pickle
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hostile import array_bytes, entry, npy, npz, one_sentence, refused, safetensors, tar_gz, within
from PIL import Image

from rowssl.data import embeddings
from rowssl.data.benchmarks import cifar, load_benchmark
from rowssl.data.benchmarks.cifar import read_pickled_arrays
from rowssl.data.table import read_table
from rowssl.encoders.weights import read_state

Command = Callable[..., tuple[int, str, str]]
ROWS = np.arange(12, dtype=np.float32).reshape(6, 2)


class Evil:
    """Unpickling it makes a file."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.target}",)


def short(data: bytes) -> bytes:
    """A pickled byte string, as Python 2 wrote it."""
    return b"U" + bytes([len(data)]) + data


SYSTEM, TOUCH = b"cposix\nsystem\n", short(b"touch RAN")
START = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
TYPE = b"cnumpy\ndtype\nU\x02%bK\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
PROGRAMS = {
    "call": SYSTEM + TOUCH + b"\x85R.",
    "call by stack": b"\x80\x04\x8c\x05posix\x8c\x06system\x93" + TOUCH + b"\x85R.",
    "call of a dotted name": b"\x80\x04\x8c\x05numpy\x8c\x10f2py.os.system\x93" + TOUCH + b"\x85R.",
    "call of an allowed module": b"cnumpy\nload\n" + TOUCH + b"\x85R.",
    "new object": b"\x80\x02" + SYSTEM + TOUCH + b"\x85\x81.",
    "extension": b"\x80\x02\x82\x01.",
    "persistent": b"P1\n.",
    "array class called": b"cnumpy\nndarray\nK\x05\x85R.",
    "array of objects": b"}U\x04data" + START + b"(K\x01K\x05\x85" + TYPE % b"O8" + b"\x89]tbs.",
    "array of more bytes than there are": b"}U\x04data" + START + b"(K\x01\x8a\x08" + b"\xff" * 7 + b"\x0f\x85"
    + TYPE % b"u1" + b"\x89U\x04abcdtbs.",
    "memory by an index": b"\x80\x02}r\xff\xff\xff\x7f.",
    "memory by a length": b"\x80\x04\x8e\xff\xff\xff\xff\x00\x00\x00\x00.",
    "memory by a frame": b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f.",
    "nested tuples as a key": b"\x80\x02})" + b"\x85" * 100_000 + b"Ns.",
    "nested lists": b"\x80\x02" + b"](" * 50_000 + b"e" * 50_000 + b".",
    "labels that laugh": b"\x80\x02](K\x01K\x02eq\x00" + b"".join(b"(" + b"h%c" % i * 10 + b"lq%c" % (i + 1) for i in range(60))
    + b"}U\x06labelsh\x3cs.",
    "no end": b"\x80\x02}",
    "unhashable key": b"}]Ns.",
    "tuples that laugh as a key": b"\x80\x02})q\x00" + b"".join(b"(" + b"h%c" % i * 9 + b"tq%c" % (i + 1) for i in range(60))
    + b"Ns.",
    "not bytes": b"\xff" * 64,
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_pickle_is_never_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for part in ("train", "test", "meta"):
        (tmp_path / part).write_bytes(PROGRAMS[name])
    with refused("CIFAR|meta does not name", seconds=10):
        load_benchmark("cifar100", tmp_path)
    assert not (tmp_path / "RAN").exists()


def test_the_marker_of_these_tests_is_real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pickle.loads(PROGRAMS["call"])
    assert (tmp_path / "RAN").exists()


def test_every_prefix_and_every_flipped_byte_of_a_real_file_is_read_or_refused(full: bool) -> None:
    data = pickle.dumps({b"data": np.zeros((2, 3), np.uint8), b"labels": [1, 2], "names": ["a", "b"]}, protocol=4)
    assert read_pickled_arrays(data, "x")["data"].shape == (2, 3)
    rng = np.random.default_rng(0)
    variants = [data[:end] for end in range(len(data))]
    for _ in range(200_000 if full else 2_000):
        changed = bytearray(data)
        for place in rng.integers(len(data), size=rng.integers(1, 4)):
            changed[place] = rng.integers(256)
        variants.append(bytes(changed))
    refusals = 0
    for one in variants:
        try:
            assert isinstance(read_pickled_arrays(one, "x"), dict)
        except ValueError as error:  # InputError is one
            one_sentence(str(error))
            refusals += 1
    assert refusals > len(data)


@pytest.mark.parametrize(
    "entries",
    [
        [(entry("../../cifar-100-python/meta", 4), b"evil")],
        [(entry("/cifar-100-python/meta", 4), b"evil")],
        [(entry("cifar-100-python/meta", kind=tarfile.SYMTYPE, link="/etc/passwd"), b"")],
        [(entry("cifar-100-python/meta", kind=tarfile.LNKTYPE, link="../../../etc/passwd"), b"")],
        [(entry("cifar-100-python/meta", kind=tarfile.FIFOTYPE), b"")],
        [(entry("cifar-100-python/meta", kind=tarfile.CHRTYPE), b"")],
        [(entry("cifar-100-python/meta", 10**10), b"short")],
        [(entry("cifar-100-python/meta", 10**6), b"short")],
        [(entry("x", 10**10, kind=tarfile.XHDTYPE), b"30 path=a\n")],
        [(entry("x", 10**10, kind=tarfile.GNUTYPE_LONGNAME), b"a")],
    ],
    ids=["dots", "absolute", "link", "hard-link", "pipe", "device", "huge", "cut", "huge-header", "huge-name"],
)
def test_an_archive_leads_nowhere(tmp_path: Path, entries: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    tar_gz(tmp_path / "cifar-100-python.tar.gz", *entries)
    with refused("cifar-100-python.tar.gz"):
        load_benchmark("cifar100", tmp_path)
    assert os.listdir(tmp_path) == ["cifar-100-python.tar.gz"]


def test_an_archive_that_unpacks_to_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: bool) -> None:
    size = 2 * 10**9 if full else 2 * 10**7
    if not full:
        monkeypatch.setattr(cifar, "_ARCHIVE_BYTES", 10**6)
        monkeypatch.setattr(cifar, "_MEMBER_BYTES", 10**6)
    tar_gz(tmp_path / "cifar-100-python.tar.gz", (entry("x", size, kind=tarfile.XHDTYPE), bytes(size)))
    assert (tmp_path / "cifar-100-python.tar.gz").stat().st_size < size / 500
    with refused("unpacks to more"):
        load_benchmark("cifar100", tmp_path)
    tar_gz(tmp_path / "cifar-100-python.tar.gz", (entry("x", size), bytes(size)), (entry("cifar-100-python/meta"), b""))
    with refused("unpacks to more"):
        load_benchmark("cifar100", tmp_path)


def test_a_member_on_disk_has_a_size_limit_too(tmp_path: Path) -> None:
    for part in ("train", "test", "meta"):
        with open(tmp_path / part, "wb") as stream:
            stream.truncate(10**10)  # sparse
    with refused("CIFAR's size"):
        load_benchmark("cifar100", tmp_path)


HEADER = "{'descr': '%s', 'fortran_order': False, 'shape': %s, }"
LYING = {
    "objects.npy": array_bytes(np.array([Evil(Path("RAN"))]), allow_pickle=True),
    "a pickle.npy": pickle.dumps(Evil(Path("RAN"))),
    "code.npy": npy("__import__('os').system('touch RAN')"),
    "huge.npy": npy(HEADER % ("<f4", f"({2**40}, 4)"), bytes(64)),
    "overflow.npy": npy(HEADER % ("<f4", f"({2**62}, {2**62})"), bytes(64)),
    "negative.npy": npy(HEADER % ("<f4", "(-1, 4)"), bytes(64)),
    "structure.npy": npy(HEADER.replace("'%s'", "%s") % ("[('a', '<f4', (9, 9))]", "(2,)"), bytes(648)),
    "deep.npy": npy("(" * 9000),
    "long.npy": npy(HEADER % ("<f4", "(2, 4)") + " " * 60_000, bytes(32)),
    "huge.safetensors": safetensors({"embeddings": {"dtype": "F32", "shape": [2**40, 4], "data_offsets": [0, 64]}}, bytes(64)),
    "beyond.safetensors": safetensors({"embeddings": {"dtype": "F32", "shape": [4, 4], "data_offsets": [64, 128]}}, bytes(64)),
    "length.safetensors": safetensors({}, length=2**63),
    "long header.safetensors": safetensors({}, length=2**31),
    "deep.safetensors": safetensors(b"[" * 100_000),
    "twice.safetensors": safetensors(b'{"embeddings":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"embeddings":{}}', bytes(4)),
    "no json.safetensors": safetensors(b"\xff\xfe{}"),
}  # fmt: skip


@pytest.mark.parametrize("name", LYING)
def test_embeddings_that_lie(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Command) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(LYING[name])
    with refused("cannot be read|must be numbers"):
        read_table(tmp_path / name)
    code, _, said = run("check", tmp_path / name)
    assert code == 2
    assert name in one_sentence(said.strip())
    assert not (tmp_path / "RAN").exists()


def test_zipped_embeddings_that_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    good = array_bytes(ROWS)
    evil = array_bytes(np.array([Evil(tmp_path / "RAN")] * 6), allow_pickle=True)
    for members in ({"embeddings": evil}, {"embeddings": good, "labels": evil}, {"embeddings": pickle.dumps(evil)}):
        with refused("cannot be read"):
            read_table(npz(tmp_path / "x.npz", **members))
    assert not (tmp_path / "RAN").exists()
    for header in ((2**40, 4), (2**62, 2**62), (2**28, 4), (2,), (-1, 2)):
        with refused("another size|cannot be read"):
            read_table(npz(tmp_path / "x.npz", embeddings=npy(HEADER % ("<f4", repr(header)), bytes(48))))
    bomb = npz(tmp_path / "x.npz", embeddings=array_bytes(np.zeros((10_000, 500), np.float32)))
    assert bomb.stat().st_size < 200_000
    assert len(read_table(bomb)) == 10_000
    monkeypatch.setattr(embeddings, "available_memory", lambda: 10**6)
    with refused("unpacks to 0.0 GB, more than the memory that is free", megabytes=16):
        read_table(bomb)
    many = npz(tmp_path / "x.npz", embeddings=array_bytes(np.zeros((900_000, 1), np.int8)))
    assert many.stat().st_size < 2000
    with refused("its 900,000 rows need 0.1 GB, more than the memory that is free", megabytes=16):
        read_table(many)  # the values take less than there is, the names and labels of so many rows do not


YAML = {
    "object": "!!python/object/apply:os.system ['touch RAN']",
    "new": "train: !!python/object/new:os.system ['touch RAN']",
    "name": "seed: !!python/name:os.system",
    "module": "seed: !!python/module:os",
    "own tag": "seed: !own 3",
    "laughs": "a0: &a0 [x, x]\n" + "\n".join(f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 9)}]" for i in range(20)),
    "laughing options": "method: {options: &a {x: &b {y: 1}}}\n" + "\n".join(f"k{i}: {{a: *a, b: *b}}" for i in range(1500)),
    "itself": "train: &a {b: *a}",
    "deep": "train: " + "[" * 2000,
    "deep keys": "\n".join(" " * i + f"k{i}:" for i in range(60)),
    "date": "seed: 2001-99-99",
    "stamp": "seed: !!timestamp x",
    "number": "seed: !!int x",
    "float": "seed: !!float x",
    "long number": "seed: " + "9" * 10_000,
    "null byte": "seed: \0",
    "surrogate": 'method: {name: "\\ud800"}',
    "a list": "[1, 2]",
    "a list as a key": "? [1]\n: 2",
    "escape in a key": '"\\e[31m": 1',
    "large": "# " + "x" * 2**20,
}  # fmt: skip


@pytest.mark.parametrize("name", YAML)
def test_options_from_a_stranger(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Command) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "options.yaml"
    path.write_text(YAML[name], encoding="utf-8", errors="surrogatepass")
    with within(megabytes=128):
        code, _, said = run("fit", tmp_path, "--config", path, "--out", tmp_path / "run")
    assert code == 2
    assert "rowssl: " in one_sentence(said.strip())
    assert not (tmp_path / "RAN").exists()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", ["pth", "safetensors", "zip of a pickle"])
def test_weights_from_a_stranger(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Command) -> None:
    monkeypatch.chdir(tmp_path)
    for i in range(6):
        (tmp_path / "in").mkdir(exist_ok=True)
        Image.new("RGB", (8, 8), (i, 0, 0)).save(tmp_path / "in" / f"{i}.png")
    path = tmp_path / ("x.safetensors" if kind == "safetensors" else "x.pth")
    if kind == "pth":
        path.write_bytes(pickle.dumps({"cls_token": Evil(tmp_path / "RAN")}, protocol=2))
    elif kind == "safetensors":
        shape = {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}
        path.write_bytes(safetensors({"cls_token": shape}))
    else:
        torch.save({"cls_token": Evil(tmp_path / "RAN")}, path)
    with refused("cannot be read as weights"):
        read_state(path)
    code, _, said = run("fit", tmp_path / "in", "--encoder", path, "--out", tmp_path / "run", "--classes", "2")
    assert code == 2
    assert "cannot be read as weights" in one_sentence(said.strip().splitlines()[-1])
    assert not (tmp_path / "RAN").exists()
    shutil.rmtree(tmp_path / "run", ignore_errors=True)
