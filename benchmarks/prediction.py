"""What an answer costs beside the encoder: `rowssl predict` of many pictures, one picture in a warm server, and start-up.

    python benchmarks/prediction.py                                       # random ViT-S/16 at 224 px, 1,000 pictures
    python benchmarks/prediction.py --encoder ../shared/encoders/resnet50-imagenet
    python benchmarks/prediction.py --neighbours 10000 300000 1000000     # that alone
    python benchmarks/prediction.py --quick

A model is made from an encoder and a short fit on smooth random JPEG pictures. Throughput: `predict` decodes, crops, encodes and
answers for all pictures as the command does, against the encoder (trunk and tail) on ready batches of the same size. Server: an
HTTP request with one JPEG file to `rowssl serve` against the encoder on one ready picture. Start-up: `rowssl predict --help`
and `rowssl predict` of one picture against `python -c "import torch"`. All take turns; medians are compared. `--neighbours N` looks
for the nearest of N training rows x 384, as the server does with every answer, against a look at all of them, and says how many of
the nearest eight were found.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from extraction import write_pictures

from clustering import mixture
from rowssl.api import fit
from rowssl.config import build_config
from rowssl.core.memory import reused_blocks
from rowssl.runs.classifier import BATCH, Classifier
from rowssl.runs.predict import open_inputs, predict_inputs
from rowssl.serve.neighbours import Neighbours

THROUGHPUT, EXTRA_MS = 0.9, 10.0


def in_turns(ways: dict[str, Callable[[], object]], repeats: int, warm: int = 1) -> dict[str, float]:
    """Median seconds of each way; the first `warm` turns do not count."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(warm + repeats):
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            if number >= warm:
                seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in seconds.items()}


def random_weights(folder: Path, side: int) -> str:
    """A checkpoint of a ViT-S/16 with random weights in DINO's form: time does not depend on them."""
    from safetensors.torch import save_file

    from rowssl.encoders.vit import ViT, vit_architecture

    torch.manual_seed(0)
    place = folder / f"dino_vits16_{side}.safetensors"
    save_file({name: value.contiguous() for name, value in ViT(vit_architecture("s", 16)).state_dict().items()}, place)
    return str(place)


def make_run(folder: Path, pictures: Path, encoder: str, side: int | None) -> Path:
    """A short fit on some of the pictures."""
    labels = folder / "labels.csv"
    names = sorted(path.name for path in pictures.iterdir())
    labels.write_text("path,label\n" + "".join(f"{name},{'ab'[i % 2]}\n" for i, name in enumerate(names[:8])))
    content = {
        "data": {"source": str(pictures), "labels": str(labels)},
        "encoder": {"name": encoder, "views": 1, "cache": str(folder / "cache"), "image_size": side},
        "train": {"epochs": 1},
        "classes": 4,
    }
    fit(build_config(content), folder / "run")
    return folder / "run"


def encode(model: Classifier, ready: torch.Tensor, pictures: int) -> None:
    """The encoder alone: trunk and tail on ready pixels."""
    with torch.inference_mode():
        for begin in range(0, pictures, len(ready)):
            model.network.features(model.network.trunk_output(ready[: min(len(ready), pictures - begin)]))


def ready_pixels(model: Classifier, count: int) -> torch.Tensor:
    side = model.encoder.image_size
    return model.encoder.normalise(torch.randint(0, 255, (count, side, side, 3), dtype=torch.uint8))


def ask(place: str, picture: Path) -> dict[str, object]:
    """One picture as a form upload; the server's answer."""
    mark = "rowssl-benchmark"
    head = (
        f'--{mark}\r\nContent-Disposition: form-data; name="file"; filename="x.jpg"\r\nContent-Type: image/jpeg\r\n\r\n'
    )
    body = head.encode() + picture.read_bytes() + f"\r\n--{mark}--\r\n".encode()
    kind = {"Content-Type": f"multipart/form-data; boundary={mark}"}
    with urllib.request.urlopen(urllib.request.Request(f"{place}predict", body, kind), timeout=60) as reply:
        return dict(json.load(reply))


