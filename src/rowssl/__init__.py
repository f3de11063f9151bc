"""Realistic open-world semi-supervised learning. `import rowssl` is cheap: torch is imported when something needs it."""

__version__ = "0.1.0"
