"""Each option of the command line is declared once, and every command shows a whole help."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, get_origin

import pytest

from rowssl.cli import options
from rowssl.cli.app import build
from rowssl.config import RunConfig

SOURCE = Path(options.__file__).parent
COMMANDS = {one.callback.__name__: one.callback for one in build().registered_commands if one.callback}
# Flags that mean something else in some commands, and how many things they mean.
MEANINGS = {
    "--out": 5,  # a run, many runs, a split, a table, a picture
    "--encoder": 2,  # its name; for a finished run its place
    "--data": 2,  # a benchmark; or a table, too
    "--prior": 2,  # one; for a grid several
    "--gamma": 2,
    "--list": 2,  # the cells of a grid; the names of the paper's tables
}


def test_options_are_declared_in_one_file_and_once() -> None:
    declared = Counter()
    for path in SOURCE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("typer.Option", "typer.Argument"):
                assert path.name == "options.py", f"{path.name}:{node.lineno}"
                (text,) = (ast.unparse(keyword.value) for keyword in node.keywords if keyword.arg == "help")
                declared[text] += text != "DRY_RUN"
    assert len(declared) > 50
    assert [text for text, times in declared.items() if times > 1] == []


def parameters(command: Callable[..., Any]) -> Iterator[tuple[list[str], Any]]:
    """Flags of a command's options (none for an argument), and how they are declared."""
    for one in inspect.signature(command, eval_str=True).parameters.values():
        assert get_origin(one.annotation) is Annotated, f"{one.name} is not declared in options.py"
        (info,) = one.annotation.__metadata__
        named = [word for word in (info.default, *(info.param_decls or ())) if isinstance(word, str)]
        option = type(info).__name__ == "OptionInfo"
        yield (named or [f"--{one.name.replace('_', '-')}"]) if option else [], one.annotation


def test_a_flag_means_the_same_in_all_commands() -> None:
    meanings = defaultdict(set)
    for command in COMMANDS.values():
        for flags, declared in parameters(command):
            for flag in flags:
                meanings[flag].add((declared.__origin__, declared.__metadata__[0].help))
    assert {flag: len(found) for flag, found in meanings.items() if len(found) > 1} == MEANINGS


@pytest.mark.parametrize("name", options.RUN)
def test_an_option_of_a_run_is_one_of_the_configuration(name: str) -> None:
    *groups, last = options.RUN[name].key.split(".")
    kind = RunConfig
    for group in groups:
        kind = kind.model_fields[group].annotation  # type: ignore[assignment]
    assert last in kind.model_fields


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_is_complete(name: str, run: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = run(name, "--help")
    shown = " ".join(out.split())
    assert code == 0
    assert " ".join((COMMANDS[name].__doc__ or "?").split()) in shown
    for flags, declared in parameters(COMMANDS[name]):
        for text in (*flags, declared.__metadata__[0].help):
            assert text in shown


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys; from rowssl.cli import main; sys.argv[1:] = ['fit', '--help']\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print(sorted({'torch', 'sklearn', 'scipy', 'numpy', 'PIL', 'fastapi'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "--method" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"
