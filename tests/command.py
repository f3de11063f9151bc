"""The command line in this process."""

from __future__ import annotations

import sys

from rowssl.cli import app


def rowssl(*arguments: object) -> int:
    """Call `rowssl ARGUMENTS`; its exit code."""
    before, sys.argv = sys.argv, ["rowssl", *map(str, arguments)]
    try:
        app.main()
        return 0
    except SystemExit as stop:
        return int(stop.code or 0)
    finally:
        sys.argv = before
