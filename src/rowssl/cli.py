"""The command line. Each command is a few lines here and a function elsewhere; nothing heavy is imported before it is needed."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from rowssl.cli_bench import bench
from rowssl.cli_encoders import encoders
from rowssl.cli_reproduce import reproduce
from rowssl.cli_use import use
from rowssl.cli_values import check_tail, file_to_write, parse_classes, parse_known
from rowssl.errors import InputError, in_a_sentence

app = typer.Typer(
    help="Open-world learning from many pictures and a few labels: classify the known classes, discover the novel ones.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

COLLAPSED = 4  # exit code of a fit whose answer is none
LONGEST_SENTENCE = 1000  # characters of a refusal: an argument of any length may stand in it
OUT_OF_MEMORY = re.compile("can't allocate memory|out of memory")  # how torch says it, of the CPU and of a GPU
METHOD_HELP = "auto [default], transfer, dts, simgcd, gcd, bacon, orca, trssl, opencon, promptcal or kmeans."
Root = Annotated[Path | None, typer.Option("--data-root", help="Folder with the benchmark's files [$ROWSSL_DATA].")]
Labels = Annotated[Path | None, typer.Option("--labels", help="CSV with some labels: path,label or row,label.")]
Source = Annotated[
    str | None, typer.Argument(help="Folder of images, CSV, parquet, or .npy/.npz/.safetensors embeddings.")
]


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where to write the run.")] = Path("rowssl-demo"),
    method: Annotated[str, typer.Option(help="Which method to run, see `rowssl fit --help`.")] = "auto",
    seed: Annotated[int, typer.Option(help="Seed.")] = 0,
) -> None:
    """Run an open-world experiment on bundled handwritten digits and write a report (under a minute)."""
    from rowssl.demo import run_demo

    run_demo(out, method=method, seed=seed)


@app.command()
def check(
    source: Annotated[str, typer.Argument(help="Folder of images, CSV, parquet, or embeddings.")],
    labels: Labels = None,
    image_column: Annotated[str | None, typer.Option(help="Column with the images.")] = None,
    label_column: Annotated[str | None, typer.Option(help="Column with the labels.")] = None,
    bars: Annotated[Path | None, typer.Option(help="Also write the class sizes as an SVG picture.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Look at a data set before training: counts, class sizes, unreadable files, duplicates, suspicious labels."""
    from rowssl.data.check import check as run_check
    from rowssl.data.check import print_report, save_bars
    from rowssl.progress import out

    file_to_write(bars, "--bars")
    report = run_check(source, labels=labels, image_column=image_column, label_column=label_column)
    if as_json:
        import json

        out.print_json(json.dumps(report.as_dict()))
    else:
        print_report(report, out)
    if bars is not None:
        save_bars(report, bars)


@app.command()
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
    from rowssl.checkpoint import write_text
    from rowssl.data.benchmarks import BENCHMARKS, load_benchmark
    from rowssl.data.splits import make_split
    from rowssl.data.table import read_table
    from rowssl.progress import out as console
    from rowssl.report.profiles import print_profiles, profile_svg

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
    write_text(picture, profile_svg(result, train.labels, train.class_names))
    print_profiles(result, train.labels, console)
    console.print(f"written: {out} and {picture}", markup=False, soft_wrap=True)


