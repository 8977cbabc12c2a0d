# `make demo` and `make test` set everything up by themselves on a machine with Python 3.10+.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed

.PHONY: demo test test-all lint bench clean

demo: $(INSTALLED)
	$(BIN)/python examples/quickstart.py

test: $(INSTALLED) lint
	$(BIN)/pytest -n 2 -m "not slow"

test-all: $(INSTALLED) lint
	$(BIN)/pytest -n 2

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(INSTALLED)
	$(BIN)/python benchmarks/sampler.py

$(INSTALLED): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed, this is %s: set PYTHON=" % sys.version)'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --editable '.[loggers,report,test,video]'
	touch $@

clean:
	rm -rf .venv
