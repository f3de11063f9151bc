# Two commands for a stranger: `make demo` and `make test`. `make setup` is the install part of both.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test setup setup-dev lint clean

demo: setup
	$(BIN)/rowssl demo

test: setup-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n auto

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
