"""`rowssl fit`, `demo` and `count`: what a run is made of, from the command line to its configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from rowssl.cli import options as o
from rowssl.cli.options import check_tail, content_of, file_to_write, takes, warn

COLLAPSED = 4  # exit code of a fit that found no usable classes
STORY = (
    "Handwritten digits. 0-4 have a few labels, 5-9 have none; class sizes are long-tailed, and what is rare among the "
    "labelled is frequent among the unlabelled. Can the five unnamed digits be found, and new images of all ten be told apart?\n"
)


@takes(
    "source", "labels", "data", "data_root", "split", "protocol", "setting", "gamma", "prior", "known", "max_bad", "encoder",
    "tail", "image_size", "views", "cache", "method", "classes", "epochs", "batch_size", "lr", "seed",
    "time_limit", "device",
)  # fmt: skip
def fit(
    given: dict[str, Any],
    out: o.NewRun = Path("run"),
    start: o.From = None,
    quick: o.Quick = False,
    config: o.Config = None,
    overrides: o.Overrides = None,
) -> None:
    """Train: classify the known classes, discover the novel ones, write the run directory."""
    from rowssl.config import build_config

    under = None
    if start is not None:
        from rowssl.runs.warm_start import continued_content

        under = continued_content(start, with_data=given["data.source"] is None and given["data.name"] is None)
    given["method.options.tune"] = False if quick else None
    content = content_of(given, config, overrides, under)
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


def demo_config(method: str, seed: int) -> dict[str, Any]:
    """Five known and five novel digits, imbalance ratio 10, reversed prior."""
    return {
        "data": {"name": "digits", "protocol": "longtail", "known": 5, "gamma": 10, "prior": "mismatch"},
        "encoder": {"name": "gradients"},
        # Ten classes and mild imbalance: here the strong entropy term of the paper pays, see docs/methods/dts.md.
        "method": {"name": method, "options": {"preset": "paper"} if method == "dts" else {}},
        "train": {"epochs": 60, "batch_size": 32},
        "seed": seed,
    }


@takes("method", "seed")
def demo(given: dict[str, Any], out: o.NewRun = Path("rowssl-demo")) -> None:
    """Run an open-world experiment on bundled handwritten digits and write a report (under a minute)."""
    from rowssl.api import fit as run_fit
    from rowssl.config import build_config
    from rowssl.core.console import out as console
    from rowssl.evaluation import print_metrics
    from rowssl.report.terminal import print_trust

    console.print(STORY)
    run = run_fit(build_config(demo_config(given["method.name"] or "auto", given["seed"] or 0)), out)
    print_metrics(run.metrics, console)
    print_trust(run.metrics, console)
    report = (out / "report.html").resolve()
    console.print(
        f"\n{run.metrics['classes']['estimated']} classes in {run.seconds:.1f} s. Open the report: {report}",
        soft_wrap=True,
    )


@takes(
    "source", "labels", "data", "data_root", "split", "protocol", "gamma", "prior", "known", "max_bad", "encoder", "image_size",
    "views", "cache", "seed",
)  # fmt: skip
def count(
    given: dict[str, Any], out: o.NewPicture = None, max_classes: o.MaxClasses = None, only: o.Only = None
) -> None:
    """Estimate how many classes there are, in several ways side by side, each with an interval."""
    from rowssl.config import build_config
    from rowssl.core.console import out as console
    from rowssl.counting.base import ESTIMATORS
    from rowssl.counting.table import count_source, print_counts
    from rowssl.report.count_chart import check_picture, write_picture

    check_picture(out)
    file_to_write(out, "--out")
    names = tuple(name.strip() for name in only.split(",") if name.strip()) if only else ESTIMATORS
    counts = count_source(build_config(content_of(given)), max_classes=max_classes, names=names)
    print_counts(counts, console)
    if out is not None:
        write_picture(out, counts)
        console.print(f"written: {out}", markup=False, soft_wrap=True)
