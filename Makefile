# Two commands for a fresh clone, each complete in itself:
#   make demo    prepares data, trains a language model on a mesh of 4 CPU devices, and shows the result
#   make test    runs every test
PYTHON ?= python3
VENV ?= .venv
DEMO ?= demo
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-fast lint format bench clean

$(STAMP): setup.py pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@

demo: $(STAMP)
	PATH="$(abspath $(BIN)):$$PATH" sh examples/demo.sh $(DEMO)

test: $(STAMP)
	$(BIN)/python -m pytest

test-fast: $(STAMP)
	$(BIN)/python -m pytest -m 'not slow'

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(STAMP) benchmarks/environments/jax
	$(BIN)/python benchmarks/training_step.py

# Peers whose dependencies clash with ours; those that are not there are reported as absent.
benchmarks/environments/jax:
	$(PYTHON) -m venv $@
	$@/bin/pip install --quiet jax optax || rm -rf $@

clean:
	rm -rf $(VENV) $(DEMO) build *.egg-info .pytest_cache .ruff_cache .mypy_cache
