# `make demo` and `make test` work on a fresh machine with Python 3.11+, pip and make.
# PIP_ARGS is handed to every pip call, PYTHON chooses the interpreter for the environment.
PYTHON ?= python3
PIP_ARGS ?=
MARKERS ?= not slow and not heavy
# Tests run on as many cores as there are.
PYTEST_ARGS ?= -n auto
# What a change in the core is most likely to break: numbers, a client's work, two engines, recipes.
QUICK := tests/core tests/algorithms tests/objectives tests/client tests/recipe tests/engines/test_pool.py \
  tests/engines/test_task_chunks.py tests/engines/test_single_updates.py tests/engines/processes/test_engine.py \
  tests/simulation/test_round.py tests/behaviour/test_plain_sgd.py \
  src/fedrecall/core src/fedrecall/algorithms src/fedrecall/objectives src/fedrecall/client src/fedrecall/recipe
# Compiling every kernel, and workers that import torch, take a third of the time of all these.
NOT_QUICK := tests/client/lanes/test_check.py tests/client/lanes/test_aarch64.py \
  tests/engines/processes/test_engine.py::test_a_script_without_a_main_guard_can_use_workers
FUZZ_EXAMPLES ?= 20000
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt $(PIP_ARGS)

.PHONY: demo test quick lint format fuzz bench bench-peers constraints clean

demo: $(VENV)/.installed
	$(BIN)/fedrecall demo

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m "$(MARKERS)" $(PYTEST_ARGS)

quick: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m "$(MARKERS)" $(PYTEST_ARGS) $(QUICK) $(NOT_QUICK:%=--deselect=%)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/check_names.py

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# What must be refused in a sentence, in many more shapes than the tests try.
fuzz: $(VENV)/.installed-dev
	FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) $(BIN)/python -m pytest -m slow tests/behaviour/test_fuzz_recipes.py tests/behaviour/test_fuzz_files.py $(PYTEST_ARGS)

bench: $(VENV)/.installed
	$(BIN)/python benchmarks/rounds.py
	$(BIN)/python benchmarks/exact.py
	$(BIN)/python benchmarks/loss.py

# Flower and pfl on the same work, each in an environment of its own. Fewer and shorter turns: Flower's are long.
bench-peers: $(VENV)/.installed .venv-flower/.installed .venv-pfl/.installed
	$(BIN)/python benchmarks/rounds.py --peers --cycles 10 --seconds 1

constraints:
	$(PYTHON) tools/lock.py

clean:
	rm -rf $(VENV) .venv-flower .venv-pfl build dist .pytest_cache .mypy_cache .ruff_cache

# A stamp is newer than what it was made from, so a second run installs nothing.
$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) -e '.[dev]'
	touch $@

.venv-flower/.installed: constraints.txt
	test -x .venv-flower/bin/python || $(PYTHON) -m venv .venv-flower
	.venv-flower/bin/python -m pip install --disable-pip-version-check -c constraints.txt $(PIP_ARGS) \
	  'flwr[simulation]==1.41.0' torch numpy
	touch $@

# pfl wants older releases of two packages: all others stay as they are in constraints.txt.
.venv-pfl/.installed: constraints.txt benchmarks/peers/pfl-constraints.txt
	test -x .venv-pfl/bin/python || $(PYTHON) -m venv .venv-pfl
	grep -v -e '^absl-py==' -e '^attrs==' constraints.txt > .venv-pfl/constraints.txt
	.venv-pfl/bin/python -m pip install --disable-pip-version-check -c .venv-pfl/constraints.txt \
	  -c benchmarks/peers/pfl-constraints.txt $(PIP_ARGS) 'pfl[pytorch]==0.6.0'
	touch $@
