"""Every option of the command line, once: its type, its flag and its help line. Nothing heavy is imported for a `--help`.

Options that are options of a run (`RunConfig`) are in `RUN`; a command takes them by name, see `takes`. What cannot be meant is
refused before any work is done.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import typer

from rowssl.core.errors import InputError
from rowssl.data.benchmarks import BENCHMARKS
from rowssl.encoders import ENCODERS
from rowssl.methods import METHODS

T = TypeVar("T")
LONGEST_NAME = 230  # bytes of a name: systems have 255, and a temporary name beside it is longer
LARGEST_NUMBER = 9  # digits of a number of classes, or of the width of a tail
USAGE = {  # of `rowssl edit`
    "rename": "rename CLASS NAME",
    "merge": "merge CLASS OTHER...",
    "split": "split CLASS",
    "move": "move FILE... CLASS",
    "undo": "undo",
    "history": "history",
}
DRY_RUN = "Show the cells, what is finished and the cost; run nothing."

# ── what a run is made from ──────────────────────────────────────────────────────────────────────────────────────────
Source = Annotated[
    str | None, typer.Argument(help="Folder of images, CSV, parquet, or .npy/.npz/.safetensors embeddings.")
]
Labels = Annotated[Path | None, typer.Option("--labels", help="CSV with some labels: path,label or row,label.")]
Benchmark = Annotated[str | None, typer.Option("--data", help=f"Benchmark: {', '.join(BENCHMARKS)}.")]
BenchmarkOrTable = Annotated[
    str, typer.Option("--data", help="Benchmark, or a labelled table: folder per class, CSV, embeddings with truth.")
]
DataRoot = Annotated[Path | None, typer.Option("--data-root", help="Folder with the benchmark's files [$ROWSSL_DATA].")]
Variant = Annotated[str | None, typer.Option(help="Which ImageNet-100: gcd, orca, bacon or folder.")]
ClassList = Annotated[Path | None, typer.Option(help="ImageNet-100 as orca: text file, one synset a line.")]
SplitFile = Annotated[Path | None, typer.Option("--split", help="Split file of `rowssl split`.")]
Protocol = Annotated[str | None, typer.Option(help="rowssl [default], bacon, gcd or longtail.")]
Related = Annotated[str | None, typer.Option("--setting", help="A related setting: ssl, ncd, gcd, da-gcd, rowssl, ...")]
Gamma = Annotated[float | None, typer.Option(help="Imbalance ratio: largest class over smallest.")]
Prior = Annotated[str | None, typer.Option(help="Unlabelled prior: match, mismatch or uniform.")]
Known = Annotated[str | None, typer.Option(help="Known classes: a number, a share, or names with commas.")]
LabelledShare = Annotated[float | None, typer.Option(help="Labelled share of the known classes' images [0.5].")]
Mismatch = Annotated[str | None, typer.Option(help="For natural sizes: graded or reverse.")]
LargestClass = Annotated[int | None, typer.Option("--n-max", help="Class size the profiles start from.")]
Order = Annotated[str | None, typer.Option(help="Images of a class: first in table order, or random.")]
ShuffleClasses = Annotated[bool, typer.Option(help="Draw the order of classes by seed.")]
MaxBad = Annotated[float | None, typer.Option(help="Share of images that may be unreadable and left out [0.05].")]
ImageColumn = Annotated[str | None, typer.Option(help="Column with the images.")]
LabelColumn = Annotated[str | None, typer.Option(help="Column with the labels.")]

# ── encoder, method, training ────────────────────────────────────────────────────────────────────────────────────────
EncoderName = Annotated[
    str | None,
    typer.Option(
        "--encoder", help=f"Path, or a name: {', '.join(n + 'NAME' if n[-1] == ':' else n for n in ENCODERS)}."
    ),
]
Tail = Annotated[str | None, typer.Option(help="auto, blocks:K, stage or adapter[:WIDTH].")]
ImageSize = Annotated[int | None, typer.Option(help="Side of the encoder's input in pixels.")]
Views = Annotated[int | None, typer.Option(help="Cached views per image, by the epochs if not given; 0: on the fly.")]
Cache = Annotated[Path | None, typer.Option(help="Folder of the trunk cache [$ROWSSL_CACHE].")]
MethodName = Annotated[
    str | None, typer.Option("--method", help=f"{', '.join(METHODS)} [auto]; `rowssl methods` says what each is.")
]
Classes = Annotated[str | None, typer.Option(help="Number of classes, auto (estimated) or oracle (the truth's).")]
Epochs = Annotated[int | None, typer.Option(help="Epochs [by the size of the data].")]
BatchSize = Annotated[int | None, typer.Option(help="Rows per step.")]
LearningRate = Annotated[float | None, typer.Option("--lr", help="Learning rate.")]
Seed = Annotated[int | None, typer.Option(help="Seed [0].")]
TimeLimit = Annotated[
    float | None, typer.Option(help="Seconds; tuning that would end later is left out: auto and transfer.")
]
Device = Annotated[str | None, typer.Option(help="auto [default], cpu or cuda.")]
Quick = Annotated[bool, typer.Option("--quick", help="The first answer, without tuning: auto and transfer.")]
From = Annotated[
    Path | None, typer.Option("--from", help="Run to go on from, with its corrections as labels; same options.")
]
Config = Annotated[
    list[Path] | None, typer.Option(help="YAML file with any of the options; repeat it to lay one over another.")
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="Any option: method.options.tau_max=0.8 (repeatable).")
]

# ── many runs ────────────────────────────────────────────────────────────────────────────────────────────────────────
Methods = Annotated[str, typer.Option(help="all, or names with commas: kmeans,simgcd,dts.")]
Priors = Annotated[str | None, typer.Option("--prior", help="Unlabelled priors: match,mismatch,uniform [match].")]
Gammas = Annotated[str | None, typer.Option("--gamma", help="Imbalance ratios: 100 or 10,100 [the benchmark's usual].")]
Seeds = Annotated[str | None, typer.Option(help="Seeds with commas: 0,1,2 [bench and small: 0; the paper's: 0,1,2].")]
Vary = Annotated[list[str] | None, typer.Option(help="An ablation: method.options.tau_max=0.2,1.0 (repeatable).")]
Workers = Annotated[
    int | None,
    typer.Option(min=0, help="Processes at a time [one for each GPU, else for each core]; 0 = none but this one."),
]
On = Annotated[str, typer.Option(help="local, ray or ray://address; ray?gpus=0.25&cpus=2 for a run.")]
Reports = Annotated[bool, typer.Option(help="Also write report.html and model/ of every run.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help=DRY_RUN)]
DryRunOrList = Annotated[bool, typer.Option("--dry-run", "--list", help=DRY_RUN)]
Names = Annotated[list[str] | None, typer.Argument(help="Names of `--list`, or all.")]
ListNames = Annotated[bool, typer.Option("--list", help="Show every name, its cost, and whether its data are at hand.")]
Scale = Annotated[str, typer.Option(help="full, or small: 20 classes, few images, in minutes.")]
Preset = Annotated[str | None, typer.Option(help="Preset of DTS: tuned [default], paper or official.")]

# ── finished runs ────────────────────────────────────────────────────────────────────────────────────────────────────
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Run directory of `rowssl fit`.")]
NewImages = Annotated[
    list[str],
    typer.Argument(metavar="IMAGES...", help="Images, folders, CSV or parquet files, or .npy/.npz embeddings."),
]
EncoderPlace = Annotated[
    str | None, typer.Option("--encoder", help="Where the pretrained encoder is, if it is not where it was.")
]
NoReport = Annotated[bool, typer.Option("--no-report", help="Leave report.html as it is, which is quicker.")]
Top = Annotated[int, typer.Option(help="List so many of the most likely classes with their probabilities.")]
Abstain = Annotated[float | None, typer.Option(help="Leave answers below this confidence empty: 0.8.")]
Action = Annotated[str, typer.Argument(help="; ".join(USAGE.values()))]
Words = Annotated[list[str] | None, typer.Argument(help="Classes by id or name, and what the action needs.")]
Parts = Annotated[int, typer.Option("--into", help="Number of parts of a split.")]
Most = Annotated[int, typer.Option("-n", "--most", min=1, help="Proposals to show.")]
Corrections = Annotated[Path, typer.Argument(help="CSV with file,label; or predictions.csv with changed classes.")]
Onnx = Annotated[Path, typer.Option("--onnx", help="File to write, such as model.onnx.")]
Port = Annotated[int, typer.Option(help="Port; 0 takes a free one.")]
Host = Annotated[str, typer.Option(help="Where to listen; beyond this machine a token is needed.")]
Token = Annotated[str | None, typer.Option(help="Token that every request must carry [made where needed].")]

# ── what is written, shown and looked for ────────────────────────────────────────────────────────────────────────────
NewRun = Annotated[
    Path, typer.Option("--out", help="Run directory; the same command continues a run that was stopped.")
]
NewRuns = Annotated[
    Path, typer.Option("--out", help="Folder of runs and results; the same command continues what was stopped.")
]
NewSplit = Annotated[
    Path, typer.Option("--out", help="Split file to write (JSON); the picture goes beside it as .svg.")
]
NewTable = Annotated[Path | None, typer.Option("--out", help="CSV file to write.")]
NewPicture = Annotated[Path | None, typer.Option("--out", help="Picture of the search to write: .html or .svg.")]
Bars = Annotated[Path | None, typer.Option(help="Also write the class sizes as an SVG picture.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Only = Annotated[str | None, typer.Option(help="Estimators with commas: hidden,density,gcd,balanced,heads.")]
MaxClasses = Annotated[int | None, typer.Option(help="Search no further than this.")]
OneMethod = Annotated[str | None, typer.Argument(metavar="[METHOD]", help="A method, whose options are listed.")]


def parse_known(text: str | None) -> int | float | list[str] | None:
    """`50` is a number of classes, `0.5` a share, `cat,dog` names."""
    if text is None:
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return [name.strip() for name in text.split(",") if name.strip()]


def parse_classes(text: str | None) -> int | str | None:
    """A number of classes, `auto` or `oracle`."""
    if text is None or text in ("auto", "oracle"):
        return text
    if not text.isdecimal() or len(text) > LARGEST_NUMBER:
        raise InputError(f"--classes takes a number, auto or oracle, not {text[:40]!r}.")
    return int(text)


class Setting(NamedTuple):
    """An option that is an option of a run: its dotted key in `RunConfig`, how it is declared, and what its text means."""

    key: str
    option: Any
    read: Callable[[Any], Any] | None = None


RUN = {
    "source": Setting("data.source", Source),
    "labels": Setting("data.labels", Labels),
    "data": Setting("data.name", Benchmark),
    "data_root": Setting("data.data_root", DataRoot),
    "variant": Setting("data.variant", Variant),
    "split": Setting("data.split", SplitFile),
    "protocol": Setting("data.protocol", Protocol),
    "setting": Setting("data.setting", Related),
    "gamma": Setting("data.gamma", Gamma),
    "prior": Setting("data.prior", Prior),
    "known": Setting("data.known", Known, parse_known),
    "labelled_share": Setting("data.labelled_share", LabelledShare),
    "mismatch": Setting("data.mismatch", Mismatch),
    "n_max": Setting("data.n_max", LargestClass),
    "max_bad": Setting("data.max_bad", MaxBad),
    "encoder": Setting("encoder.name", EncoderName),
    "tail": Setting("encoder.tail", Tail),
    "image_size": Setting("encoder.image_size", ImageSize),
    "views": Setting("encoder.views", Views),
    "cache": Setting("encoder.cache", Cache),
    "method": Setting("method.name", MethodName),
    "classes": Setting("classes", Classes, parse_classes),
    "epochs": Setting("train.epochs", Epochs),
    "batch_size": Setting("train.batch_size", BatchSize),
    "lr": Setting("train.lr", LearningRate),
    "seed": Setting("seed", Seed),
    "time_limit": Setting("train.time_limit", TimeLimit),
    "device": Setting("train.device", Device),
}


def takes(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command with these options of `RUN` besides its own; its first argument holds their values by key, None = not given."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
        taken = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=RUN[name].option)
            for name in names
        ]

        def called(**values: Any) -> None:
            given = {}
            for setting, value in ((RUN[name], values.pop(name)) for name in names):
                given[setting.key] = value if setting.read is None else setting.read(value)
            command(given, **values)

        parameters = [*taken, *(one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own)]
        called.__name__, called.__doc__ = command.__name__, command.__doc__
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {one.name: one.annotation for one in parameters}
        return called

    return decorate


def content_of(
    given: Mapping[str, Any],
    config: Sequence[Path] | None = None,
    overrides: Sequence[str] | None = None,
    under: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The configuration of a run in its layers: `under`, files, options, and `--set` over all."""
    from rowssl.config import flatten, lay_over, load_config, merge

    content = under or {}
    for keys, value in flatten(load_config(config or [])):
        merge(content, keys, value)
    lay_over(content, dict(given), overrides or [])
    return content


