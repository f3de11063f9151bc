"""Commands as child processes that can be killed at any moment, without waiting for Python and torch to start each time.

`python -m faults.forked` imports everything once; each request, a line of JSON, forks a child from there that runs the
real command line (or a function of a test module) with its output in files. A request may say after how many seconds, or after how
many seconds of computing, the child is sent SIGKILL; the answer, another line of JSON, says how it ended.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import rowssl
from rowssl.core.errors import InputError

TESTS = Path(__file__).resolve().parents[1]
SLICE = 0.002  # seconds between two looks at a child
LIMIT = 3600.0  # seconds after which a child hangs, however busy the machine


@dataclass(frozen=True)
class Ended:
    """How a child ended: exit code (negative: a signal), seconds, those it computed, and what it said."""

    code: int
    seconds: float
    spent: float
    out: str
    err: str

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL


class Forked:
    """A process to fork from; use as a context manager."""

    def __init__(self) -> None:
        path = os.pathsep.join([str(TESTS), *sys.path])
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "faults.forked"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )  # fmt: skip

    def __enter__(self) -> Forked:
        return self

    def __exit__(self, *error: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _ask(self, **request: Any) -> Ended:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(request), file=self.process.stdin, flush=True)
        return Ended(**json.loads(self.process.stdout.readline()))

    def rowssl(
        self, *arguments: object, kill: float | None = None, once: str = "", spent: float | None = None
    ) -> Ended:
        """The command line; killed `kill` seconds from its start, or from the moment a path matches `once`, or as soon as it
        has computed for `spent` seconds, which is as far into a run on a busy machine as on an idle one."""
        argv = ["rowssl", *map(str, arguments)]
        return self._ask(call="rowssl.cli.app:main", argv=argv, kill=kill, once=once, spent=spent)

    def call(self, function: str, *arguments: object, spent: float | None = None) -> Ended:
        """`module:function` with text arguments."""
        return self._ask(call=function, arguments=list(map(str, arguments)), kill=None, once="", spent=spent)


def processes_below(parent: int) -> list[int]:
    """Children of a process; none when it has gone."""
    found: list[int] = []
    for file in Path(f"/proc/{parent}/task").glob("*/children"):
        with suppress(OSError):
            found += map(int, file.read_text().split())
    return found


def computed(pid: int) -> float:
    """Seconds that a process and all below it have computed."""
    try:
        times = (
            Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]
        )  # own, and of children that ended
    except OSError:
        return 0.0
    return sum(map(int, times)) / os.sysconf("SC_CLK_TCK") + sum(map(computed, processes_below(pid)))


def child(request: dict[str, Any], out: int, err: int) -> None:
    """In the child: run what was asked for and end with its exit code."""
    os.dup2(out, 1)
    os.dup2(err, 2)
    sys.argv = request.get("argv", sys.argv)
    code = 0
    try:
        module, _, function = request["call"].partition(":")
        getattr(import_module(module), function)(*request.get("arguments", []))
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def serve_one(request: dict[str, Any]) -> dict[str, Any]:
    """Fork, wait, kill when it is time, and tell."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        began = time.monotonic()
        pid = os.fork()
        if pid == 0:
            child(request, out.fileno(), err.fileno())
        limit = began + LIMIT if request["kill"] is None or request["once"] else began + request["kill"]
        while True:
            ended, status, usage = os.wait4(pid, os.WNOHANG)
            if ended:
                break
            if request["once"] and list(Path("/").glob(request["once"].lstrip("/"))):
                limit, request["once"] = min(limit, time.monotonic() + request["kill"]), ""
            enough = request["spent"] is not None and computed(pid) >= request["spent"]
            if enough or time.monotonic() >= limit:
                os.kill(pid, signal.SIGKILL)
                _, status, usage = os.wait4(pid, 0)
                break
            time.sleep(SLICE)
        said = []
        for stream in (out, err):
            stream.seek(0)
            said.append(stream.read().decode(errors="replace"))
        code = os.waitstatus_to_exitcode(status)
        seconds, spent = time.monotonic() - began, usage.ru_utime + usage.ru_stime
        return {"code": code, "seconds": seconds, "spent": spent, "out": said[0], "err": said[1]}


def main() -> None:
    """Warm up, then answer requests until there are no more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a warm-up says is no answer
    outside = ["torch._dynamo", "sklearn.cluster", "scipy.optimize", "openTSNE", "torch.utils.tensorboard"]
    own = [module.name for module in walk_packages(rowssl.__path__, "rowssl.") if not module.name.endswith("__main__")]
    for name in [*outside, *own]:
        try:
            import_module(name)
        except (ImportError, InputError):  # an optional part that is not installed
            continue
    for line in sys.stdin:
        print(json.dumps(serve_one(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
