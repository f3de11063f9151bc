"""The command line. Each command is a few lines here and a function elsewhere; nothing heavy is imported before it is needed."""

from __future__ import annotations

import re
import sys
from typing import NoReturn

import typer

from rowssl.core.errors import InputError, in_a_sentence

LONGEST_SENTENCE = 1000  # characters of a refusal: an argument of any length may stand in it
OUT_OF_MEMORY = re.compile("can't allocate memory|out of memory")  # how torch says it, of the CPU and of a GPU


def build() -> typer.Typer:
    """The commands, in the order of the help."""
    from rowssl.cli import bench, data, fit, paper, runs

    app = typer.Typer(
        help="Open-world learning from many pictures and a few labels: classify the known classes, discover the novel ones.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    for command in (
        fit.demo, data.check, data.split, fit.fit, fit.count, bench.bench, paper.reproduce, data.methods, data.encoders,
        runs.predict, runs.edit, runs.suggest, runs.relabel, runs.export, runs.serve,
    ):  # fmt: skip
        app.command()(command)
    return app


def _refuse(sentence: str) -> NoReturn:
    if len(sentence) > LONGEST_SENTENCE:
        sentence = f"{sentence[: LONGEST_SENTENCE // 2]} ... {sentence[-LONGEST_SENTENCE // 2 :]}"
    from rowssl.core.text import printable

    print(f"rowssl: {printable(sentence)}", file=sys.stderr)
    sys.exit(2)


def main() -> None:
    """Run the command line; a user's mistake is one sentence and exit code 2, never a traceback."""
    try:
        build()()
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
