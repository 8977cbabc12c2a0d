# Each command installs what it needs into .venv, on a machine with Python 3.10+.
PYTHON ?= python3
UV ?= $(shell command -v uv)
BIN := .venv/bin
INSTALL := $(if $(UV),$(UV) pip install --python $(BIN)/python,$(BIN)/pip install)
PYTEST := $(BIN)/pytest -n 2 --dist worksteal

EXTRAS_demo := recipes,report
EXTRAS_docs := docs,recipes
EXTRAS_test := dm-control,docs,export,loggers,minari,recipes,report,search,sweep,test,video

.PHONY: demo test test-lib test-all sanitize lint docs bench clean

demo: .venv/demo
	rm -rf runs/demo
	$(BIN)/python recipes/td3.py +experiment=demo

test: .venv/test lint
	$(PYTEST) -m "not slow"

test-lib: .venv/test
	$(PYTEST) -m "not slow" --ignore=tests/project --ignore=tests/recipes --ignore=tests/sources

test-all: .venv/test lint
	$(PYTEST)

# Runs the tests of the compiled code in a copy, built with checks of memory and arithmetic.
sanitize: .venv/test
	rm -rf build/sanitize && mkdir -p build/sanitize
	cp -r torchrl_vmfer tests setup.py pyproject.toml README.md LICENSE build/sanitize
	cd build/sanitize && VMFER_SANITIZE=1 $(CURDIR)/$(BIN)/python setup.py --quiet build_ext --inplace --force
	cd build/sanitize && ASAN_OPTIONS=detect_leaks=0 LD_PRELOAD="$$(cc -print-file-name=libasan.so) $$(cc -print-file-name=libstdc++.so.6)" \
		$(CURDIR)/$(BIN)/python -m pytest -q -p no:cacheprovider -p no:xdist tests/compiled

lint: .venv/test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo 'The documentation is in site/index.html.'

bench: .venv/demo
	$(BIN)/python benchmarks/sampler.py

.venv/demo .venv/docs .venv/test: .venv/%: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed, this is %s: set PYTHON=" % sys.version)'
	@echo 'Installing torchrl_vmfer[$(EXTRAS_$*)] into .venv: a few minutes, mostly for PyTorch.'
	@$(PYTHON) -m venv .venv
	@$(INSTALL) --quiet --editable '.[$(EXTRAS_$*)]'
	@touch $@

clean:
	rm -rf .venv
