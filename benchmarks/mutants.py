"""Would the tests notice? `python benchmarks/mutants.py src/rowssl/methods/losses.py ... [--limit SECONDS]`.

Makes one small change at a time to a file (another operator, another comparison, another constant, a statement left out), runs the
tests that are about the file, and counts the changes that make one fail. Each change lives in a process of its own,
forked from one that has imported what takes long; no file is written. Survivors are printed as a line of source before and after:
those that change nothing anyone can see (an epsilon, a sum that is the same) are the reader's to judge.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib.util
import os
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TESTS = {
    "methods.losses": [
        "tests/methods/test_losses.py",
        "tests/methods/test_class_losses.py",
        "tests/methods/test_queue_loss.py",
        "tests/methods/test_gcd.py",
        "tests/methods/test_simgcd.py",
    ],
    "methods._kernels": [
        "tests/methods/test_class_losses.py",
        "tests/methods/test_queue_loss.py",
        "tests/methods/test_density.py",
    ],
    "methods.density": ["tests/methods/test_density.py"],
    "evaluation": [
        "tests/test_evaluation.py",
        "tests/test_protocol.py",
        "tests/properties/test_evaluate_properties.py",
        "--deselect=tests/test_evaluation.py::test_a_million_predictions_over_a_thousand_classes",
    ],
}
EARLY = (  # imported once, before the forks; nothing here may import a file that is changed
    "torch", "torch.testing", "hypothesis", "pytest", "scipy.optimize", "sklearn.cluster", "numpy", "rich.console",
    "rich.table", "pydantic", "safetensors.torch", "PIL.Image",
)  # fmt: skip
FEW = 10  # examples of each property at first; a change that passes them meets all of them
PATIENCE = 10.0  # a change that makes the tests so many times slower counts as noticed: they hang

OPERATORS: dict[type[ast.AST], tuple[type[ast.AST], ...]] = {
    ast.Add: (ast.Sub,), ast.Sub: (ast.Add,), ast.Mult: (ast.Div,), ast.Div: (ast.Mult,), ast.Pow: (ast.Mult,),
    ast.FloorDiv: (ast.Mult,), ast.MatMult: (), ast.BitAnd: (ast.BitOr,), ast.BitOr: (ast.BitAnd,),
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,), ast.And: (ast.Or,), ast.Or: (ast.And,),
}  # fmt: skip


def changes_of(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Nodes that could stand in the place of one, each with the name of the change."""
    if isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp):
        for other in OPERATORS.get(type(node.op), ()):
            changed = copy.deepcopy(node)
            changed.op = other()  # type: ignore[assignment]
            yield "operator", changed
    elif isinstance(node, ast.Compare):
        for place, operator in enumerate(node.ops):
            for other in OPERATORS.get(type(operator), ()):
                changed = copy.deepcopy(node)
                changed.ops[place] = other()  # type: ignore[call-overload]
                yield "comparison", changed
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not | ast.Invert):
        yield "sign", node.operand
    elif isinstance(node, ast.IfExp):
        yield "branch", node.body
        yield "branch", node.orelse
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "constant", ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield "constant", ast.Constant(node.value + 1)


def is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def mutants(source: str) -> Iterator[tuple[int, str, str, str]]:
    """(line, kind of change, the statement before, the whole source after) for every change to the body of a function."""
    tree = ast.parse(source)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    inside = {id(child) for function in functions for part in function.body for child in ast.walk(part)}
    inside -= {
        id(child) for node in ast.walk(tree) for child in ast.walk(node) if isinstance(node, ast.Raise | ast.JoinedStr)
    }
    for parent in ast.walk(tree):
        for field, value in ast.iter_fields(parent):
            for place, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
                if not isinstance(node, ast.AST) or id(node) not in inside:
                    continue
                for kind, other in _all_changes(parent, node):
                    setattr_or_item(parent, field, place, other)
                    text = ast.unparse(ast.fix_missing_locations(tree))
                    setattr_or_item(parent, field, place, node)
                    before = ast.unparse(node).splitlines()[0]
                    after = ast.unparse(ast.fix_missing_locations(other)).splitlines()[0]
                    yield getattr(node, "lineno", 0), kind, f"{before}  ->  {after}", text


def _all_changes(parent: ast.AST, node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(node, ast.Assign | ast.AugAssign | ast.Expr | ast.For | ast.If) and not is_text(node):
        yield "left out", ast.Pass()
    if isinstance(parent, ast.FunctionDef) and node in parent.decorator_list:
        return
    yield from changes_of(node)


def setattr_or_item(parent: ast.AST, field: str, place: int | None, value: ast.AST) -> None:
    if place is None:
        setattr(parent, field, value)
    else:
        getattr(parent, field)[place] = value


def run_tests(name: str, path: Path, source: str, examples: int | None) -> None:
    """In the child: the changed module in the place of the true one, then its tests; exit code 0 if all pass."""
    import pytest
    from hypothesis import Phase, settings

    if examples is not None:
        whole = settings.__init__

        def fewer(self: settings, *arguments: object, **options: Any) -> None:
            whole(self, *arguments, **options | ({"max_examples": examples} if "max_examples" in options else {}))

        settings.__init__ = fewer  # type: ignore[method-assign]
    settings.register_profile("mutants", phases=(Phase.explicit, Phase.generate), database=None, derandomize=True)
    settings.load_profile("mutants")
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    spec = importlib.util.spec_from_loader(f"rowssl.{name}", loader=None, origin=str(path))
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[f"rowssl.{name}"] = module
    exec(compile(source, str(path), "exec"), module.__dict__)
    os._exit(int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *TESTS[name]])))


def noticed(name: str, path: Path, source: str, seconds: int = 3600, few: bool = False) -> tuple[bool, float]:
    """Whether a test fails with this source, or computes for longer than so many seconds; and for how many it did."""
    child = os.fork()
    if child == 0:
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))  # of computing: a busy machine is no hang
            run_tests(name, path, source, FEW if few else None)
        finally:
            os._exit(9)
    _, status, usage = os.wait4(child, 0)
    return os.waitstatus_to_exitcode(status) != 0, usage.ru_utime + usage.ru_stime


def main() -> None:
    """All files in turn; exit code 1 below nine in ten."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds for all files together")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of the changes to try")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    os.chdir(ROOT)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # importing them takes longer than most tests here
    for name in EARLY:
        __import__(name)
    assert not any(name.startswith("rowssl") for name in sys.modules)
    until, poor = time.monotonic() + options.limit, False
    for file in options.files:
        source = file.read_text(encoding="utf-8")
        name = ".".join(file.resolve().relative_to(ROOT / "src" / "rowssl").with_suffix("").parts)
        fails, spent = noticed(name, file, source)
        if fails:
            sys.exit(f"{file}: its tests fail as it is")
        longest = 1 + int(PATIENCE * spent)
        tried = killed = 0
        everything = list(enumerate(mutants(source)))
        for number, (line, kind, change, changed) in everything:
            if time.monotonic() > until or (options.only and number not in options.only):
                continue
            tried += 1
            if any(noticed(name, file, changed, longest, few)[0] for few in (True, False)):
                killed += 1
            else:
                print(f"survived {number:4}  {file.name}:{line}  {kind}: {change}", flush=True)
            if tried % 20 == 0:
                print(f"{file.name}: {killed} of {tried} so far", file=sys.stderr, flush=True)
        print(
            f"{file.name}: {killed} of {tried} noticed ({100 * killed / max(1, tried):.1f} %); {len(everything)} changes in all"
        )
        poor |= killed < 0.9 * tried
    sys.exit(int(poor))


if __name__ == "__main__":
    main()
