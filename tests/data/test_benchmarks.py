"""Benchmarks read from small real folders in the published layouts."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rowssl.core.errors import InputError
from rowssl.data import class_lists
from rowssl.data.benchmarks import BENCHMARKS, load_benchmark


def picture(path: Path, shade: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4), (shade, 0, 0)).save(path)


def test_digits() -> None:
    train, test = load_benchmark("digits")
    assert (len(train), len(test)) == (1297, 500)
    assert np.bincount(test.labels).tolist() == [50] * 10
    assert train.image(0).size == (8, 8)
    assert train.images is not None
    values = np.concatenate([np.asarray(train.images[i]).ravel() for i in range(len(train))])
    assert (values.min(), values.max(), values.dtype) == (0, 255, np.uint8)
    assert not set(train.names) & set(test.names)
    assert load_benchmark("digits")[0].fingerprint() == train.fingerprint()


def imagenet(root: Path, synsets: list[str]) -> None:
    for synset in synsets:
        picture(root / "train" / synset / f"{synset}_1.JPEG")
        (root / "val" / synset).mkdir(parents=True)
        os.link(root / "train" / synset / f"{synset}_1.JPEG", root / "val" / synset / "ILSVRC2012_val_1.JPEG")


def test_imagenet100_folder_and_bacon(tmp_path: Path) -> None:
    imagenet(tmp_path / "imagenet100", list(class_lists.BACON_IMAGENET100_SYNSETS))
    train, test = load_benchmark("imagenet100", tmp_path, variant="folder")
    assert list(train.class_names) == sorted(class_lists.BACON_IMAGENET100_SYNSETS)
    assert (len(train), len(test)) == (100, 100)
    train, _ = load_benchmark("imagenet100", tmp_path / "imagenet100", variant="bacon")
    assert train.class_names == class_lists.BACON_IMAGENET100_SYNSETS
    assert train.names[0] == "n02869837/n02869837_1.JPEG"
    assert train.image(0).size == (4, 4)
    with pytest.raises(InputError, match=r"counts in the 1,000 ILSVRC folders but .* holds 100: use --variant folder"):
        load_benchmark("imagenet100", tmp_path)
    with pytest.raises(InputError, match=r"--variant orca needs SCAN's list .*imagenet100\.txt or as --class-list"):
        load_benchmark("imagenet100", tmp_path, variant="orca")
    listed = tmp_path / "list.txt"
    listed.write_text("".join(f"{synset} a name\n" for synset in class_lists.BACON_IMAGENET100_SYNSETS[::-1]))
    train, _ = load_benchmark("imagenet100", tmp_path, variant="orca", class_list=listed)
    assert train.class_names == class_lists.BACON_IMAGENET100_SYNSETS[::-1]
    with pytest.raises(InputError, match="--class-list goes with --variant orca"):
        load_benchmark("imagenet100", tmp_path, variant="bacon", class_list=listed)
    listed.write_text("n1\nn1\n")
    with pytest.raises(InputError, match=r"list\.txt must name 100 synsets, one a line and each once, not 2"):
        load_benchmark("imagenet100", tmp_path, variant="orca", class_list=listed)
    os.rename(tmp_path / "imagenet100" / "val" / "n02869837", tmp_path / "gone")
    with pytest.raises(InputError, match="val lacks 1 of the 100 classes of --variant bacon, among them n02869837"):
        load_benchmark("imagenet100", tmp_path, variant="bacon")


def test_imagenet100_gcd_counts_in_the_sorted_thousand(tmp_path: Path) -> None:
    synsets = [f"n{10_000_000 + 7 * i}" for i in range(1000)]
    imagenet(tmp_path, synsets)
    train, _ = load_benchmark("imagenet100", tmp_path)
    assert list(train.class_names) == [synsets[i] for i in class_lists.GCD_IMAGENET100_INDICES]


def cub(folder: Path) -> list[str]:
    files = ["001.Albatross/a_2.jpg", "001.Albatross/a_1.jpg", "002.Auklet/b_1.jpg", "002.Auklet/b_2.jpg"]
    for shade, file in enumerate(files):
        picture(folder / "images" / file, 10 * shade)
    (folder / "images.txt").write_text("".join(f"{i} {file}\n" for i, file in enumerate(files, start=1)))
    (folder / "image_class_labels.txt").write_text("1 1\n2 1\n3 2\n4 2\n")
    (folder / "train_test_split.txt").write_text("1 1\n2 0\n3 1\n4 0\n")
    return files


@pytest.mark.parametrize("place", ["cub200", "CUB_200_2011", "cub200/CUB_200_2011", "."])
def test_cub200(tmp_path: Path, place: str) -> None:
    files = cub(tmp_path / place)
    train, test = load_benchmark("cub200", tmp_path)
    assert (list(train.names), list(test.names)) == ([files[0], files[2]], [files[1], files[3]])
    assert train.labels.tolist() == test.labels.tolist() == [0, 1]
    assert train.class_names == ("001.Albatross", "002.Auklet")
    assert train.image(1).size == (4, 4)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("images.txt", "1 001.Albatross/a_2.jpg\n", "do not name the same images"),
        ("images.txt", "1 x.jpg\n2 x.jpg\n3 x.jpg\n4 x.jpg\n", r"images/x\.jpg of images\.txt is not there"),
        ("images.txt", "1 ../images.txt\n2 x\n3 x\n4 x\n", r"is not there"),
        ("images.txt", "one\n", r"images\.txt line 1 is not `number value`"),
        ("image_class_labels.txt", "1 0\n2 1\n3 2\n4 2\n", "image 1 has class '0'"),
        ("image_class_labels.txt", "1 1\n2 1\n3 3\n4 3\n", "leaves out a class between 1 and 3"),
        ("train_test_split.txt", "1 2\n2 1\n3 1\n4 1\n", "image 1 has class '1', part '2'"),
    ],
)
def test_damaged_cub200(tmp_path: Path, file: str, text: str, message: str) -> None:
    cub(tmp_path)
    (tmp_path / file).write_text(text)
    with pytest.raises(InputError, match=message):
        load_benchmark("cub200", tmp_path)


def test_herbarium19(tmp_path: Path) -> None:
    for name in ("1", "10", "2"):
        for file in "fbhadgce":
            picture(tmp_path / "herbarium19" / "small-train" / name / f"{file}.jpg")
        picture(tmp_path / "herbarium19" / "small-validation" / name / "c.jpg")
    (tmp_path / "herbarium19" / "small-train" / "1" / "notes.txt").write_text("not an image")
    train, test = load_benchmark("herbarium19", tmp_path)
    assert train.class_names == test.class_names == ("1", "10", "2")
    assert list(train.names) == [f"{name}/{file}.jpg" for name in ("1", "10", "2") for file in "abcdefgh"]
    assert test.labels.tolist() == [0, 1, 2]
    picture(tmp_path / "herbarium19" / "small-validation" / "3" / "c.jpg")
    with pytest.raises(InputError, match=r"small-validation holds class 3, which .*small-train does not"):
        load_benchmark("herbarium19", tmp_path)
    (tmp_path / "herbarium19" / "small-train" / "3").mkdir()
    with pytest.raises(InputError, match="small-train/3 holds no images"):
        load_benchmark("herbarium19", tmp_path)


@pytest.mark.parametrize("name", [name for name in BENCHMARKS if name != "digits"])
def test_absent(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError) as caught:
        load_benchmark(name, tmp_path)
    assert str(tmp_path / name) in str(caught.value)
    assert BENCHMARKS[name].WANTS in str(caught.value)
    monkeypatch.delenv("ROWSSL_DATA", raising=False)
    with pytest.raises(InputError, match=f"{name} needs a data root: give --data-root or set ROWSSL_DATA"):
        load_benchmark(name)
    with pytest.raises(InputError, match=r"the data root .*nowhere is not a folder"):
        load_benchmark(name, tmp_path / "nowhere")


def test_names_and_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="there is no benchmark 'mnist': choose one of digits, cifar10"):
        load_benchmark("mnist")
    with pytest.raises(InputError, match="--variant for cub200 must be left out, not 'gcd'"):
        load_benchmark("cub200", tmp_path, variant="gcd")
    with pytest.raises(InputError, match="--variant for imagenet100 must be one of gcd, orca, bacon, folder"):
        load_benchmark("imagenet100", tmp_path, variant="scan")
    cub(tmp_path / "cub200")
    monkeypatch.setenv("ROWSSL_DATA", str(tmp_path))
    assert len(load_benchmark("cub200")[0]) == 2
