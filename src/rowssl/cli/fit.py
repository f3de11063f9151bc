"""`rowssl fit`: every option of a run, from the command line to its configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rowssl.cli.options import Labels, Root, Source, check_tail, parse_classes, parse_known, warn

COLLAPSED = 4  # exit code of a fit whose answer is none
METHOD_HELP = "auto [default], transfer, dts, simgcd, gcd, bacon, orca, trssl, opencon, promptcal or kmeans."


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
        from rowssl.runs.warm_start import continued_content

        content = continued_content(start, with_data=source is None and data is None)
    for keys, value in flatten(load_config(config or [])):
        merge(content, keys, value)
    given: dict[str, Any] = {
        "data.source": source, "data.labels": labels, "data.name": data, "data.data_root": data_root,
        "data.split": split_file, "data.protocol": protocol, "data.setting": setting, "data.gamma": gamma,
        "data.prior": prior, "data.known": parse_known(known), "data.max_bad": max_bad, "encoder.name": encoder,
        "encoder.tail": tail,
        "encoder.image_size": image_size, "encoder.views": views, "encoder.cache": cache,
        "method.name": method,
        "classes": parse_classes(classes), "train.epochs": epochs,
        "train.batch_size": batch_size, "train.lr": lr, "seed": seed, "train.device": device,
        "train.time_limit": time_limit, "method.options.tune": False if quick else None,
    }  # fmt: skip
    lay_over(content, given, overrides or [])
    run_config = build_config(content, " + ".join(map(str, config)) if config else "options")
    check_tail(run_config.encoder.tail)

    from rowssl.api import fit as run_fit
    from rowssl.core.console import out as console
    from rowssl.core.distributed import rank
    from rowssl.evaluation import print_metrics
    from rowssl.report.terminal import print_trust

    run = run_fit(run_config, out)
    if rank() != 0:
        return
    if run.evaluation:
        print_metrics(run.metrics, console)
    print_trust(run.metrics, console)
    if run.metrics["problem"]:
        warn(f"{run.metrics['problem']} What there is: {out / 'report.html'}")
        raise typer.Exit(COLLAPSED)
    found = run.metrics["classes"]["estimated"]
    console.print(
        f"{found} class{'' if found == 1 else 'es'} found in {run.seconds:.1f} s: {out / 'report.html'}",
        markup=False,
        soft_wrap=True,
    )
