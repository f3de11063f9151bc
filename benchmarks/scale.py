"""How the cost of a fit grows with rows and classes: time per epoch, time per step, peak memory, one whole fit.

    python benchmarks/scale.py                 # 10k, 100k and 1M rows x 384; 100 and 1,000 classes
    python benchmarks/scale.py --steps-only    # without the fits; or --fits-only
    python benchmarks/scale.py --whole         # also a whole `rowssl fit` of the largest, with the schedule it chooses itself
    python benchmarks/scale.py --rows 1000000 --whole-only
    python benchmarks/scale.py --quick

Rows are drawn around long-tailed random centres and written as one uncompressed .npz file, which is memory-mapped. An epoch
is timed on DTS with its usual batch of 128 over `--steps` of its steps, five of one file after five of another, times their number;
the exponent is the slope of a least-squares line through log(seconds) over log(rows). Steps at few and at many classes take
turns, each on a file with so many classes, half of them known. The second half does whole fits (`--fit-epochs`, `--fit-batch`)
in processes of their own, report included, and has the exponent of the seconds that their epochs really took. Memory is the
largest resident set; pages of the file that the process has looked at count. `--fits-only` leaves the first half out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import numpy as np
import torch

from rowssl.core.memory import reused_blocks
from rowssl.data.feed import ArraySource, FeatureAugmentation, Feed
from rowssl.data.table import read_table
from rowssl.encoders.tails import AdapterTail
from rowssl.methods import build_method
from rowssl.methods.base import Method, seeded_rows
from rowssl.methods.dts import DTS
from rowssl.training.loop import Optimisation, build_optimiser

BATCH, PIECE, TURN = 128, 8192, 5
EXPONENT, STEP_RATIO, MEMORY_GB = 1.1, 1.3, 4.0  # targets


def write_rows(path: Path, rows: int, width: int, classes: int, kind: str = "float32") -> None:
    """`embeddings`, `labels` (half of the rows of the first half of the classes) and `truth`, written piece by piece."""
    rng = np.random.default_rng([rows, classes])
    centres = rng.standard_normal((classes, width)).astype(np.float32)
    share = 100.0 ** (-np.arange(classes) / max(1, classes - 1))
    truth = rng.permutation(np.arange(rows) % classes)  # every class at least once,
    drawn = rng.choice(classes, size=rows, p=share / share.sum())
    truth = np.where(np.arange(rows) < 2 * classes, truth, drawn)  # the others by a long tail
    labels = np.where((truth < classes // 2) & (rng.random(rows) < 0.5), truth, -1)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        with archive.open("embeddings.npy", "w", force_zip64=True) as stream:
            header = {"descr": np.dtype(kind).str, "fortran_order": False, "shape": (rows, width)}
            np.lib.format.write_array_header_1_0(stream, header)
            for begin in range(0, rows, PIECE):
                part = centres[truth[begin : begin + PIECE]]
                part = part + rng.standard_normal(part.shape, dtype=np.float32)
                stream.write(part.astype(kind).tobytes())
        for name, values in (("labels", labels), ("truth", truth)):
            with archive.open(f"{name}.npy", "w") as stream:
                np.lib.format.write_array(stream, values)


class Training:
    """DTS on a file of embeddings, step by step."""

    def __init__(self, path: Path, classes: int, batch: int = BATCH) -> None:
        table = read_table(path)
        assert table.embeddings is not None
        self.feed = Feed(
            ArraySource(table.embeddings), np.where(table.labels < classes // 2, table.labels, -1),
            batch_size=batch, epochs=10**6, seed=0, augmentation=FeatureAugmentation(noise=0.5),
        )  # fmt: skip
        tail = AdapterTail(table.embeddings.shape[1])
        known = int(self.feed.targets.max()) + 1
        self.method: Method = build_method("dts", tail, {}, n_old=known, n_classes=classes, n_rows=len(table), seed=0)
        began = time.perf_counter()
        self.method.start(self.feed)
        self.start_seconds = time.perf_counter() - began
        self.optimiser, self.next = build_optimiser(self.method, Optimisation()), 0
        self.method.train()

    def step(self) -> float:
        """Seconds of the next step."""
        began = time.perf_counter()
        batch = self.feed.batch(self.next)
        found = self.method.loss(batch)
        torch.stack(list(found.losses.values())).sum().backward()
        self.optimiser.step()
        self.optimiser.zero_grad()
        self.method.after_step(batch, found)
        self.next += 1
        return time.perf_counter() - began


def fill_queue(training: Training) -> None:
    """Keys of random rows, as after some steps: before the queue is full a step costs less than it will."""
    method, feed = training.method, training.feed
    assert isinstance(method, DTS)
    rows = seeded_rows(len(feed), method.queue.size, seed=1)
    index = torch.from_numpy(rows)
    with torch.no_grad():
        method.queue.push(method._keys(feed, 0, rows), feed.targets[index], index)


def in_turns(trainings: dict[str, Training], steps: int) -> dict[str, list[float]]:
    """Median seconds of a step in each turn of each: some steps, so that caches hold what they hold in a training."""
    seconds: dict[str, list[float]] = {name: [] for name in trainings}
    for training in trainings.values():
        fill_queue(training)
        training.step()
    with reused_blocks():  # as `fit` does it
        for _ in range(0, steps, TURN):
            for name, training in trainings.items():
                seconds[name].append(statistics.median(training.step() for _ in range(TURN)))
    return seconds


def slope(rows: list[int], seconds: list[float]) -> float:
    """Exponent of growth by least squares in log-log."""
    return float(np.polyfit(np.log(rows), np.log(seconds), 1)[0])


def peak_of(process: int) -> int:
    """Largest resident set of a process so far in bytes; 0 when it has just ended."""
    try:
        return int(Path(f"/proc/{process}/status").read_text().split("VmHWM:")[1].split()[0]) * 1024
    except (OSError, IndexError):
        return 0


def child_fit(path: Path, classes: int | None, epochs: int | None, batch: int | None) -> dict[str, float]:
    """A whole `rowssl fit` in a process of its own: seconds, peak resident memory, report; without `classes` it counts them."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        asked = [] if classes is None else ["--classes", str(classes)]
        command = [sys.executable, "-m", "rowssl", "fit", str(path), *asked, "--out", f"{folder}/run"]
        command += [] if epochs is None else ["--epochs", str(epochs)]
        command += [] if batch is None else ["--batch-size", str(batch)]
        began = time.perf_counter()
        with tempfile.TemporaryFile("w+") as said:
            child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said)
            most = 0
            while child.poll() is None:  # to its very end: the report is written after the metrics
                most = max(most, peak_of(child.pid))
                time.sleep(0.2)
            if child.returncode:
                said.seek(0)
                raise SystemExit(f"{' '.join(command)} failed:\n{said.read()[-2000:]}")
        run = Path(folder) / "run"
        metrics = json.loads((run / "metrics.json").read_text())
        log = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        return {
            "seconds": time.perf_counter() - began,
            "epoch": statistics.median(line["seconds"] for line in log),
            "classes": metrics["classes"]["estimated"],
            "gb": most / 2**30,
            "report_mb": (run / "report.html").stat().st_size / 1e6,
            "tr_acc": metrics["tr_acc"]["all"],
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--classes", type=int, nargs=2, default=[100, 1000])
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--dtype", default="float32", choices=["float32", "float16"])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--fit-epochs", type=int, default=1, help="of the fit whose memory is measured")
    parser.add_argument("--fit-batch", type=int, default=1024)
    parser.add_argument("--steps-only", action="store_true", help="no whole fits, no memory")
    parser.add_argument("--fits-only", action="store_true", help="the whole fits alone")
    parser.add_argument("--whole", action="store_true", help="also fit the largest with the schedule that fit chooses")
    parser.add_argument("--whole-only", action="store_true", help="that fit alone")
    parser.add_argument("--folder", type=Path, help="where the files go; they are removed at the end")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.rows, options.classes, options.width, options.steps = [500, 2000], [10, 40], 32, 3
        options.fit_batch = 128
    few, many = options.classes
    print(f"{options.width} columns of {options.dtype}, batch {BATCH}, {torch.get_num_threads()} threads\n", flush=True)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        files = {rows: Path(name) / f"{rows}.npz" for rows in options.rows}
        for rows, path in files.items():
            write_rows(path, rows, options.width, few, options.dtype)
        many_file = files[max(files)].with_name("many.npz")
        if not options.whole_only:
            write_rows(many_file, max(files), options.width, many, options.dtype)
        if not (options.fits_only or options.whole_only):
            time_steps(files, many_file, few, many, options.steps)
        if not options.steps_only:
            time_fits(files, few, many, options)


