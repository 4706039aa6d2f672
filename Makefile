# `make demo` and `make test` work on a fresh machine with Python >= 3.10, make and g++: they make .venv themselves.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

RUNS ?= 5

.PHONY: demo test edits corpus faults lint bench clean

demo: $(STAMP)  ## what kcache does, beside stock torch
	$(BIN)/python bench/demo.py

test: $(STAMP)  ## all tests that this machine can run
	$(BIN)/pytest

edits: $(STAMP)  ## the table of edits: which must hit, which must miss
	$(BIN)/pytest -q tests/test_edits.py

corpus: $(STAMP)  ## the kernels of public packages under mechanical edits; a quarter of an hour
	$(PIP) -e '.[corpus]'
	$(BIN)/python -m tests.corpus.run liger_kernel fla

faults: $(STAMP)  ## crowds under kill -9, power loss, damage, full disks, at full numbers; half an hour
	$(BIN)/python -m tests.faults.run --json bench/results/faults.json

lint: $(STAMP)  ## style, types, and who may import whom
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)  ## starts against stock and the store against others, into bench/results/ and README.md
	$(PIP) -e '.[bench]'
	$(BIN)/python bench/store.py --json bench/results/store.json
	$(BIN)/python bench/cache_hits.py --runs $(RUNS) --json bench/results/cache_hits.json --readme README.md

clean:  ## remove what make made
	rm -rf $(VENV) build dist *.egg-info
	find . -name __pycache__ -prune -exec rm -rf {} +
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

# torch first and by itself, so that the version is the pinned one whatever else asks for it.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch==2.13.0
	$(PIP) triton==3.7.1
	$(PIP) -e '.[test]'
	touch $@
