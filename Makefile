# `make demo` and `make test` set everything up by themselves on a machine with Python 3.10+.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed

.PHONY: demo test test-all lint docs bench clean

demo: $(INSTALLED)
	rm -rf runs/demo
	$(BIN)/python recipes/td3.py +experiment=demo

test: $(INSTALLED) lint
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow"

test-all: $(INSTALLED) lint
	$(BIN)/pytest -n 2 --dist worksteal

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo 'The documentation is in site/index.html.'

bench: $(INSTALLED)
	$(BIN)/python benchmarks/sampler.py

$(INSTALLED): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed, this is %s: set PYTHON=" % sys.version)'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --editable '.[dm-control,docs,export,loggers,minari,recipes,report,search,sweep,test,video]'
	# mypy does not follow an editable install that renames a folder.
	ln -sfn "$(CURDIR)/recipes" "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/vmfer_recipes"
	touch $@

clean:
	rm -rf .venv