def time_steps(files: dict[int, Path], many_file: Path, few: int, many: int, steps: int) -> None:
    """The tables of steps, by rows and by classes."""
    trainings = {str(rows): Training(path, few) for rows, path in files.items()}
    median = {name: statistics.median(turns) for name, turns in in_turns(trainings, steps).items()}
    epochs = [median[str(rows)] * trainings[str(rows)].feed.steps_per_epoch for rows in files]
    print("| rows | classes | start s | ms a step | steps an epoch | seconds an epoch |\n|---|---|---|---|---|---|")
    for rows, seconds in zip(files, epochs, strict=True):
        one = trainings[str(rows)]
        print(
            f"| {rows:,} | {few} | {one.start_seconds:.1f} | {1e3 * median[str(rows)]:.1f} | "
            f"{one.feed.steps_per_epoch:,} | {seconds:.1f} |"
        )
    if len(files) > 1:
        print(f"\nexponent of growth in rows {slope(list(files), epochs):.2f} (at most {EXPONENT})")
    print(flush=True)

    largest = max(files)
    trainings = {str(few): Training(files[largest], few), str(many): Training(many_file, many)}
    turns = in_turns(trainings, steps)
    print("| rows | classes | start s | ms a step |\n|---|---|---|---|")
    for classes in (few, many):
        one = trainings[str(classes)]
        print(
            f"| {largest:,} | {classes:,} | {one.start_seconds:.1f} | {1e3 * statistics.median(turns[str(classes)]):.1f} |"
        )
    ratios = [more / less for more, less in zip(turns[str(many)], turns[str(few)], strict=True)]
    low, ratio, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    print(
        f"\na step at {many:,} classes takes {ratio:.2f} of one at {few} (at most {STEP_RATIO}; median of {len(ratios)} "
        f"turns of {TURN} steps, the middle half {low:.2f} to {high:.2f})\n",
        flush=True,
    )


