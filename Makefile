# One-word commands; each works from a fresh clone.
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready

.PHONY: help setup demo test lint format docs bench reproduce clean

help:  ## show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1\t/' | awk -F '\t' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: $(READY)  ## make the virtual environment .venv with everything in it

$(READY): pyproject.toml constraints.txt hatch_build.py $(wildcard src/manigraph/native/*.[ch]) src/manigraph/native/compiling.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "manigraph needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "setting up .venv (once; a minute or two) ..."
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@$(BIN)/python -c 'from manigraph.native import loaded_library as found; \
	  found() or print("no gcc, or another kind of processor: training on this CPU will be slower (docs/speed.md)")'
	@touch $(READY)

demo: $(READY)  ## compare methods on digits with 20 labels (3 minutes)
	@$(BIN)/manigraph demo

test: $(READY)  ## run all tests
	@$(BIN)/python -m pytest -n 2 --dist worksteal --durations 20 --durations-min 5

lint: $(READY)  ## check style, types and import layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(READY)  ## format the code
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: $(READY)  ## build the API reference into build/reference
	@$(BIN)/python -m pdoc -d google -o build/reference manigraph.functional manigraph.nn manigraph.estimator manigraph.engine \
	  manigraph.inference.predictor manigraph.data.sources.arrays manigraph.config

bench: $(READY)  ## measure how fast the methods train on this machine (an hour and a half)
	@$(BIN)/manigraph bench --sections startup graph growth narrow native steps inference power end_to_end loop methods peak profile attention data memory compile \
	  --output results/bench.json --history results/bench-history.jsonl

reproduce: $(READY)  ## measure the table of results on digits again (half an hour)
	@$(BIN)/manigraph reproduce digits

clean:  ## remove the virtual environment and caches; runs stay
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
