# Two commands do everything from a fresh clone: `make run` and `make test`.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: run test test-all lint docs perf results clean
.DEFAULT_GOAL := run

run: $(READY)            ## the default benchmark: progress, a table, figures
	$(BIN)/robustcaps run benchmarks/quick.toml

# As many processes as there are cores, with one thread each; a file of tests stays together.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile

test: $(READY)           ## the tests, without the slow ones
	$(PYTEST)

test-all: $(READY)       ## every test, and how often verdicts are right
	$(PYTEST) -m "slow or not slow"
	$(BIN)/python -m benchmarks.calibration

lint: $(READY)           ## ruff, mypy, and the layers (import-linter)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(READY)           ## the manual, in docs/_build/html
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet docs docs/_build/html

perf: $(READY)           ## speed and memory against the textbook, side by side in one run; the manual shows its table
	$(BIN)/python -m benchmarks.perf

results: $(READY)        ## the reference runs that the manual shows; says first how many hours they take
	$(BIN)/robustcaps check benchmarks/full.toml
	$(BIN)/robustcaps run benchmarks/full.toml --out results
	$(BIN)/python -m benchmarks.calibration
	$(BIN)/python -m docs.generate.readme

clean:                   ## forget the environment
	rm -rf $(VENV)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet torch --constraint constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[attacks,dev,docs]"
	touch $(READY)