def time_fits(files: dict[int, Path], few: int, many: int, options: argparse.Namespace) -> None:
    """The table of whole fits: every size with few classes; the largest with many, and with a number that is to be found."""
    largest, usual = max(files), (options.fit_epochs, options.fit_batch)
    fits: list[tuple[Path, int, int | None, int | None, int | None]]
    fits = [(path, rows, few, *usual) for rows, path in files.items()]
    fits += [(files[largest], largest, None, *usual)]
    fits += [(files[largest].with_name("many.npz"), largest, many, *usual)]
    whole: list[tuple[Path, int, int | None, int | None, int | None]] = [(files[largest], largest, None, None, None)]
    fits = whole if options.whole_only else fits + whole * options.whole
    print("| rows | classes | fit | seconds | an epoch | peak memory GB | report.html MB | Tr-ACC % |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    epochs: dict[int, float] = {}
    highest = 0.0
    for path, rows, classes, epochs_asked, batch in fits:
        found = child_fit(path, classes, epochs_asked, batch)
        highest = max(highest, found["gb"]) if rows == largest else highest
        epochs.setdefault(rows, found["epoch"])
        given = f"{classes:,}" if classes else f"auto: {found['classes']} of {few}"
        what = "as it chooses" if epochs_asked is None else f"{epochs_asked} epochs, batch {batch}"
        print(
            f"| {rows:,} | {given} | {what} | {found['seconds']:.0f} | {found['epoch']:.1f} | {found['gb']:.2f} | "
            f"{found['report_mb']:.1f} | {found['tr_acc']:.1f} |",
            flush=True,
        )
    if len(epochs) > 1:
        exponent = slope(list(epochs), list(epochs.values()))
        print(f"\nexponent of growth of an epoch of these fits {exponent:.2f} (at most {EXPONENT})")
    print(f"peak memory at {largest:,} rows {highest:.2f} GB (below {MEMORY_GB:.0f})")


if __name__ == "__main__":
    main()
