"""Promises about the source itself."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
# Modules that run what they read, or that start other programs.
UNSAFE = {
    "pickle",
    "cPickle",
    "_pickle",
    "joblib",
    "dill",
    "cloudpickle",
    "shelve",
    "marshal",
    "subprocess",
    "pty",
    "code",
}
# numpy's and torch's ways to read, with what must be said with them; anything that can only unpickle must not be said at all.
MUST_SAY = {
    "torch.load": ("weights_only", True),
    "np.load": ("allow_pickle", False),
    "npy.read_array": ("allow_pickle", False),
}
NEVER = {
    "eval", "exec", "compile", "__import__", "os.system", "os.popen", "os.execv", "os.execvp", "os.spawnv", "torch.hub.load",
    "yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.full_load", "yaml.Loader", "yaml.UnsafeLoader", "yaml.FullLoader",
    "np.fromfile", "numpy.load", "np.lib.format.read_array", "torch.jit.load", "torch.save", "pd.read_pickle",
    "pickle.load", "pickle.loads",
}  # fmt: skip
UNPICKLES = {"cifar.py"}  # by an Unpickler that finds nothing but what stands for numpy's arrays
STARTS_PROCESSES = {"runners.py", "cell.py"}  # the bench grid starts `rowssl` itself, and asks git for the commit


def imported(tree: ast.AST) -> set[str]:
    """Top-level names of all imported modules."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


def unsafe_in(source: str) -> list[str]:
    """What a source does that could run what it reads, in words."""
    tree = ast.parse(source)
    found = [f"imports {name}" for name in sorted(UNSAFE & imported(tree))]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name) and ast.unparse(node) in NEVER:
            found.append(f"line {node.lineno}: {ast.unparse(node)}")
        if isinstance(node, ast.keyword) and node.arg == "trust_remote_code":
            found += [] if ast.unparse(node.value) == "False" else ["trusts remote code"]
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        option, value = MUST_SAY.get(name, (None, None))
        said = {one.arg: one.value for one in node.keywords}.get(option or "")
        if option and not (isinstance(said, ast.Constant) and said.value is value):
            found.append(f"line {node.lineno}: {name} without {option}={value}")
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.name)
def test_nothing_runs_what_it_reads(path: Path) -> None:
    found = unsafe_in(path.read_text())
    if path.name in STARTS_PROCESSES:
        found = [one for one in found if one != "imports subprocess"]
    if path.name in UNPICKLES:
        found = [one for one in found if one != "imports pickle"]
    assert not found


@pytest.mark.parametrize(
    "source",
    [
        "import pickle", "from pickle import loads", "import joblib as j", "from marshal import loads", "import shelve",
        "import torch\ntorch.load(x)", "torch.load(x, weights_only=False)", "torch.load(x, weights_only=flag)",
        "np.load(x)", "np.load(x, allow_pickle=True)", "npy.read_array(s, allow_pickle=True)", "yaml.load(x)",
        "eval(x)", "f = exec", "import yaml\nyaml.load(x, Loader=yaml.Loader)", "def f():\n    import dill",
        "AutoModel.from_pretrained(x, trust_remote_code=True)",
    ],
)  # fmt: skip
def test_the_search_finds_what_it_is_for(source: str) -> None:
    assert unsafe_in(source)


@pytest.mark.parametrize(
    "source", ["torch.load(x, weights_only=True)", "np.load(x, allow_pickle=False)", "yaml.safe_load(x)"]
)
def test_the_search_lets_pass_what_is_safe(source: str) -> None:
    assert not unsafe_in(source)


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.name)
def test_no_global_seed(path: Path) -> None:
    """Every draw has a generator of its own; a global seed would make results depend on who drew before."""
    for node in ast.walk(ast.parse(path.read_text())):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("seed", "manual_seed")
        ):
            owner = ast.unparse(node.func.value)
            assert owner not in ("torch", "random", "np.random", "numpy.random", "torch.cuda"), (
                f"{path.name}:{node.lineno}"
            )
