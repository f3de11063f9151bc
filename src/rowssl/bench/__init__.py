"""Grids of runs, their tables and pictures."""
