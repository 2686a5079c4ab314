# Two commands for a fresh clone. Each creates the virtual environment and installs what it needs.
#   make demo    prepares data, trains a language model on a mesh of 4 CPU devices, and shows the result
#   make test    runs the tests (`make test-ci`: those that continuous integration runs)
PYTHON ?= python3
VENV ?= .venv
DEMO ?= demo
# Test processes; each runs one file at a time. The slow tests wait often, so two for each core.
test test-ci: JOBS ?= 4
test-fast: JOBS ?= 2
BIN := $(VENV)/bin
PYTEST = $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder
# The package alone, and the package with the tools of the tests, docs and benchmarks.
PACKAGE_STAMP := $(VENV)/.installed-package
STAMP := $(VENV)/.installed
BENCH_STAMP := $(VENV)/.installed-bench
PAGES := README.md CHANGELOG.md CONTRIBUTING.md docs benchmarks/page.md
PEERS := benchmarks/environments/jax benchmarks/environments/torch

# Tests start many processes, which would each compile every module anew.
unexport PYTHONDONTWRITEBYTECODE
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo images test test-ci test-fast test-beam lint docs package format bench bench-full bench-check clean

$(PACKAGE_STAMP) $(STAMP): setup.py pyproject.toml
	@echo "Installing t2tp and its dependencies in $(VENV): some minutes the first time"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --editable '.$(if $(filter $(STAMP),$@),[dev])'
	@touch $@

# `make test` installs everything that the demo needs.
demo: $(if $(wildcard $(STAMP)),$(STAMP),$(PACKAGE_STAMP))
	@PATH="$(abspath $(BIN)):$$PATH" sh examples/demo.sh $(DEMO)

# Makes the README's images; the layout page needs chromium.
images: demo
	$(BIN)/python tools/images.py $(DEMO)

# A test with several parameters runs cases that cover all values, and a slow test one case.
# `make test-ci` runs such cases of slow tests too, `.venv/bin/pytest` every case.
# oneDNN is off: exact_sums refuses its matmuls, and in the programs that tests start TensorFlow would
# rewrite each function for it, on each device.
test: $(STAMP)
	TF_ENABLE_ONEDNN_OPTS=0 $(PYTEST) --cases=brief -m 'not ci_only'

test-fast: $(STAMP)
	TF_ENABLE_ONEDNN_OPTS=0 $(PYTEST) --cases=one -m 'not slow and not ci_only'

# Users have oneDNN, so the fast tests of what is computed run with it too.
test-ci: $(STAMP)
	TF_ENABLE_ONEDNN_OPTS=0 $(PYTEST) --cases=cover
	$(PYTEST) --cases=one -m 'not slow' $(addprefix tests/,lowering ops layers models decoding)

# Apache Beam requires an older protobuf than the other tests. Its own environment shares all other
# packages.
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
	$(BIN)/python tools/prose.py
	$(BIN)/python -m tools.names
	$(BIN)/python tools/package_map.py --check
	cd build/package && PYTHONPATH=. $(abspath $(BIN))/lint-imports --config $(CURDIR)/pyproject.toml
	cd build/package && $(abspath $(BIN))/mypy --config-file=$(CURDIR)/pyproject.toml

# Builds the site in build/site. A broken link or a missing page is an error.
docs: $(STAMP) package
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Copies the packages into their installed places, for tools that read them without importing them.
package:
	rm -rf build/package && mkdir -p build/package && cp -rL t2tp build/package/

format: $(STAMP)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/mdformat $(PAGES)

bench: $(BENCH_STAMP) $(PEERS)
	$(BIN)/python benchmarks/run.py --suite=short --turns=4 --steps=2

# Takes an hour or more on two cores (47 minutes with --turns=3 --steps=2), then writes
# docs/benchmarks.md. `run.py --case=NAME` runs one case.
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

# Peers whose dependencies clash with ours. A peer that cannot be installed is reported as absent,
# with the last line of its log.
benchmarks/environments/jax:
	$(PYTHON) -m venv $@
	$@/bin/pip install jax optax >$@.log 2>&1 || rm -rf $@

benchmarks/environments/torch:
	$(PYTHON) -m venv $@
	$@/bin/pip install torch numpy transformers >$@.log 2>&1 || rm -rf $@

clean:
	rm -rf $(VENV) $(DEMO) build *.egg-info .pytest_cache .ruff_cache .mypy_cache
