"""ImageNet-100: a hundred classes of ImageNet, of which there are four lists."""

from __future__ import annotations

from pathlib import Path

from rowssl.core.errors import InputError
from rowssl.core.text import printable
from rowssl.data import class_lists
from rowssl.data.benchmarks._folders import class_folders, folder_table
from rowssl.data.table import Table

NAMES = {"imagenet100": "100 classes of ImageNet, by one of four lists"}
WANTS = "the folders train/<synset> and val/<synset> of ImageNet"
FOLDERS = ("imagenet",)
VARIANTS = ("gcd", "orca", "bacon", "folder")


def read(name: str, folder: Path, variant: str, class_list: Path | None) -> tuple[Table, Table] | None:
    """Four class lists go by the name ImageNet-100; the class ids are the places in the chosen one."""
    train, val = folder / "train", folder / "val"
    if not (train.is_dir() and val.is_dir()):
        return None
    present = class_folders(train)
    if not present:
        raise InputError(f"{printable(str(train))} holds no class folders")
    if variant == "folder":
        classes = present
    elif variant == "bacon":
        classes = list(class_lists.BACON_IMAGENET100_SYNSETS)
    elif variant == "orca":
        # The list is published with SCAN and not known here, so the user brings it.
        classes = _read_class_list(class_list or folder / "imagenet100.txt")
    else:
        if len(present) != 1000:
            raise InputError(
                f"--variant gcd counts in the 1,000 ILSVRC folders but {printable(str(train))} holds {len(present)}: "
                "use --variant folder to take those as they are"
            )
        classes = [present[i] for i in class_lists.GCD_IMAGENET100_INDICES]
    for part in (train, val):
        missing = sorted(set(classes) - set(class_folders(part)))
        if missing:
            raise InputError(
                f"{printable(str(part))} lacks {len(missing)} of the {len(classes)} classes of --variant {variant}, "
                f"among them {printable(missing[0])}"
            )
    return folder_table(train, classes), folder_table(val, classes)


def _read_class_list(path: Path) -> list[str]:
    """The first word of every line that is not empty, each once."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"--variant orca needs SCAN's list of 100 synsets, one a line, in {printable(str(path))} or as --class-list"
        ) from error
    classes = [line.split()[0] for line in lines if line.strip()]
    if len(classes) != 100 or len(set(classes)) != 100:
        raise InputError(f"{printable(str(path))} must name 100 synsets, one a line and each once, not {len(classes)}")
    return classes
