# Two commands for a stranger: `make demo` and `make test`. `make setup` is the install part of both.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test faults coverage mutants setup setup-dev lint clean

demo: setup
	$(BIN)/rowssl demo

test: setup-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n auto

# The full counts of tests/faults and tests/properties; writes the table of docs/reliability.md. Needs no network.
faults: setup-dev
	ROWSSL_FULL=1 $(BIN)/pytest tests/faults tests/properties

coverage: setup-dev
	$(BIN)/pytest -n auto --cov=rowssl --cov-report=term-missing:skip-covered --cov-fail-under=90

# How many small changes of the three files that decide every number the tests notice.
mutants: setup-dev
	$(BIN)/python benchmarks/mutants.py src/rowssl/methods/losses.py src/rowssl/methods/density.py src/rowssl/evaluation.py

setup: .venv/.core
setup-dev: .venv/.dev

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/.core: pyproject.toml constraints.txt | .venv/bin/python
	@echo "installing rowssl and its core dependencies (about a minute the first time)"
	$(PIP) torch
	$(PIP) -e .
	@touch $@

.venv/.dev: pyproject.toml constraints.txt | .venv/bin/python
	@echo "installing rowssl with its development extras (two minutes the first time)"
	$(PIP) torch
	$(PIP) -e '.[dev]'
	@touch $@ .venv/.core

clean:
	rm -rf .venv rowssl-demo .mypy_cache .ruff_cache .pytest_cache .hypothesis