def several(text: str | None, kind: Callable[[str], T], option: str) -> list[T]:
    """Values with commas between them, each once."""
    try:
        return list(dict.fromkeys(kind(part.strip()) for part in (text or "").split(",") if part.strip()))
    except ValueError:
        raise InputError(f"{option} {text} is not a list of numbers with commas between them.") from None


def is_benchmark(data: str) -> bool:
    """Whether `--data` names a benchmark, and not a file or folder; InputError for neither."""
    if data not in BENCHMARKS and not os.path.exists(data):
        raise InputError(f"--data {data} is neither a benchmark ({', '.join(BENCHMARKS)}) nor a file or folder.")
    return data in BENCHMARKS


def file_to_write(path: Path | None, option: str) -> None:
    """An InputError where a file to be written later is none, before any work is done for it."""
    if path is None:
        return
    if not path.name or os.path.isdir(path):
        raise InputError(f"{option} {path} is a folder: name a file to write.")
    if len(os.fsencode(path.name)) > LONGEST_NAME:
        raise InputError(f"{option} {path.name[:40]}... cannot be written: the name of a file is shorter.")


def check_tail(text: str) -> None:
    """An InputError for a tail whose number is absurd; the encoder checks the others."""
    if len(text.partition(":")[2]) > LARGEST_NUMBER:
        raise InputError(f"--tail {text[:40]} is not one of auto, blocks:K, stage, adapter, adapter:WIDTH.")


def warn(sentence: str) -> None:
    """One sentence on standard error."""
    from rowssl.core.text import printable  # names in it may be anything, and are shown on a terminal

    print(f"rowssl: {printable(sentence)}", file=sys.stderr)
