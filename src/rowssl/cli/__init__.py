"""The command line."""

from rowssl.cli.app import main

__all__ = ["main"]
