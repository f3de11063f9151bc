"""The command line as a person meets it: what it prints, what it writes, and how it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def folder(tmp_path) -> Path:
    """Twelve small pictures in two classes."""
    rng = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for i in range(6):
            pixels = rng.integers(0, 255, (12, 12, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pictures" / name / f"{i}.png")
    return tmp_path / "pictures"


def refused(result: tuple[int, str, str], *words: str) -> None:
    code, _, err = result
    assert code == 2, err
    assert len(err.strip().splitlines()) == 1, err
    assert "Traceback" not in err
    for word in words:
        assert word in err, err


def test_help_names_the_commands_without_importing_torch():
    program = "import sys, rowssl.cli.app as a; a.build(); print(sorted({'torch', 'sklearn', 'scipy', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    done = subprocess.run([sys.executable, "-m", "rowssl", "--help"], capture_output=True, text=True, check=True)
    for command in ("demo", "check", "split", "fit"):
        assert command in done.stdout


def test_split_of_digits_writes_json_and_picture(run, tmp_path):
    out = tmp_path / "split.json"
    code, text, err = run(
        "split",
        "--data",
        "digits",
        "--protocol",
        "longtail",
        "--known",
        5,
        "--gamma",
        10,
        "--prior",
        "mismatch",
        "--out",
        out,
    )
    assert code == 0, err
    content = json.loads(out.read_text())
    keys = {"labelled", "unlabelled", "test", "known_classes", "novel_classes", "recipe", "seed"}
    assert keys <= set(content)
    assert not set(content["labelled"]) & set(content["unlabelled"])
    assert out.with_suffix(".svg").read_text().lstrip().startswith("<svg")
    assert str(len(content["labelled"])) in text


@pytest.mark.shared
@pytest.mark.parametrize(("gamma", "counts"), [(100, (2736, 2736, 5499)), (10, (4903, 4903, 9830))])
@pytest.mark.parametrize("prior", ["match", "mismatch"])
def test_split_of_real_cifar100(run, tmp_path, shared_dir, gamma, counts, prior):
    out = tmp_path / "split.json"
    code, _, err = run(
        "split", "--data", "cifar100", "--data-root", shared_dir / "data", "--protocol", "rowssl",
        "--gamma", gamma, "--prior", prior, "--out", out,
    )  # fmt: skip
    assert code == 0, err
    content = json.loads(out.read_text())
    assert len(content["labelled"]) == counts[0]
    assert len(content["unlabelled"]) == counts[1] + counts[2]
    assert len(content["test"]) == 10_000


def test_check_reports_and_writes_bars(run, folder, tmp_path):
    (folder / "cat" / "broken.jpg").write_bytes(b"\xff\xd8\xff not a picture")
    code, text, err = run("check", folder, "--bars", tmp_path / "bars.svg")
    assert code == 0, err
    assert "broken.jpg" in text
    assert "cat" in text
    assert (tmp_path / "bars.svg").read_text().lstrip().startswith("<svg")
    code, text, _ = run("check", folder, "--json")
    assert code == 0
    assert json.loads(text)


def test_missing_folder(run, tmp_path):
    refused(run("check", tmp_path / "nowhere"), "nowhere")


def test_csv_without_the_columns(run, folder, tmp_path):
    (tmp_path / "labels.csv").write_text("a,b\n1,2\n")
    refused(run("check", folder, "--labels", tmp_path / "labels.csv"), "labels.csv")


def test_label_for_a_file_that_is_not_there(run, folder, tmp_path):
    (tmp_path / "labels.csv").write_text("path,label\ncat/0.png,cat\ncat/99.png,cat\n")
    refused(run("check", folder, "--labels", tmp_path / "labels.csv"), "labels.csv", "cat/99.png")


def test_file_that_is_not_an_image(run, tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    refused(run("check", tmp_path / "notes.txt"), "notes.txt")


def test_gamma_below_one(run, tmp_path):
    refused(
        run("split", "--data", "digits", "--gamma", 0.5, "--protocol", "longtail", "--out", tmp_path / "s.json"),
        "gamma",
    )


def test_data_root_without_the_benchmark(run, tmp_path):
    refused(
        run("split", "--data", "cifar100", "--data-root", tmp_path, "--out", tmp_path / "s.json"),
        "cifar",
        str(tmp_path),
    )


def test_empty_class(run, tmp_path):
    """A ratio that leaves a class without an image is refused, with the class named."""
    arguments = (
        "split",
        "--data",
        "digits",
        "--protocol",
        "longtail",
        "--gamma",
        100_000,
        "--out",
        tmp_path / "s.json",
    )
    refused(run(*arguments), "class")
    assert not (tmp_path / "s.json").exists()


def test_unknown_names(run, tmp_path):
    refused(run("split", "--data", "nothing", "--out", tmp_path / "s.json"), "nothing")
    refused(
        run("fit", "--data", "digits", "--method", "magic", "--encoder", "pixels", "--out", tmp_path / "r"), "magic"
    )
    refused(run("fit", "--data", "digits", "--set", "train.speed=3", "--out", tmp_path / "r"), "train.speed")
    for option in ("tau_maximum", "seeds"):
        arguments = ("--method", "dts" if option == "seeds" else "simgcd", "--set", f"method.options.{option}=1")
        refused(run("fit", "--data", "digits", *arguments, "--out", tmp_path / "r"), option)
    refused(run("fit", "--out", tmp_path / "r"), "SOURCE")
    refused(run("fit", "--data", "digits", "--classes", "many", "--out", tmp_path / "r"), "classes")
