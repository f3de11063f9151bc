"""Commands before training: `rowssl check`, `split`, `methods` and `encoders`."""

from __future__ import annotations

from typing import Any

from rowssl.cli import options as o
from rowssl.cli.options import file_to_write, is_benchmark, takes
from rowssl.core.errors import InputError


def say(text: str) -> None:
    from rowssl.core.console import out as console

    console.print(text, markup=False, highlight=False, soft_wrap=True)


def check(
    source: o.Source,
    labels: o.Labels = None,
    image_column: o.ImageColumn = None,
    label_column: o.LabelColumn = None,
    bars: o.Bars = None,
    as_json: o.AsJson = False,
) -> None:
    """Look at a data set before training: counts, class sizes, unreadable files, duplicates, suspicious labels."""
    from rowssl.core.console import out
    from rowssl.data.check import check as run_check
    from rowssl.data.check import print_report

    assert source is not None
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


@takes("data_root", "variant", "labels", "protocol", "setting", "gamma", "prior", "known", "labelled_share", "mismatch",
       "n_max", "seed")  # fmt: skip
def split(
    given: dict[str, Any],
    data: o.BenchmarkOrTable,
    out: o.NewSplit,
    order: o.Order = None,
    shuffle_classes: o.ShuffleClasses = False,
    class_list: o.ClassList = None,
) -> None:
    """Cut a labelled data set into labelled, unlabelled and test rows by a named protocol."""
    from rowssl.core.console import out as console
    from rowssl.core.files import write_text
    from rowssl.data.benchmarks import load_benchmark
    from rowssl.data.splits import make_split
    from rowssl.data.table import read_table
    from rowssl.report.profiles import class_sizes, print_sizes, size_picture

    file_to_write(out, "--out")
    rules = {key.rpartition(".")[2]: value for key, value in given.items() if value is not None}
    root, variant, labels = (rules.pop(name, None) for name in ("data_root", "variant", "labels"))
    if is_benchmark(data):
        train, test = load_benchmark(data, root, variant=variant, class_list=class_list)
        test_labels, rules["dataset"] = test.labels, data
    else:
        train, test_labels = read_table(data, labels=labels, check_images=False), None
    rules |= {"class_names": train.class_names, "order": order, "shuffle_classes": shuffle_classes}
    result = make_split(train.labels, test_labels, **rules)
    result.save(out)
    picture = out.with_suffix(".svg")
    sizes = class_sizes(result, train.labels, train.class_names)
    write_text(picture, size_picture(sizes))
    print_sizes(sizes, len(result.test), console)
    console.print(f"written: {out} and {picture}", markup=False, soft_wrap=True)


def methods(name: o.OneMethod = None) -> None:
    """List the methods; with the name of one, its options, which `--set method.options.NAME=VALUE` sets."""
    from rowssl.methods import METHODS

    if name is None:
        for one in METHODS:
            entry = METHODS.entry(one)
            say(f"{one:12}  {entry.label:14}  {entry.help}")
        return
    if name not in METHODS:
        raise InputError(f"There is no method '{name}': choose one of {', '.join(METHODS)}.")
    fields = METHODS[name].Options.model_fields
    for option, field in fields.items():
        say(f"{option:28}  {field.default!s:16}  {field.description or ''}")
    if not fields:
        say(f"{name} has no options")


def encoders() -> None:
    """List the encoders by name: whether each works on this machine now, and where it is or how to get it."""
    from rowssl.encoders import weights
    from rowssl.encoders.base import available_encoders, best_available

    say(f"{'encoder':18}  here  where it is, or what brings it")
    for one in available_encoders():
        how = one.how
        if not one.works and one.spec in weights.PUBLISHED:  # without the address, which the page has
            how = f"hf download {weights.PUBLISHED[one.spec].repository} {weights.FILE}"
        say(f"{one.spec:18}  {'yes' if one.works else 'no':4}  {how}")
    say(f"or the authors' own file, saved in {weights.cache_dir()}: docs/encoders.md has the addresses")
    say(
        "also: the path of a .safetensors or .pth file of a DINO or DINOv2 ViT; a Hugging Face folder of a ResNet, "
        "or with the extra `hf` also of ConvNeXt, ViT, DINOv2, DINOv3, CLIP, and hf:NAME"
    )
    name, why = best_available(has_images=True)
    say(f"for pictures, if you do not choose: {name}. {why}")
