"""One file adds a method, a benchmark or an encoder: the code of the documentation, as it stands, in a folder of plug-ins."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = {"methods": "adding-a-method.md", "benchmarks": "benchmarks.md", "encoders": "encoders.md"}


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of plug-ins with the files of the pages, under the names that these give them."""
    folder = tmp_path_factory.mktemp("plugins")
    for room, page in PAGES.items():
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        (found,) = re.findall(r"`my-rowssl/(\S+\.py)`:\n```python\n(.*?)```", text, flags=re.DOTALL)
        (folder / room).mkdir()
        (folder / found[0]).write_text(found[1])
    return folder


def python(plugins: Path, *arguments: object, tests: bool = False) -> subprocess.CompletedProcess[str]:
    """Python in a process of its own, with these plug-ins."""
    more = {"PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(ROOT / "tests")])} if tests else {}
    environment = {**os.environ, "ROWSSL_PLUGINS": str(plugins), **more}
    return subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, text=True, env=environment, check=False
    )


def test_help_and_lists_name_them(plugins: Path) -> None:
    done = python(plugins, "-m", "rowssl", "fit", "--help")
    for name in ("meanteacher", "stripes", "spectrum"):
        assert name in done.stdout
    done = python(plugins, "-m", "rowssl", "methods")
    assert "meanteacher   Mean Teacher    Cross-entropy on labels;" in done.stdout
    done = python(plugins, "-m", "rowssl", "methods", "meanteacher")
    assert "momentum                      0.99              of the copy" in done.stdout


def test_the_contract_tests_take_a_new_method(plugins: Path) -> None:
    done = python(plugins, "-c", "from contract.problems import METHODS; print(*METHODS)", tests=True)
    assert "meanteacher" in done.stdout.split(), done.stderr


def test_it_fits(plugins: Path, tmp_path: Path) -> None:
    done = python(
        plugins, "-m", "rowssl", "fit", "--data", "digits", "--protocol", "longtail", "--known", 5, "--gamma", 10,
        "--prior", "mismatch", "--encoder", "pixels", "--views", 2, "--method", "meanteacher",
        "--set", "method.options.momentum=0.95", "--epochs", 10, "--batch-size", 64, "--out", tmp_path / "run",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["method"] == "meanteacher"
    assert metrics["in_bacc"]["old"] > 50  # chance is 10
    curve = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    first, last = (sum(row["loss"].values()) for row in (curve[0], curve[-1]))
    assert last < first


def test_a_benchmark_and_an_encoder_of_ones_own(plugins: Path, tmp_path: Path) -> None:
    done = python(
        plugins, "-m", "rowssl", "fit", "--data", "stripes", "--protocol", "longtail", "--known", 4, "--gamma", 3,
        "--encoder", "spectrum", "--epochs", 2, "--method", "meanteacher", "--out", tmp_path / "run",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["in_bacc"]["old"] > 40  # chance is 12.5
    done = python(plugins, "-m", "rowssl", "encoders")
    assert "spectrum            yes   how strong the low frequencies of a picture are" in done.stdout


@pytest.mark.parametrize(
    ("option", "words"),
    [("momentum=1.5", "Option momentum: "), ("speed=1", "no option 'speed': choose among epsilon, momentum")],
)
def test_its_options_are_checked(plugins: Path, tmp_path: Path, option: str, words: str) -> None:
    done = python(
        plugins, "-m", "rowssl", "fit", "--data", "digits", "--method", "meanteacher",
        "--set", f"method.options.{option}", "--out", tmp_path / "run",
    )  # fmt: skip
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("broken.py", "class Broken(\n    name = 'x'\n", "broken.py cannot be read as Python"),
        ("simgcd.py", "", "simgcd.py has the name of"),
        ("again.py", "class Again:\n    name = 'simgcd'\n", "offers 'simgcd', which is there already"),
        ("absent.py", "import nowhere\n\n\nclass A:\n    name = 'absent'\n", "absent cannot be used: No module named"),
    ],
)
def test_a_wrong_file_is_one_sentence(tmp_path: Path, name: str, content: str, words: str) -> None:
    (tmp_path / "methods").mkdir()
    (tmp_path / "methods" / name).write_text(content)
    method = "absent" if name == "absent.py" else "auto"
    done = python(tmp_path, "-m", "rowssl", "fit", "--data", "digits", "--method", method, "--out", tmp_path / "run")
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
