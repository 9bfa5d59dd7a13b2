# `make` or `make help` lists the targets. VENV is where the tools are: `make check VENV=/path/to/venv`.
VENV ?= .venv
PYTHON := $(VENV)/bin/python

.DEFAULT_GOAL := help
.PHONY: help install check format lint type test slow pythons golden cluster lock bench bench-check bench-keep \
  queue queue-stop queue-status quickstart

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

install: ## Make the virtual environment with everything for development
	python3 -m venv $(VENV)
	$(VENV)/bin/pip install -e '.[dev]'

check: lint type test ## What every commit must pass

format: ## Write every file in the house's format, and mend what ruff can mend
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

lint: ## The format and the rules of ruff, without changing a file
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .

type: ## The types, with mypy
	$(VENV)/bin/mypy

test: ## The ordinary tests
	$(PYTHON) -m pytest

slow: ## The slow tests (real data at full size; needs $$HFLRAY_DATA)
	$(PYTHON) -m pytest -m slow

pythons: ## A short suite on every promised Python that this machine has (the first time it downloads their packages)
	@.ci/pythons

golden: ## Hashes and bills of this tree against those of commit 6c93c38, bit for bit
	$(PYTHON) -m pytest tests/test_golden.py -m 'slow or not slow'

bench: ## All benchmarks, as ratios measured side by side; the queue stands still meanwhile (BENCH='--only scale')
	@$(PYTHON) -m hflray.tune.queue paused -- $(PYTHON) -m tests.benchmarks $(BENCH)

bench-check: ## What that run found slower by more than 10 % than tests/benchmarks/results/ has it for this type of CPU
	@$(PYTHON) -m tests.benchmarks check $(BENCH)

bench-keep: ## Make that run the one of this type of CPU in tests/benchmarks/results/
	@$(PYTHON) -m tests.benchmarks keep $(BENCH)

queue: ## Start or go on with the long runs of tune_configs/queue/, in the background (QUEUE='--cpus 2')
	@$(PYTHON) -m hflray.tune.queue start $(QUEUE)

queue-stop: ## End them; running rounds are finished and saved first
	@$(PYTHON) -m hflray.tune.queue stop

queue-status: ## How far each is, how fast, how long it will take
	@$(PYTHON) -m hflray.tune.queue status

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
