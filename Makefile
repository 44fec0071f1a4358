# make demo, make test: each makes its own virtual environment if there is none.

VENV ?= .venv
BIN := $(VENV)/bin
EXTRAS := dev,audit,log,cluster,export,explore,docs

.PHONY: demo test test-slow check docs bench clean

demo: $(VENV)/.installed
	$(BIN)/lipcert demo --out runs/demo

test: $(VENV)/.installed-all
	@command -v chromium >/dev/null || echo "chromium is not installed, so the explorer is not tested in a browser"
	$(BIN)/python -m pytest

test-slow: $(VENV)/.installed-all
	$(BIN)/python -m pytest -m slow -rs

check: $(VENV)/.installed-all
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

docs: $(VENV)/.installed-all
	$(BIN)/mkdocs build --strict

bench: $(VENV)/.installed-all
	$(BIN)/lipcert bench --out benchmarks/results

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
