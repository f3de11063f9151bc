"""Folders of real pictures: labels from a CSV file, from subfolders, or none; and what a table can do."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from rowssl.core.errors import ImageError, InputError
from rowssl.data.images import Skipped
from rowssl.data.table import ImageSubset, Table, read_table, write_folder


def picture(path: Path, shade: int = 100) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (6, 6), (shade, 0, 0)).save(path, "PNG")
    return path


def digits(count: int = 30, labelled: int = 10) -> Table:
    data = load_digits()
    images = (data.images[:count] * 15).astype(np.uint8)
    labels = np.where(np.arange(count) < labelled, data.target[:count], -1)
    return Table(labels, tuple("0123456789"), tuple(f"row {i}" for i in range(count)), images=images)


def labels_of(table: Table) -> dict[str, str | None]:
    return {
        name: None if label < 0 else table.class_names[label]
        for name, label in zip(table.names, table.labels, strict=True)
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b.png", "a.png", "sub/c.png"):
        picture(tmp_path / "pictures" / name)
    return tmp_path / "pictures"


def write_csv(folder: Path, text: str) -> Path:
    path = folder.parent / "labels.csv"
    path.write_text(text)
    return path


def test_digits_go_out_and_come_back(tmp_path: Path) -> None:
    table = digits()
    write_folder(table, tmp_path / "digits", labels_csv=tmp_path / "labels.csv")
    again = read_table(tmp_path / "digits", labels=tmp_path / "labels.csv")
    assert len(again) == 30
    assert again.names[:2] == ("000000.png", "000001.png")
    assert again.class_names == tuple("0123456789")
    np.testing.assert_array_equal(again.labels, table.labels)
    for row in (0, 17, 29):
        np.testing.assert_array_equal(np.asarray(again.image(row))[:, :, 0], table.images[row])


def test_folder_with_some_labels(folder: Path) -> None:
    table = read_table(folder, labels=write_csv(folder, "path,label\n./sub/c.png,cat\na.png,dog\n"))
    assert table.names == ("a.png", "b.png", "sub/c.png")  # sorted by relative path
    assert labels_of(table) == {"a.png": "dog", "b.png": None, "sub/c.png": "cat"}
    assert table.class_names == ("cat", "dog")
    assert table.paths is not None
    assert all(path.is_absolute() and path.exists() for path in table.paths)
    assert table.image(0).getpixel((0, 0)) == (100, 0, 0)


@pytest.mark.parametrize("column", ["file", "filename", "image", "Path", " path "])
def test_other_names_of_the_path_column(folder: Path, column: str) -> None:
    table = read_table(folder, labels=write_csv(folder, f"{column},Label\nb.png,x\n"))
    assert labels_of(table)["b.png"] == "x"


def test_absolute_and_windows_paths_and_semicolons(folder: Path) -> None:
    text = f"path;label\n{folder}/a.png;x\nsub\\c.png;y\n"
    assert labels_of(read_table(folder, labels=write_csv(folder, text))) == {
        "a.png": "x",
        "b.png": None,
        "sub/c.png": "y",
    }


def test_label_for_a_file_that_is_not_there(folder: Path) -> None:
    (folder / "notes.txt").write_text("no image")
    with pytest.raises(InputError, match=r"labels.csv row 3 names 'z.png', which is not in .*pictures"):
        read_table(folder, labels=write_csv(folder, "path,label\na.png,x\nz.png,y\n"))
    with pytest.raises(InputError, match=r"row 2 names 'notes.txt', which is in .* but is not an image file"):
        read_table(folder, labels=write_csv(folder, "path,label\nnotes.txt,x\n"))
    with pytest.raises(InputError, match="row 2 has no path"):
        read_table(folder, labels=write_csv(folder, "path,label\n ,x\n"))


def test_conflicting_rows(folder: Path) -> None:
    same = "path,label\na.png,x\na.png,x\n./a.png,\n"
    assert labels_of(read_table(folder, labels=write_csv(folder, same)))["a.png"] == "x"
    with pytest.raises(InputError, match=r"row 4 labels './a.png' as 'y', but row 2 labels it as 'x'"):
        read_table(folder, labels=write_csv(folder, "path,label\na.png,x\nb.png,x\n./a.png,y\n"))


def test_folder_per_class(tmp_path: Path) -> None:
    for name in ("10/a.png", "9/deep/b.png", "9/c.png", "Unlabeled/d.png"):
        picture(tmp_path / name)
    table = read_table(tmp_path)
    assert table.class_names == ("9", "10")  # as numbers
    assert labels_of(table) == {"10/a.png": "10", "9/c.png": "9", "9/deep/b.png": "9", "Unlabeled/d.png": None}


def test_pictures_in_the_root_mean_no_labels(folder: Path) -> None:
    table = read_table(folder)
    assert table.class_names == ()
    assert table.labels.tolist() == [-1, -1, -1]


def test_a_csv_overrules_the_folders(tmp_path: Path) -> None:
    picture(tmp_path / "in" / "x" / "a.png")
    picture(tmp_path / "in" / "y" / "b.png")
    table = read_table(tmp_path / "in", labels=write_csv(tmp_path / "in", "path,label\nx/a.png,z\n"))
    assert labels_of(table) == {"x/a.png": "z", "y/b.png": None}


def test_unreadable_pictures_are_skipped(folder: Path) -> None:
    (folder / "empty.png").touch()
    (folder / "phone.HEIC").write_bytes(b"x")
    (folder / "sub" / "letter.jpg").write_text("hello")
    (folder / "link.png").symlink_to("nowhere")
    text = "path,label\nempty.png,only-here\nphone.HEIC,only-here\na.png,x\n"
    table = read_table(folder, labels=write_csv(folder, text))
    assert table.names == ("a.png", "b.png", "sub/c.png")
    assert table.class_names == ("x",)
    assert [item.name for item in table.skipped] == ["empty.png", "link.png", "phone.HEIC", "sub/letter.jpg"]
    assert table.skipped[0] == Skipped("empty.png", "it is empty (0 bytes)")
    assert "convert it to JPEG" in table.skipped[2].reason
    unchecked = read_table(folder, check_images=False)
    assert "empty.png" in unchecked.names
    with pytest.raises(ImageError, match=r"empty.png: it is empty"):
        unchecked.image(unchecked.names.index("empty.png"))


def test_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no images"):
        read_table(tmp_path)
    (tmp_path / "a.png").touch()
    with pytest.raises(InputError, match=r"no readable image; the first of 1, a.png: it is empty"):
        read_table(tmp_path)
    with pytest.raises(InputError, match="nowhere does not exist"):
        read_table(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"labels.csv cannot be read: No such file"):
        read_table(picture(tmp_path / "b" / "a.png").parent, labels=tmp_path / "labels.csv")
    (tmp_path / "a.txt").touch()
    with pytest.raises(InputError, match=r"neither a folder nor a .csv"):
        read_table(tmp_path / "a.txt")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(InputError, match="loop cannot be read"):
        read_table(tmp_path / "loop")


def test_hidden_entries_and_circles_of_links(folder: Path) -> None:
    for name in (".hidden.png", "._a.png", "__MACOSX/a.png", ".ipynb_checkpoints/a.png"):
        picture(folder / name)
    (folder / "sub" / "up").symlink_to(folder, target_is_directory=True)
    for name in ("aaa", "zzz"):
        (folder / name).symlink_to(folder / "sub", target_is_directory=True)
    assert read_table(folder).names == ("a.png", "b.png", "sub/c.png")


def test_folders_that_may_not_be_read() -> None:
    root = os.geteuid() == 0
    with tempfile.TemporaryDirectory() as name:  # not in tmp_path, whose parents are closed to others
        folder = Path(name)
        picture(folder / "a.png")
        picture(folder / "sub" / "b.png")
        (folder / "sub").chmod(0)
        folder.chmod(0o755)
        try:
            if root:  # root may read everything, nobody may not
                os.seteuid(65534)
            table = read_table(folder)
            assert table.names == ("a.png",)
            assert [item.name for item in table.skipped] == ["sub/"]
            with pytest.raises(InputError, match=r"sub holds no images: .*cannot be read \(Permission denied\)"):
                read_table(folder / "sub")
        finally:
            if root:
                os.seteuid(0)
            (folder / "sub").chmod(0o755)


def test_linked_class_folders_are_followed(tmp_path: Path) -> None:
    picture(tmp_path / "store" / "n01" / "a.png")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "cat").symlink_to(tmp_path / "store" / "n01", target_is_directory=True)
    assert labels_of(read_table(tmp_path / "data")) == {"cat/a.png": "cat"}


def test_strange_file_names(tmp_path: Path) -> None:
    root = tmp_path / "in"
    names = ["new\nline.png", 'quo"te.png', "com,ma.png", os.fsdecode(b"caf\xe9.png"), "日本.png"]
    for name in names:
        picture(root / name)
    text = 'path,label\n"new\nline.png",x\n"quo""te.png",x\n"com,ma.png",x\ncaf\\xe9.png,x\n日本.png,x\n'
    table = read_table(root, labels=write_csv(root, text))
    assert sorted(table.names) == sorted(["new\\nline.png", 'quo"te.png', "com,ma.png", "caf\\xe9.png", "日本.png"])
    assert (table.labels == 0).all()
    "".join(table.names).encode("utf-8")
    assert len(table.fingerprint()) == 64
    assert [table.image(i).size for i in range(5)] == [(6, 6)] * 5


def test_take() -> None:
    table = replace(digits(), truth=np.arange(30), embeddings=np.eye(30), views=np.ones((2, 30, 3)))
    some = table.take([5, 3, 3])
    assert some.names == ("row 5", "row 3", "row 3")
    assert some.class_names == table.class_names
    assert some.truth is not None
    assert some.truth.tolist() == [5, 3, 3]
    assert some.views is not None
    assert some.views.shape == (2, 3, 3)
    np.testing.assert_array_equal(np.asarray(some.image(0))[:, :, 0], table.images[5])
    masked = table.take(table.labels == 3).take([0])
    assert isinstance(masked.images, ImageSubset)
    assert not isinstance(masked.images.column, ImageSubset)
    assert masked.labels.tolist() == [3]
    assert len(table.take([])) == 0


def test_fingerprint_sees_what_matters(folder: Path) -> None:
    table = read_table(folder)
    before = table.fingerprint()
    assert before == read_table(folder).fingerprint()
    os.utime(folder / "a.png", ns=(1, 1))
    touched = table.fingerprint()
    assert touched != before
    assert table.take([0, 1]).fingerprint() != table.take([1, 0]).fingerprint()
    labelled = read_table(folder, labels=write_csv(folder, "path,label\na.png,x\n"))
    assert labelled.fingerprint() != touched
    base = digits()
    changed = np.array(base.images)
    changed[29, 0, 0] += 1
    assert replace(base, images=changed).fingerprint() != base.fingerprint() == digits().fingerprint()
    (folder / "b.png").unlink()
    with pytest.raises(InputError, match=r"b.png cannot be read"):
        table.fingerprint()


def test_a_table_must_fit_together() -> None:
    with pytest.raises(ValueError, match="3 labels has 2 names"):
        Table(np.zeros(3), ("x",), ("a", "b"))
    with pytest.raises(ValueError, match="labels beyond"):
        Table(np.array([1]), ("x",), ("a",))
    table = Table(np.array([0]), ("x",), ("a",), embeddings=np.ones((1, 2)))
    assert not table.has_images
    with pytest.raises(InputError, match="no images"):
        table.image(0)
