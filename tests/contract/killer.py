"""Kills trainings with SIGKILL at random moments: `python -m contract.killer FOLDER EPOCHS KILLS NAME...`.

It imports torch once and forks every attempt from there. Each method is killed KILLS times, somewhere in its training; then
one attempt runs to the end. Prints the lines of that last attempt and the number of kills that hit.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import traceback

from contract.problems import main as train


def attempt(arguments: list[str], victim: str = "", last: int = 0, wait: float = 0.0) -> tuple[list[str], bool]:
    """Train in a child process; kill it `wait` seconds after epoch `last` of `victim`. Its lines, and whether it was."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writing, 1)
        try:
            train(*arguments)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(writing)
    lines = []
    with os.fdopen(reading) as output:
        for line in output:
            lines.append(line.strip())
            if line.split()[:2] == ["epoch", victim] and int(line.split()[2]) >= last:
                time.sleep(wait)
                os.kill(child, signal.SIGKILL)
                victim = ""
    _, status = os.waitpid(child, 0)
    return lines, os.WIFSIGNALED(status)


def main(folder: str, epochs: str, kills: str, *names: str) -> None:
    """Kill, kill again, then let it finish."""
    arguments, hits, moment = [folder, epochs, *names], 0, random.Random()
    for victim in names:
        for kill in range(int(kills)):
            span = int(epochs) // int(kills)  # each kill further on than the one before
            last = kill * span + moment.randint(1, max(1, span - 3))
            hits += attempt(arguments, victim, last, moment.uniform(0, 0.03))[1]
    lines, killed = attempt(arguments)
    assert not killed
    print("\n".join([*lines, f"kills {hits}"]))


if __name__ == "__main__":
    main(*sys.argv[1:])
