# Two commands for a fresh clone, each complete in itself:
#   make demo    prepares data, trains a language model on a mesh of 4 CPU devices, and shows the result
#   make test    runs the tests (`make test-all`: every case of each, as continuous integration does)
PYTHON ?= python3
VENV ?= .venv
DEMO ?= demo
# How many processes test, each a file at a time. Many of the slow tests wait: for them, one more.
test: JOBS ?= 3
test-fast test-all: JOBS ?= 2
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
BENCH_STAMP := $(VENV)/.installed-bench
PAGES := README.md CHANGELOG.md CONTRIBUTING.md docs benchmarks/page.md
PEERS := benchmarks/environments/jax benchmarks/environments/torch

# Tests start many processes, which would each compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all test-fast test-beam lint docs package format bench bench-full bench-check clean

$(STAMP): setup.py pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@

demo: $(STAMP)
	PATH="$(abspath $(BIN)):$$PATH" sh examples/demo.sh $(DEMO)

# Of tests with several parameters, cases that cover all values; of slow ones, a fourth. Without
# oneDNN, for which TensorFlow rewrites each function on each device: a fifth of the time. `make
# test-all` tests with it.
test: $(STAMP)
	TF_ENABLE_ONEDNN_OPTS=0 $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder --cover

test-all: $(STAMP)
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

test-fast: $(STAMP)
	TF_ENABLE_ONEDNN_OPTS=0 $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder -m 'not slow' --one-case

# Apache Beam needs an older protobuf than the other tests have: an environment of its own, which
# shares the other packages.
test-beam: $(STAMP)
	$(PYTHON) -m venv build/beam
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
		>"$$(build/beam/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/shared.pth"
	build/beam/bin/pip install --quiet --editable '.[beam]'
	build/beam/bin/python -m pytest tests/problems/prepare/test_beam.py

lint: $(STAMP) package
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mdformat --check $(PAGES)
	cd build/package && PYTHONPATH=. $(abspath $(BIN))/lint-imports --config $(CURDIR)/pyproject.toml
	cd build/package && $(abspath $(BIN))/mypy --config-file=$(CURDIR)/pyproject.toml

# A broken link or a missing page is an error. The site is in build/site.
docs: $(STAMP) package
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The packages put together as they are installed, for tools that read them without importing them.
package:
	rm -rf build/package && mkdir -p build/package && cp -r t2tp build/package/
	cp -r hparams problems trainer build/package/t2tp/

format: $(STAMP)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/mdformat $(PAGES)

bench: $(BENCH_STAMP) $(PEERS)
	$(BIN)/python benchmarks/run.py --suite=short --turns=4 --steps=2

# An hour or more on two cores (47 minutes with --turns=3 --steps=2); then docs/benchmarks.md says
# what came of it. run.py takes a --case at a time.
bench-full: $(BENCH_STAMP) $(PEERS) benchmarks/data
	$(BIN)/python benchmarks/run.py --suite=full
	$(BIN)/python benchmarks/report.py

bench-check: bench
	$(BIN)/python benchmarks/check.py

$(BENCH_STAMP): $(STAMP)
	$(BIN)/pip install --quiet --editable '.[bench]'
	touch $@

benchmarks/data: $(STAMP)
	$(BIN)/t2tp_datagen --problem=languagemodel_python_stdlib --data_dir=$@

# Peers whose dependencies clash with ours. One that cannot be installed is reported as absent, with
# the last line of its log.
benchmarks/environments/jax:
	$(PYTHON) -m venv $@
	$@/bin/pip install jax optax >$@.log 2>&1 || rm -rf $@

benchmarks/environments/torch:
	$(PYTHON) -m venv $@
	$@/bin/pip install torch numpy transformers >$@.log 2>&1 || rm -rf $@

clean:
	rm -rf $(VENV) $(DEMO) build *.egg-info .pytest_cache .ruff_cache .mypy_cache
