"""`python -m rowssl`, for torchrun."""

from rowssl.cli import main

main()
