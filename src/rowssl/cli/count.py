"""`rowssl count`: how many classes there are, in several ways side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rowssl.cli.options import file_to_write, parse_known


def count(
    source: Annotated[
        str | None, typer.Argument(help="Folder of images, CSV, parquet, or .npy/.npz/.safetensors embeddings.")
    ] = None,
    labels: Annotated[Path | None, typer.Option(help="CSV with some labels: path,label or row,label.")] = None,
    out: Annotated[Path | None, typer.Option(help="Picture of the search to write: .html or .svg.")] = None,
    max_classes: Annotated[int | None, typer.Option(help="Search no further than this.")] = None,
    only: Annotated[str | None, typer.Option(help="Estimators with commas: hidden,density,gcd,balanced,heads.")] = None,
    data: Annotated[
        str | None, typer.Option("--data", help="Benchmark instead of SOURCE: digits, cifar100, ...")
    ] = None,
    data_root: Annotated[Path | None, typer.Option(help="Folder with the benchmark's files [$ROWSSL_DATA].")] = None,
    split: Annotated[Path | None, typer.Option(help="Split file of `rowssl split`.")] = None,
    protocol: Annotated[str | None, typer.Option(help="rowssl, bacon, gcd or longtail.")] = None,
    gamma: Annotated[float | None, typer.Option(help="Imbalance ratio.")] = None,
    prior: Annotated[str | None, typer.Option(help="match, mismatch or uniform.")] = None,
    known: Annotated[str | None, typer.Option(help="Known classes: a number, a share, or names with commas.")] = None,
    max_bad: Annotated[float | None, typer.Option(help="Share of images that may be unreadable [0.05].")] = None,
    encoder: Annotated[
        str | None, typer.Option(help="Name, path, hf:NAME, identity, gradients, pixels or convnet.")
    ] = None,
    image_size: Annotated[int | None, typer.Option(help="Side of the encoder's input in pixels.")] = None,
    views: Annotated[
        int | None, typer.Option(help="Cached views per image: the same as for `fit` share a cache.")
    ] = None,
    cache: Annotated[Path | None, typer.Option(help="Folder of the trunk cache [$ROWSSL_CACHE].")] = None,
    seed: Annotated[int, typer.Option(help="Seed.")] = 0,
) -> None:
    """Estimate how many classes there are, in several ways side by side, each with an interval."""
    from rowssl.config import build_config, lay_over
    from rowssl.core.console import out as console
    from rowssl.counting.base import ESTIMATORS
    from rowssl.counting.table import count_source, print_counts
    from rowssl.report.count_chart import check_picture, write_picture

    check_picture(out)
    file_to_write(out, "--out")
    content: dict[str, Any] = {"seed": seed}
    given = {
        "data.source": source, "data.labels": labels, "data.name": data, "data.data_root": data_root,
        "data.split": split, "data.protocol": protocol, "data.gamma": gamma, "data.prior": prior,
        "data.known": parse_known(known), "data.max_bad": max_bad, "encoder.name": encoder, "encoder.image_size": image_size,
        "encoder.views": views, "encoder.cache": cache,
    }  # fmt: skip
    lay_over(content, given)
    names = tuple(name.strip() for name in only.split(",") if name.strip()) if only else ESTIMATORS
    counts = count_source(build_config(content), max_classes=max_classes, names=names)
    print_counts(counts, console)
    if out is not None:
        write_picture(out, counts)
        console.print(f"written: {out}", markup=False, soft_wrap=True)
