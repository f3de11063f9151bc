"""The command line. Each command is a few lines here and a function elsewhere; nothing heavy is imported before it is needed."""

from __future__ import annotations

import re
import sys
from typing import NoReturn

import typer

from rowssl.cli import data, runs
from rowssl.cli.bench import bench
from rowssl.cli.count import count
from rowssl.cli.encoders import encoders
from rowssl.cli.fit import fit
from rowssl.cli.options import warn
from rowssl.cli.paper import reproduce
from rowssl.core.errors import InputError, in_a_sentence

app = typer.Typer(
    help="Open-world learning from many pictures and a few labels: classify the known classes, discover the novel ones.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
LONGEST_SENTENCE = 1000  # characters of a refusal: an argument of any length may stand in it
OUT_OF_MEMORY = re.compile("can't allocate memory|out of memory")  # how torch says it, of the CPU and of a GPU

COMMANDS = (
    data.demo, data.check, data.split, fit, bench, reproduce, encoders,
    runs.predict, runs.edit, runs.suggest, runs.relabel, runs.export, runs.serve, count,
)  # fmt: skip
for command in COMMANDS:
    app.command()(command)


def _refuse(sentence: str) -> NoReturn:
    if len(sentence) > LONGEST_SENTENCE:
        sentence = f"{sentence[: LONGEST_SENTENCE // 2]} ... {sentence[-LONGEST_SENTENCE // 2 :]}"
    warn(sentence)
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