def neighbours(rows: int, asked: int = 100, count: int = 8) -> str:
    """A row of the table: milliseconds by all rows and as served, and the share of the nearest that was found."""
    x, _ = mixture(rows, 384, 100, seed=0)
    began = time.perf_counter()
    find, rng = Neighbours(x), np.random.default_rng(1)
    start = time.perf_counter() - began
    seconds, found = {"all": 0.0, "served": 0.0}, 0
    for _ in range(asked):
        feature = x[rng.integers(rows)] + 0.02 * rng.standard_normal(384, dtype=np.float32)
        feature /= np.linalg.norm(feature)
        began = time.perf_counter()
        nearest = np.argpartition(-(x @ feature), min(count, rows - 1))[:count]
        seconds["all"] += time.perf_counter() - began
        began = time.perf_counter()
        found += len({*find(x, feature, count)[0].tolist()} & {*nearest.tolist()})
        seconds["served"] += time.perf_counter() - began
    ms = {name: 1e3 * value / asked for name, value in seconds.items()}
    return f"| {rows:,} | {start:.1f} | {ms['all']:.1f} | {ms['served']:.1f} | {found / asked / count:.3f} |"


def command(*words: str) -> None:
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{done.stderr[-1000:]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--encoder", help="name or folder of an encoder; a random ViT-S/16 otherwise")
    parser.add_argument("--pictures", type=int, default=1000)
    parser.add_argument("--side", type=int, default=None, help="of the encoder's input")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--requests", type=int, default=30)
    parser.add_argument("--neighbours", type=int, nargs="+", metavar="ROWS")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.neighbours:
        print("| training rows | dividing them, s | all of them, ms | as served, ms | of the nearest 8 found |")
        print("|---|---|---|---|---|")
        for rows in options.neighbours:
            print(neighbours(rows), flush=True)
        return
    if options.quick:
        options.pictures, options.side, options.repeats, options.requests = 16, 32, 1, 2
        options.encoder = options.encoder or "pixels"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pictures = folder / "pictures"
        pictures.mkdir()
        write_pictures(pictures, options.pictures, 64 if options.quick else 375)
        few = folder / "few"
        few.mkdir()
        for path in sorted(pictures.iterdir())[:64]:
            os.link(path, few / path.name)
        encoder = options.encoder or random_weights(folder, options.side or 224)
        run = make_run(folder, few, encoder, options.side)
        model = Classifier.load(run)
        batch, one = ready_pixels(model, BATCH), ready_pixels(model, 1)
        print(f"{options.pictures} JPEG files, encoder {model.encoder.name}, {torch.get_num_threads()} threads\n")

        def encode_all() -> None:
            with reused_blocks():  # as `predict` does: its memory is kept from batch to batch
                encode(model, batch, options.pictures)

        found = in_turns(
            {
                "encoder": encode_all,
                "predict": lambda: list(predict_inputs(model, open_inputs(model, [pictures]))),
            },
            options.repeats,
        )
        print("| what | encoder | with everything else | ratio | target |\n|---|---|---|---|---|")
        rates = {what: options.pictures / seconds for what, seconds in found.items()}
        print(
            f"| predict, pictures/s | {rates['encoder']:.1f} | {rates['predict']:.1f} | "
            f"{rates['predict'] / rates['encoder']:.2f} | at least {THROUGHPUT} |",
            flush=True,
        )

        first = sorted(pictures.iterdir())[0]
        server = subprocess.Popen(
            [sys.executable, "-m", "rowssl", "serve", str(run), "--port", "0"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        try:
            assert server.stdout is not None
            place = server.stdout.readline().strip()
            with reused_blocks():
                found = in_turns(
                    {"encoder": lambda: encode(model, one, 1), "server": lambda: ask(place, first)}, options.requests
                )
        finally:
            server.terminate()
            server.wait(timeout=30)
        extra = 1e3 * (found["server"] - found["encoder"])
        print(
            f"| one picture, ms | {1e3 * found['encoder']:.1f} | {1e3 * found['server']:.1f} | "
            f"+{extra:.1f} ms | at most +{EXTRA_MS:.0f} ms |",
            flush=True,
        )

        found = in_turns(
            {
                "torch": lambda: command("-c", "import torch"),
                "help": lambda: command("-m", "rowssl", "predict", "--help"),
                "predict": lambda: command("-m", "rowssl", "predict", str(run), str(first)),
            },
            options.repeats,
            warm=0 if options.quick else 1,
        )
    print("\n| start-up | seconds | of `import torch` |\n|---|---|---|")
    for what, words in (
        ("torch", '`python -c "import torch"`'),
        ("help", "`rowssl predict --help`"),
        ("predict", "one picture"),
    ):
        print(f"| {words} | {found[what]:.2f} | {found[what] / found['torch']:.2f} |")


if __name__ == "__main__":
    main()
