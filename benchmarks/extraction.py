"""Filling the trunk cache from JPEG files against the bare trunk on ready tensors: how much of its throughput is reached.

    python benchmarks/extraction.py                                       # random ViT-S/16 at 224 px, 512 pictures
    python benchmarks/extraction.py --encoder ../shared/encoders/resnet50-imagenet
    python benchmarks/extraction.py --quick

The program writes random pictures with detail of every size as JPEG files. `cache` reads, decodes, augments, runs the trunk,
converts to float16, writes and hashes, as `rowssl fit` does the first time; `trunk` runs the same number of pictures through the
trunk in batches of the same size, from one normalised tensor that is in memory: `plain` as PyTorch does it, `reused` with freed
memory kept for the next batch, as the cache does it (`core.memory.reused_blocks`). They take turns; the cache is compared with
the faster one.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from step import random_vit

from rowssl.core.memory import reused_blocks
from rowssl.data.table import Table, read_table
from rowssl.data.views import view_recipe
from rowssl.encoders.base import Encoder, build_encoder
from rowssl.encoders.trunk import open_trunk_cache
from rowssl.encoders.vit import split_vit

TARGET = 0.9


def vit_encoder(side: int, size: str = "s") -> Encoder:
    """A ViT/16 with random weights: time does not depend on them."""
    trunk, tail = split_vit(random_vit(size), 1)
    tokens, width = 1 + (side // 16) ** 2, 384 if size == "s" else 768
    return Encoder(
        name=f"random ViT-{size.upper()}/16", trunk=trunk.eval().requires_grad_(False), tail=tail, trunk_shape=(tokens, width),
        out_dim=width, image_size=side, resize=int(side / 0.875), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225),
        rescale=1 / 255, fingerprint=f"random-{size}-{side}",
    )  # fmt: skip


def write_pictures(folder: Path, count: int, side: int) -> None:
    """Random pictures with detail of every size, fading as in photographs (1 / frequency): about as many bytes as those take."""
    rng = np.random.default_rng(0)
    for number in range(count):
        size = (side + number % 64, side + number % 96)
        picture = np.full((size[1], size[0], 3), 128.0)
        for cells in (3, 6, 12, 24, 48, 96, 192, 384):
            octave = Image.fromarray(rng.integers(0, 255, (cells, cells, 3), dtype=np.uint8))
            detail = np.asarray(octave.resize(size, Image.Resampling.BICUBIC), dtype=float) - 128
            picture += detail * (1.2 / np.sqrt(cells))
        Image.fromarray(picture.clip(0, 255).astype(np.uint8)).save(folder / f"{number:05d}.jpg", quality=90)


def cache_seconds(table: Table, encoder: Encoder, views: int, folder: Path, batch: int) -> float:
    """One whole filling of an empty cache."""
    shutil.rmtree(folder, ignore_errors=True)
    recipe = view_recipe("standard", encoder.image_size, encoder.resize)
    began = time.perf_counter()
    open_trunk_cache(
        table,
        encoder,
        recipe=recipe,
        n_views=views,
        seed=0,
        folder=folder,
        batch_size=batch,
        in_memory=False,
        progress=False,
    )
    return time.perf_counter() - began


@torch.inference_mode()
def trunk_seconds(encoder: Encoder, pictures: int, batch: int, *, reuse: bool = False) -> float:
    """The trunk alone on as many pictures, one ready batch again and again."""
    ready = encoder.normalise(
        torch.randint(0, 255, (batch, encoder.image_size, encoder.image_size, 3), dtype=torch.uint8)
    )
    with reused_blocks() if reuse else nullcontext():
        began = time.perf_counter()
        for begin in range(0, pictures, batch):
            encoder.trunk_forward(ready[: min(batch, pictures - begin)])
        return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--encoder", help="name or folder of an encoder; a random ViT-S/16 otherwise")
    parser.add_argument("--pictures", type=int, default=512)
    parser.add_argument("--views", type=int, default=1, help="augmented views beside the clean one")
    parser.add_argument("--side", type=int, help="of the encoder's input [its own; 224 for the random ViT]")
    parser.add_argument("--file-side", type=int, default=375, help="of the JPEG files, about")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.pictures, options.side, options.file_side, options.batch, options.repeats = 12, 32, 48, 8, 1
    encoder = (
        build_encoder(options.encoder, image_size=options.side) if options.encoder else vit_encoder(options.side or 224)
    )
    images = options.pictures * (1 + options.views)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "pictures").mkdir()
        write_pictures(folder / "pictures", options.pictures, options.file_side)
        table = read_table(folder / "pictures")
        trunk_seconds(encoder, options.batch, options.batch)
        seconds: dict[str, list[float]] = {"cache": [], "plain": [], "reused": []}
        for _ in range(options.repeats):
            seconds["plain"].append(trunk_seconds(encoder, images, options.batch))
            seconds["reused"].append(trunk_seconds(encoder, images, options.batch, reuse=True))
            seconds["cache"].append(cache_seconds(table, encoder, options.views, folder / "cache", options.batch))
    rate = {what: images / statistics.median(values) for what, values in seconds.items()}
    turns = zip(seconds["plain"], seconds["reused"], seconds["cache"], strict=True)
    reached = statistics.median(min(plain, reused) / cache for plain, reused, cache in turns)
    print(
        f"{options.pictures} JPEG files, {1 + options.views} views each, batch {options.batch}, {torch.get_num_threads()} threads\n"
    )
    print(
        "| encoder | trunk alone, plain, views/s | reused | filling the cache | reached | target |\n|---|---|---|---|---|---|"
    )
    print(
        f"| {encoder.name} | {rate['plain']:.1f} | {rate['reused']:.1f} | {rate['cache']:.1f} | {reached:.2f} | {TARGET} |"
    )


if __name__ == "__main__":
    main()
