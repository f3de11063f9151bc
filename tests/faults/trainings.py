"""What the fault tests do with runs: the command that trains one, and what must be equal between two."""

from __future__ import annotations

import json
from pathlib import Path

from rowssl.core.files import sha256_of
from rowssl.training.log import read_lines

TENSORS = ("model", "answers")  # the weights, and what they say of every row


def fit_command(data: Path, method: str, out: Path, epochs: int) -> list[object]:
    """`rowssl fit` with a checkpoint after every epoch, 15 steps each, and twenty times a second within them."""
    options = ["--method", method, "--classes", 8, "--epochs", epochs, "--batch-size", 16]
    saves = ["--set", "train.save_seconds=0", "--set", "train.save_within_seconds=0.05"]
    return ["fit", data, *options, *saves, "--out", out]


def weights(out: Path) -> dict[str, str]:
    """sha256 of every file of tensors that a run, or a folder of runs, ended with."""
    files = [file for file in sorted(out.rglob("*.safetensors")) if file.parent.name in TENSORS]
    assert files, f"{out} holds no finished run"
    return {str(file.relative_to(out)): sha256_of(file) for file in files}


def log_of(out: Path) -> list[dict[str, object]]:
    """metrics.jsonl without what differs between any two runs."""
    rows, damaged = read_lines(out / "metrics.jsonl") if (out / "metrics.jsonl").exists() else ([], [])
    assert not damaged
    return [{key: value for key, value in row.items() if key not in ("seconds", "phi")} for row in rows]


def metrics_of(out: Path) -> dict[str, object]:
    """metrics.json without what differs between any two runs."""
    content = json.loads((out / "metrics.json").read_text())
    return {key: value for key, value in content.items() if key not in ("seconds", "peak_memory_mb")}


def strays(out: Path) -> list[Path]:
    """Temporaries anywhere in a run or a cache."""
    return list(out.rglob(".*.tmp"))
