"""Does every method still give the very same answers? Hashes of what the command line writes, before and after a change.

    python benchmarks/golden.py --write golden.json     # before
    python benchmarks/golden.py --check golden.json     # after: names what differs, exit code 1

Every method is trained on the bundled digits for two epochs on one thread; hashed are the class of every training row, the
class of every new picture, the metrics without times, and the weights of the model. Only the command line is used, so the
modules behind it may move. The hashes depend on the processor and on the versions of the libraries: they are compared on one
machine within a day, and belong in no repository.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

METHODS = ("kmeans", "gcd", "orca", "trssl", "opencon", "promptcal", "bacon", "simgcd", "dts")
CASES = {
    "auto": ["--method", "auto", "--encoder", "gradients"],
    "auto-tuned": ["--method", "auto", "--encoder", "efficientnet_lite0", "--image-size", "64"],
    "transfer": ["--method", "transfer"],
    **{name: ["--method", name, "--views", "2"] for name in METHODS},
    "dts-official": ["--method", "dts", "--views", "2", "--set", "method.options.preset=official"],
    "simgcd-fresh-views": ["--method", "simgcd", "--views", "0"],
    "gcd-convnet": ["--method", "gcd", "--encoder", "convnet", "--views", "0"],
    "transfer-counted": ["--method", "transfer", "--encoder", "gradients", "--classes", "auto"],
}
DATA = ["--data", "digits", "--protocol", "longtail", "--known", "5", "--gamma", "10", "--prior", "mismatch"]
TRAINING = ["--epochs", "2", "--batch-size", "128"]
NEW = 200  # pictures that are classified after training
NOT_COMPARED = ("seconds", "peak_memory_mb", "identity")  # times, and what changes with the version


def write_pictures(folder: Path) -> None:
    """The last digits as files."""
    folder.mkdir()
    for i, pixels in enumerate(load_digits().images[-NEW:]):
        Image.fromarray(np.uint8(pixels * 255 / 16)).convert("RGB").save(folder / f"{i:03d}.png")


def rowssl(*arguments: str | Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "rowssl", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode not in (0, 4):  # 4: an answer that is none, which two epochs may well give
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")


def classes(path: Path) -> str:
    """The name of each row without its folder, and its class."""
    with path.open(encoding="utf-8", newline="") as lines:
        return "\n".join(f"{Path(row['file']).name},{row['class']}" for row in csv.DictReader(lines))


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_times(part) for key, part in value.items() if key not in NOT_COMPARED}
    return value


def sha256(content: str | bytes) -> str:
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


def hashes_of(options: list[str], out: Path, pictures: Path, cache: Path) -> dict[str, str]:
    """Train, classify new pictures, and hash what came of it."""
    encoder = [] if "--encoder" in options else ["--encoder", "pixels"]
    rowssl("fit", *DATA, *TRAINING, *encoder, *options, "--cache", cache, "--out", out)
    rowssl("predict", out, pictures, "--out", out / "new.csv")
    metrics = without_times(json.loads((out / "metrics.json").read_text(encoding="utf-8")))
    weights = [f"{file.name} {sha256(file.read_bytes())}" for file in sorted((out / "model").glob("*.safetensors"))]
    return {
        "training rows": sha256(classes(out / "predictions.csv")),
        "new pictures": sha256(classes(out / "new.csv")),
        "metrics": sha256(json.dumps(metrics, sort_keys=True)),
        "weights": sha256("\n".join(weights)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    choice = parser.add_mutually_exclusive_group(required=True)
    choice.add_argument("--write", type=Path, metavar="FILE")
    choice.add_argument("--check", type=Path, metavar="FILE")
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(arguments.workers) as pool:
        folder = Path(name)
        write_pictures(folder / "pictures")
        running = {
            case: pool.submit(hashes_of, options, folder / case, folder / "pictures", folder / "cache" / case)
            for case, options in CASES.items()
        }
        found = {case: one.result() for case, one in running.items()}
    if arguments.write is not None:
        arguments.write.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        return
    expected = json.loads(arguments.check.read_text(encoding="utf-8"))
    wrong = [
        f"{case}: {what}"
        for case in CASES
        for what, value in found[case].items()
        if expected.get(case, {}).get(what) != value
    ]
    print("\n".join(wrong) or f"{len(CASES)} cases as before")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
