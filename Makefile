# make demo, make test: each makes its own virtual environment if there is none.

VENV ?= .venv
BIN := $(VENV)/bin
EXTRAS := dev,audit,log,cluster,export,explore,serve,docs
# One process per core with one thread each: most tests are too small for several threads. The tests of a file
# stay together and in order, since they share servers and runs.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist loadfile

.PHONY: demo test test-slow test-thorough check docs wheel bench clean

demo: $(VENV)/.installed
	$(BIN)/lipcert demo --out runs/demo

test: $(VENV)/.installed-all
	@command -v chromium >/dev/null || echo "chromium is not installed, so the explorer is not tested in a browser"
	$(PYTEST)

test-slow: $(VENV)/.installed-all
	$(PYTEST) -m slow -rs

# An hour: thousands of networks and damaged files, every layer under inductor. Before a release.
test-thorough: $(VENV)/.installed-all
	$(PYTEST) -m thorough -rs

check: $(VENV)/.installed-all
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

docs: $(VENV)/.installed-all
	$(BIN)/mkdocs build --strict

# Build the package, install the wheel into an empty environment and run the demonstration there.
wheel: $(VENV)/.installed-all
	$(BIN)/python -m tools.check_wheel

bench: $(VENV)/.installed-all
	$(BIN)/python -m tools.bench

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	python3 -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/.installed-all: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[$(EXTRAS)]'
	touch $@ $(VENV)/.installed
