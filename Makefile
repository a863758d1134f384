# Two commands on a fresh machine with Python 3.11+ and make:
#   make demo    set up, tokenize the bundled sample offline, verify it
#   make test    set up, run the tests
# `make check` is what CI runs.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check -q
DEMO   ?= demo-out
JOBS   ?= 2

.PHONY: demo test test-peers test-fast check lint types bench reliability vocab sample clean
.DEFAULT_GOAL := demo

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "tokenmill needs Python 3.11 or newer: make PYTHON=python3.12 demo"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# The package and what it needs at run time.
$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(PIP) install -e .
	@touch $@

# And what the tests, the linter and the type checker need.
$(VENV)/.installed-dev: pyproject.toml | $(VENV)/bin/python
	$(PIP) install -e '.[dev]'
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-bench: pyproject.toml | $(VENV)/bin/python
	$(PIP) install -e '.[bench]'
	@touch $@

demo: $(VENV)/.installed
	@rm -rf $(DEMO)
	$(BIN)/tokenmill prepare 'sample/*.parquet' -o $(DEMO) --val 0.05
	@echo
	$(BIN)/tokenmill verify $(DEMO)

# A file's tests stay together: they share inputs that take time to make.
test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile

# Every format read by the project that owns it, from PyPI: heavy packages, in a venv of their own.
test-peers: $(VENV)-peers/.installed
	TOKENMILL_PEERS=1 $(VENV)-peers/bin/python -m pytest -q tests/peers

$(VENV)-peers/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)-peers
	$(VENV)-peers/bin/python -m pip --disable-pip-version-check -q install -e '.[peers]'
	$(VENV)-peers/bin/python -m pip --disable-pip-version-check -q install --no-deps \
	  litdata==0.2.76 mosaicml-streaming==0.13.0
	@touch $@

# Without the tests marked slow: a minute or two instead of ten.
test-fast: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile -m "not slow"

lint: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy

check: test lint types

# CORPUS=DIR measures on your own parquet files; the bundled sample is the default.
bench: $(VENV)/.installed-bench
	$(BIN)/python benchmarks/run.py $(if $(CORPUS),--corpus $(CORPUS))

# Every promise of docs/reliability.md, broken at on purpose; under 45 minutes on 2 cores.
# SEED=n draws other cases; ONLY=R1,R4 runs some rows.
reliability: $(VENV)/.installed-dev
	$(BIN)/python -m reliability $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY))

clean:
	rm -rf $(VENV) $(VENV)-peers $(DEMO) .pytest_cache .mypy_cache .ruff_cache .hypothesis
