# Two commands are enough on a fresh machine: `make demo` and `make test`. Needed: make, and Python 3.11 or later with venv.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help demo test check lint types wheel bench reference clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10

demo: $(INSTALLED) ## run the main job on the demo shards, with its live table and report
	$(BIN)/odb-stream run pipelines/text_chat.py --layout packed --budget 4096 --workers 2

test: $(INSTALLED) ## run the tests, without the slow ones
	$(BIN)/python -m pytest -m "not slow"

check: lint types ## everything that must hold before a merge: ruff, mypy --strict, all tests
	$(BIN)/python -m pytest

lint: $(INSTALLED) ## ruff
	$(BIN)/ruff check .

types: $(INSTALLED) ## mypy --strict on the package
	$(BIN)/mypy

wheel: $(INSTALLED) ## build the wheel, install it alone in a new environment, and try its commands there
	$(BIN)/python tools/check_wheel.py

bench: $(INSTALLED) ## measure beside other systems, and write docs/benchmarks.md and its JSON files; takes half an hour
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[bench]"
	$(BIN)/python tools/bench

reference: $(INSTALLED) ## rewrite docs/reference.md from the docstrings
	$(BIN)/python tools/make_reference.py

clean: ## remove the virtual environment and all caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Installed once, and again when the dependencies change. After this nothing needs the network.
$(INSTALLED): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	@touch $@
