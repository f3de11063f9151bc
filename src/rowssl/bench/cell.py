"""One cell in a process of its own: `python -m rowssl.bench.cell CONFIG.json OUT [--report] [--leash]`, and the files it leaves.

A crash, a lack of memory or a kill is then the end of that cell alone, and the peak of memory is its own. With `--leash` the
process ends when its standard input does, that is with whoever started it, even if that one was killed.

`cell.json`, written last, holds the sha256 of all files of its cell that are read back, and a hash of itself, so that a flipped
bit is named and never becomes a number of a table. `sample/` holds a few features for pictures, below a megabyte.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rowssl import __version__
from rowssl.core.errors import InputError
from rowssl.core.files import NoRoomError, own_hash, read_directory, read_json, sha256_of, write_directory, write_text

if TYPE_CHECKING:
    from rowssl.runs.run import Run

FILE = "cell.json"


class DamagedError(InputError):
    """A file is not as it was written. What it belongs to can be made again."""

    def __init__(self, file: Path, why: str) -> None:
        super().__init__(f"{file} is damaged: {why}.")
        self.file = file


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file; DamagedError if there is none."""
    try:
        content = read_json(path)
    except NoRoomError:  # nothing is wrong with the file
        raise
    except InputError as error:
        raise DamagedError(path, "it cannot be read as JSON") from error
    if not isinstance(content, dict):
        raise DamagedError(path, "it holds something else")
    return content


def read_sealed(path: Path) -> dict[str, Any]:
    """What `write_sealed` wrote, without its hash."""
    content = read_object(path)
    if content.get("self") != own_hash(content):
        raise DamagedError(path, "it is not what was written")
    return {key: value for key, value in content.items() if key != "self"}


def write_sealed(path: Path, content: Mapping[str, Any]) -> None:
    """A JSON file with a hash of itself."""
    write_text(path, json.dumps({**content, "self": own_hash(content)}, indent=1))


def write_facts(folder: Path, facts: Mapping[str, Any]) -> None:
    """`cell.json` of a cell all of whose other files are written."""
    from rowssl.runs.run import SEALED

    files = [*(folder / name for name in SEALED), *sorted((folder / SAMPLE).glob("*"))]
    hashes = {file.relative_to(folder).as_posix(): sha256_of(file) for file in files if file.is_file()}
    write_sealed(folder / FILE, {**facts, "sha256": hashes})


def read_facts(folder: Path) -> dict[str, Any] | None:
    """What `cell.json` says; None if there is none, that is if the cell is not finished."""
    path = folder / FILE
    return read_sealed(path) if path.exists() else None


def check_files(folder: Path, facts: Mapping[str, Any]) -> None:
    """A DamagedError names the first file of a cell that is not the one its facts were written beside."""
    for name, expected in facts["sha256"].items():
        file = folder / name
        if not file.is_file():
            raise DamagedError(file, f"{FILE} names it, and it is missing")
        if sha256_of(file) != expected:
            raise DamagedError(file, f"its sha256 is not the one in {FILE}")


SAMPLE = "sample"
CLASSES, ROWS = 10, 40  # of each kind, and of each class


@dataclass(frozen=True)
class Sample:
    """Unit features (n, d) of some rows, their true classes (n,), and how many classes are known."""

    feature: np.ndarray
    truth: np.ndarray
    n_old: int


def sample_rows(truth: np.ndarray, n_old: int, n_classes: int) -> np.ndarray:
    """Rows of evenly spread known and novel classes, the first of each class."""
    sides = (np.arange(n_old), np.arange(n_old, n_classes))
    chosen = np.concatenate(
        [side[np.linspace(0, len(side) - 1, min(CLASSES, len(side))).astype(int)] for side in sides]
    )
    return np.sort(np.concatenate([np.flatnonzero(truth == c)[:ROWS] for c in chosen]))