@app.command()
def fit(
    source: Source = None,
    out: Annotated[Path, typer.Option(help="Run directory; the same command continues a run that was stopped.")] = Path(
        "run"
    ),
    labels: Labels = None,
    start: Annotated[
        Path | None, typer.Option("--from", help="Run to go on from, with its corrections as labels; same options.")
    ] = None,
    config: Annotated[
        list[Path] | None, typer.Option(help="YAML file with any of the options; repeat it to lay one over another.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", help="Benchmark: digits, cifar10, cifar100, imagenet100, cub200, herbarium19."),
    ] = None,
    data_root: Root = None,
    split_file: Annotated[Path | None, typer.Option("--split", help="Split file of `rowssl split`.")] = None,
    protocol: Annotated[str | None, typer.Option(help="rowssl, bacon, gcd or longtail.")] = None,
    setting: Annotated[str | None, typer.Option(help="A related setting: ssl, ncd, gcd, da-gcd, rowssl, ...")] = None,
    gamma: Annotated[float | None, typer.Option(help="Imbalance ratio.")] = None,
    prior: Annotated[str | None, typer.Option(help="match, mismatch or uniform.")] = None,
    known: Annotated[str | None, typer.Option(help="Known classes: a number, a share, or names with commas.")] = None,
    max_bad: Annotated[
        float | None, typer.Option(help="Share of images that may be unreadable and left out [0.05].")
    ] = None,
    encoder: Annotated[
        str | None, typer.Option(help="Name, path, hf:NAME, identity, gradients, pixels or convnet.")
    ] = None,
    tail: Annotated[str | None, typer.Option(help="auto, blocks:K, stage or adapter[:WIDTH].")] = None,
    image_size: Annotated[int | None, typer.Option(help="Side of the encoder's input in pixels.")] = None,
    views: Annotated[
        int | None, typer.Option(help="Cached views per image, by the epochs if not given; 0: on the fly.")
    ] = None,
    cache: Annotated[Path | None, typer.Option(help="Folder of the trunk cache [$ROWSSL_CACHE].")] = None,
    cache_workers: Annotated[
        int | None, typer.Option("--cache-workers", help="Processes that fill the trunk cache [1].")
    ] = None,
    method: Annotated[str | None, typer.Option(help=METHOD_HELP)] = None,
    classes: Annotated[
        str | None, typer.Option(help="Number of classes, auto (estimated) or oracle (the truth's).")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs [by the size of the data].")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Rows per step.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="The first answer, without tuning: auto and transfer.")
    ] = False,
    time_limit: Annotated[
        float | None, typer.Option(help="Seconds; tuning that would end later is left out: auto and transfer.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="Any option: method.options.tau_max=0.8 (repeatable).")
    ] = None,
) -> None:
    """Train: classify the known classes, discover the novel ones, write the run directory."""
    from rowssl.config import build_config, flatten, lay_over, load_config, merge

    content: dict[str, Any] = {}
    if start is not None:
        from rowssl.continued import continued_content

        content = continued_content(start, with_data=source is None and data is None)
    for keys, value in flatten(load_config(config or [])):
        merge(content, keys, value)
    given: dict[str, Any] = {
        "data.source": source, "data.labels": labels, "data.name": data, "data.data_root": data_root,
        "data.split": split_file, "data.protocol": protocol, "data.setting": setting, "data.gamma": gamma,
        "data.prior": prior, "data.known": parse_known(known), "data.max_bad": max_bad, "encoder.name": encoder,
        "encoder.tail": tail,
        "encoder.image_size": image_size, "encoder.views": views, "encoder.cache": cache,
        "encoder.cache_workers": cache_workers, "method.name": method,
        "classes": parse_classes(classes), "train.epochs": epochs,
        "train.batch_size": batch_size, "train.lr": lr, "seed": seed, "train.device": device,
        "train.time_limit": time_limit, "method.options.tune": False if quick else None,
    }  # fmt: skip
    lay_over(content, given, overrides or [])
    run_config = build_config(content, " + ".join(map(str, config)) if config else "options")
    check_tail(run_config.encoder.tail)

    from rowssl.distributed import rank
    from rowssl.evaluate import print_metrics
    from rowssl.fit import fit as run_fit
    from rowssl.progress import out as console
    from rowssl.report.terminal import print_trust

    run = run_fit(run_config, out)
    if rank() != 0:
        return
    if run.evaluation is not None:
        print_metrics(run.metrics, console)
    print_trust(run.metrics, console)
    if run.metrics["problem"]:
        _warn(f"{run.metrics['problem']} What there is: {out / 'report.html'}")
        raise typer.Exit(COLLAPSED)
    found = run.metrics["classes"]["estimated"]
    console.print(
        f"{found} class{'' if found == 1 else 'es'} found in {run.seconds:.1f} s: {out / 'report.html'}",
        markup=False,
        soft_wrap=True,
    )


app.command()(bench)
app.command()(reproduce)
app.command()(encoders)


app.add_typer(use)


def _warn(sentence: str) -> None:
    from rowssl.data.images import printable  # a name in it may be anything, and is shown on a terminal

    print(f"rowssl: {printable(sentence)}", file=sys.stderr)


def _refuse(sentence: str) -> NoReturn:
    if len(sentence) > LONGEST_SENTENCE:
        sentence = f"{sentence[: LONGEST_SENTENCE // 2]} ... {sentence[-LONGEST_SENTENCE // 2 :]}"
    _warn(sentence)
    sys.exit(2)


def main() -> None:
    """Run the command line; a user's mistake is one sentence and exit code 2, never a traceback."""
    try:
        app()
    except InputError as error:
        _refuse(str(error))
    except BrokenPipeError:
        sys.exit(1)
    except (OSError, MemoryError, RecursionError) as error:  # the machine or the input, no bug
        _refuse(in_a_sentence(error))
    except KeyboardInterrupt:
        print("rowssl: stopped; the same command continues.", file=sys.stderr)
        sys.exit(130)
    except RuntimeError as error:
        if OUT_OF_MEMORY.search(str(error)):
            _refuse(in_a_sentence(MemoryError()))
        if type(error).__name__ != "NonFiniteError":
            raise
        print(f"rowssl: {error}", file=sys.stderr)
        sys.exit(3)
