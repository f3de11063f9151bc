"""How long a first and a tuned answer take, in passes of the encoder over the pictures.

    python benchmarks/answer_time.py ../shared/data/groceries/photos --labels ../shared/data/groceries/labels-match.csv

A pass is the whole network over the clean views of all pictures, decoded before, on the same cores, in the best way this
package has. It is timed before and after the fit, since machines change their speed. The fit is `rowssl fit` as a process of
its own with an empty cache: start of Python, decoding, class count, answer, report and model are all in its times. Targets:
the first report within 1.4 passes, the tuned one within 4.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from rowssl.data.table import read_table
from rowssl.data.views import clean_view, view_recipe
from rowssl.encoders.base import BUILT_IN, build_encoder


def one_pass(pictures: np.ndarray) -> float:
    """Seconds of the network over decoded pictures (N, side, side, 3)."""
    encoder = build_encoder(BUILT_IN, tail="adapter")
    encoder.trunk_forward(encoder.normalise(pictures[:64]))
    began = time.perf_counter()
    with torch.no_grad():
        for begin in range(0, len(pictures), 64):
            encoder.trunk_forward(encoder.normalise(pictures[begin : begin + 64]))
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos", type=Path)
    parser.add_argument("--labels", type=Path, required=True)
    parser.add_argument("--classes", help="number of classes; estimated if not given")
    options = parser.parse_args()
    table = read_table(str(options.photos), labels=str(options.labels))
    recipe = view_recipe("standard", 224, 224)
    pictures = np.stack([clean_view(table.image(row), recipe) for row in range(len(table))])
    before = one_pass(pictures)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        words = [sys.executable, "-m", "rowssl", "fit", str(options.photos), "--labels", str(options.labels)]
        words += ["--out", str(out), "--cache", str(Path(folder) / "cache")]
        words += ["--classes", options.classes] if options.classes else []
        began = time.perf_counter()
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        first = None
        while process.poll() is None:
            if first is None and (out / "report.html").exists():
                first = time.perf_counter() - began
            time.sleep(0.05)
        last = time.perf_counter() - began
        if process.returncode or first is None:
            raise SystemExit("the fit failed")
        metrics = json.loads((out / "metrics.json").read_text())
    after = one_pass(pictures)
    unit = (before + after) / 2
    print(
        f"{len(table):,} pictures, {int((table.labels >= 0).sum())} labels; a pass {before:.1f} s before, {after:.1f} s after"
    )
    print(
        f"| | seconds | passes | target |\n|---|---|---|---|\n| first report | {first:.1f} | {first / unit:.2f} | 1.4 |"
    )
    print(f"| tuned report, end | {last:.1f} | {last / unit:.2f} | 4 |")
    print(f"peak memory {metrics['peak_memory_mb']:.0f} MB; chosen: {metrics['chosen']}")


if __name__ == "__main__":
    main()