def write_sample(run: Run, out: Path) -> None:
    """OUT/sample: features and true classes, in half precision."""
    import torch

    problem = run.problem
    if problem.truth is None:
        return
    hidden = problem.unlabelled()
    parts = {"unlabelled": (run.answers.feature[hidden], problem.truth[hidden])}
    if run.test_answers is not None and problem.test_truth is not None:
        parts["test"] = (run.test_answers.feature, problem.test_truth)
    tensors = {}
    for name, (feature, truth) in parts.items():
        rows = sample_rows(truth, problem.n_old, problem.true_classes)
        tensors[name] = {
            "feature": torch.from_numpy(feature[rows].astype(np.float16)),
            "truth": torch.from_numpy(truth[rows].astype(np.int32)),
        }
    write_directory(out / SAMPLE, tensors, {"identity": run.metrics["identity"], "n_old": problem.n_old})


def read_sample(folder: Path) -> dict[str, Sample] | None:
    """By part, `test` and `unlabelled`; None if a cell has none, or a damaged one."""
    try:
        return open_sample(folder)
    except InputError:
        return None


def open_sample(folder: Path) -> dict[str, Sample] | None:
    """As `read_sample`, but an InputError names the file that is damaged."""
    if not (folder / SAMPLE).exists():
        return None
    tensors, facts = read_directory(folder / SAMPLE)
    return {
        name: Sample(part["feature"].float().numpy(), part["truth"].numpy().astype(np.int64), int(facts["n_old"]))
        for name, part in tensors.items()
    }


REFUSED, NON_FINITE = 2, 3  # exit codes that another attempt would only repeat


def run_cell(config: Path, out: Path, *, report: bool = False) -> None:
    """Train and judge; `cell.json`, written last, says that the cell is finished, what it was made from and what it left."""
    from rowssl.api import write_report
    from rowssl.bench.grid import Cell
    from rowssl.config import build_config
    from rowssl.runs.fit import fit

    try:
        content = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{config} cannot be read as a configuration.") from error
    run = fit(build_config(content, str(config)), out, whole=report, page=write_report)
    if not run.evaluation:
        raise InputError(f"{run.problem.table.source} does not hold the true classes, so there is nothing to compare.")
    write_sample(run, out)
    assert run.features is not None
    encoder = run.features.encoder
    facts: dict[str, Any] = {
        "identity": run.metrics["identity"],
        "cell": Cell(run.config).hash,
        "config": run.config.model_dump(mode="json"),
        "table": run.problem.table.fingerprint(),
        "encoder": {"name": encoder.name, "sha256": encoder.fingerprint, "image_size": encoder.image_size},
        "recipe": run.problem.recipe or {},
        "rows": len(run.problem.table),
        "commit": commit(),
        "version": __version__,
    }
    write_facts(out, facts)
    shutil.rmtree(out / "checkpoints", ignore_errors=True)  # a finished cell never goes on


def commit() -> str:
    """The source's commit, with `-dirty` where files were changed since; outside of a repository `v0.1.0+` and its hash."""
    folder = Path(__file__).resolve().parents[1]

    def git(*arguments: str) -> str:
        # Without optional locks a look at the repository never disturbs someone who works in it.
        command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", str(folder / "__init__.py"))
        return git("describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.py")}
        digest = hashlib.sha256(b"".join(name.encode() + b"\0" + files[name] for name in sorted(files)))
        return f"v{__version__}+{digest.hexdigest()[:12]}"


def leash() -> None:
    """End this process when its standard input ends. Checkpoints are atomic, so any moment will do."""

    def wait() -> None:
        os.read(0, 1)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def main() -> None:
    """Exit codes: 0 finished, 2 the input cannot be used, 3 a loss was not finite, 1 anything else."""
    paths = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    if len(paths) != 2:
        sys.exit("usage: python -m rowssl.bench.cell CONFIG.json OUT [--report] [--leash]")
    if "--leash" in sys.argv:
        leash()
    try:
        run_cell(Path(paths[0]), Path(paths[1]), report="--report" in sys.argv)
    except InputError as error:
        print(f"rowssl: {error}", file=sys.stderr)
        sys.exit(REFUSED)
    except RuntimeError as error:
        if type(error).__name__ != "NonFiniteError":
            raise
        print(f"rowssl: {error}", file=sys.stderr)
        sys.exit(NON_FINITE)


if __name__ == "__main__":
    main()
