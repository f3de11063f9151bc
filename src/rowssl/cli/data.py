"""Commands about data before training: `rowssl demo`, `check` and `split`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from rowssl.cli.options import Labels, Root, file_to_write, parse_known
from rowssl.core.errors import InputError


def demo(
    out: Annotated[Path, typer.Option(help="Where to write the run.")] = Path("rowssl-demo"),
    method: Annotated[str, typer.Option(help="Which method to run, see `rowssl fit --help`.")] = "auto",
    seed: Annotated[int, typer.Option(help="Seed.")] = 0,
) -> None:
    """Run an open-world experiment on bundled handwritten digits and write a report (under a minute)."""
    from rowssl.cli.demo import run_demo

    run_demo(out, method=method, seed=seed)


def check(
    source: Annotated[str, typer.Argument(help="Folder of images, CSV, parquet, or embeddings.")],
    labels: Labels = None,
    image_column: Annotated[str | None, typer.Option(help="Column with the images.")] = None,
    label_column: Annotated[str | None, typer.Option(help="Column with the labels.")] = None,
    bars: Annotated[Path | None, typer.Option(help="Also write the class sizes as an SVG picture.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Look at a data set before training: counts, class sizes, unreadable files, duplicates, suspicious labels."""
    from rowssl.core.console import out
    from rowssl.data.check import check as run_check
    from rowssl.data.check import print_report

    file_to_write(bars, "--bars")
    report = run_check(source, labels=labels, image_column=image_column, label_column=label_column)
    if as_json:
        import json

        out.print_json(json.dumps(report.as_dict()))
    else:
        print_report(report, out)
    if bars is not None:
        from rowssl.core.files import write_text
        from rowssl.report.profiles import checked_sizes

        write_text(bars, checked_sizes(report))


def split(
    data: Annotated[str, typer.Option("--data", help="Benchmark, or a labelled table (folder per class, CSV, ...).")],
    out: Annotated[Path, typer.Option(help="Split file to write (JSON); the picture goes beside it as .svg.")],
    data_root: Root = None,
    variant: Annotated[str | None, typer.Option(help="Which ImageNet-100: gcd, orca, bacon or folder.")] = None,
    labels: Labels = None,
    protocol: Annotated[str, typer.Option(help="rowssl, bacon, gcd or longtail.")] = "rowssl",
    setting: Annotated[str | None, typer.Option(help="A related setting: ssl, ncd, gcd, da-gcd, rowssl, ...")] = None,
    gamma: Annotated[float | None, typer.Option(help="Imbalance ratio: largest class over smallest.")] = None,
    prior: Annotated[str | None, typer.Option(help="Unlabelled prior: match, mismatch or uniform.")] = None,
    known: Annotated[str | None, typer.Option(help="Known classes: a number, a share, or names with commas.")] = None,
    labelled_share: Annotated[float, typer.Option(help="Labelled share of the known classes' images.")] = 0.5,
    mismatch: Annotated[str | None, typer.Option(help="For natural sizes: graded or reverse.")] = None,
    n_max: Annotated[int | None, typer.Option(help="Class size the profiles start from.")] = None,
    order: Annotated[str | None, typer.Option(help="Images of a class: first in table order, or random.")] = None,
    shuffle_classes: Annotated[bool, typer.Option(help="Draw the order of classes by seed.")] = False,
    class_list: Annotated[Path | None, typer.Option(help="ImageNet-100 as orca: text file, one synset a line.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed, where the protocol draws.")] = None,
) -> None:
    """Cut a labelled data set into labelled, unlabelled and test rows by a named protocol."""
    from rowssl.core.console import out as console
    from rowssl.core.files import write_text
    from rowssl.data.benchmarks import BENCHMARKS, load_benchmark
    from rowssl.data.splits import make_split
    from rowssl.data.table import read_table
    from rowssl.report.profiles import class_sizes, print_sizes, size_picture

    file_to_write(out, "--out")
    if data in BENCHMARKS:
        train, test = load_benchmark(data, data_root, variant=variant, class_list=class_list)
        test_labels = test.labels
    elif os.path.exists(data):
        train, test_labels = read_table(data, labels=labels, check_images=False), None
    else:
        raise InputError(f"--data {data} is neither a benchmark ({', '.join(BENCHMARKS)}) nor a file or folder.")
    result = make_split(
        train.labels,
        test_labels,
        protocol=protocol,
        dataset=data if data in BENCHMARKS else "",
        known=parse_known(known),
        gamma=gamma,
        prior=prior,
        labelled_share=labelled_share,
        setting=setting,
        seed=seed,
        class_names=train.class_names,
        mismatch=mismatch,
        n_max=n_max,
        order=order,
        shuffle_classes=shuffle_classes,
    )
    result.save(out)
    picture = out.with_suffix(".svg")
    sizes = class_sizes(result, train.labels, train.class_names)
    write_text(picture, size_picture(sizes))
    print_sizes(sizes, len(result.test), console)
    console.print(f"written: {out} and {picture}", markup=False, soft_wrap=True)
