"""One cell in a process of its own: `python -m rowssl.bench.cell CONFIG.json OUT [--report] [--leash]`.

A crash, a lack of memory or a kill is then the end of that cell alone, and the peak of memory is its own. With `--leash` the
process ends when its standard input does, that is with whoever started it, even if that one was killed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from rowssl import __version__
from rowssl.core.errors import InputError

REFUSED, NON_FINITE = 2, 3  # exit codes that another attempt would only repeat


def run_cell(config: Path, out: Path, *, report: bool = False) -> None:
    """Train and judge; `cell.json`, written last, says that the cell is finished, what it was made from and what it left."""
    from rowssl.api import write_report
    from rowssl.bench.checksums import write_facts
    from rowssl.bench.grid import Cell
    from rowssl.bench.sample import write_sample
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
