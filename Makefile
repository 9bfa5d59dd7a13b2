# `make` or `make help` lists the targets. VENV is where the tools are: `make check VENV=/path/to/venv`.
VENV ?= .venv
PYTHON := $(VENV)/bin/python

.DEFAULT_GOAL := help
.PHONY: help install check test slow golden cluster lock bench quickstart

help: ## List the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

install: ## Make the virtual environment with everything for development
	python3 -m venv $(VENV)
	$(VENV)/bin/pip install -e '.[dev]'

check: ## What every commit must pass: format, lint, types, tests
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(PYTHON) -m pytest

test: ## The ordinary tests
	$(PYTHON) -m pytest

slow: ## The slow tests (real data at full size; needs $$HFLRAY_DATA)
	$(PYTHON) -m pytest -m slow

golden: ## Hashes and bills of this tree against those of commit 6c93c38, bit for bit
	$(PYTHON) -m pytest tests/test_golden.py -m 'slow or not slow'

bench: ## Speed, as ratios measured side by side
	@for file in tests/benchmarks/[a-z]*.py; do case $$file in */test_*) continue;; esac; \
	  echo "== $$file"; $(PYTHON) $$file || exit 1; done

cluster: ## The tests of cluster/: several Ray nodes; as root also `ray up` over network namespaces
	$(PYTHON) -m pip install -q -e '.[cluster-test]'
	$(PYTHON) -m pytest -m cluster

lock: ## Write cluster/requirements.lock anew (pins stay where they can; UPGRADE=--upgrade for the newest)
	$(PYTHON) -m pip install -q uv
	$(VENV)/bin/uv pip compile pyproject.toml --extra search --extra cluster --python-version 3.11 \
	  --python-platform x86_64-manylinux_2_28 --generate-hashes $(UPGRADE) -q \
	  --custom-compile-command 'make lock' -o cluster/requirements.lock

quickstart: ## The README's first command, after the install
	$(PYTHON) -m hflray.tune
