# `make demo` and `make test` work on a fresh machine with Python 3.11+, pip and make.
# PIP_ARGS is handed to every pip call, PYTHON chooses the interpreter for the environment.
PYTHON ?= python3
PIP_ARGS ?=
MARKERS ?= not slow and not heavy
# Tests run on as many cores as there are.
PYTEST_ARGS ?= -n auto
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt $(PIP_ARGS)

.PHONY: demo test lint format bench constraints clean

demo: $(VENV)/.installed
	$(BIN)/fedrecall demo

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m "$(MARKERS)" $(PYTEST_ARGS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed
	$(BIN)/python benchmarks/loss.py

constraints:
	$(PYTHON) tools/lock.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache

# A stamp is newer than what it was made from, so a second run installs nothing.
$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) -e '.[dev]'
	touch $@
