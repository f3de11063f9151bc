"""All readers of `faults.readers` under Atheris: `python -m faults.fuzz_atheris FOLDER SECONDS`, in `tests`.

Atheris follows which lines of the readers an input reaches and which comparisons it nearly passes, and keeps what reaches more.
The first byte of an input says which reader gets the rest. An input is read or refused with one sentence; any other exception,
a minute, or MEGABYTES more than at the start end the process with the input in FOLDER. Further arguments are libFuzzer's.
"""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

import atheris

SLOWEST = 60  # seconds, of a machine that may be busy with other things
MEGABYTES = 300
LONGEST = 2**15  # bytes

with atheris.instrument_imports(include=["rowssl", "yaml"]):
    import yaml  # noqa: F401

    from faults.readers import SEEDS, targets
    from rowssl.core.errors import InputError


def status(name: str) -> int:
    """A line of /proc/self/status, in kB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def main(folder: Path, seconds: str, *more: str) -> None:
    """Write the good files as first inputs, then try until the time is over; says how many inputs were read and refused."""
    corpus, scratch = folder / "corpus", folder / "scratch"
    for one in (corpus, scratch):
        one.mkdir(parents=True, exist_ok=True)
    found = list(targets(scratch).items())
    counts = {name: [0, 0] for name, _ in found}
    for number, (name, target) in enumerate(found):
        for place, data in enumerate(SEEDS[name]()):
            target(data)  # good files are read; what is imported late, is now
            (corpus / f"{number}-{place}").write_bytes(bytes([number]) + data)

    def one_input(data: bytes) -> None:
        name, target = found[(data[0] if data else 0) % len(found)]
        try:
            target(data[1:])
        except InputError as error:
            counts[name][1] += 1
            if not str(error) or not str(error).isprintable():
                raise AssertionError(f"not one printable sentence: {error}") from None
        counts[name][0] += 1
        if sum(done for done, _ in counts.values()) % 1000 == 0:
            (folder / "counts.txt").write_text("".join(f"{n} {d} {r}\n" for n, (d, r) in counts.items()))

    # Reserving more than this is an error at once, however short; using more is noticed by libFuzzer within a second.
    limit = (status("VmSize") + 4 * MEGABYTES * 1024) * 1024
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    # libFuzzer asks getrusage, which also counts what the process that started this one held.
    before = max(status("VmRSS"), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    most = before // 1024 + MEGABYTES
    options = [f"-max_total_time={seconds}", f"-timeout={SLOWEST}", f"-rss_limit_mb={most}", f"-max_len={LONGEST}"]
    options += ["-seed=1", "-print_final_stats=1", "-len_control=0", f"-artifact_prefix={folder}{os.sep}"]
    atheris.Setup([sys.argv[0], *options, *more, str(corpus)], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
