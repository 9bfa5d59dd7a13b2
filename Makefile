# `make` or `make help` lists the targets. VENV is the virtual environment with the tools: `make check VENV=/path/to/venv`.
VENV ?= .venv
PYTHON := $(VENV)/bin/python

.DEFAULT_GOAL := help
.PHONY: $(shell sed -n 's/^\([a-z-]*\):.*## .*/\1/p' $(MAKEFILE_LIST))

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

install: ## Make the virtual environment with everything for development
	python3 -m venv $(VENV)
	$(VENV)/bin/pip install -e '.[dev]'

check: lint type docs test ## Run the checks that every commit must pass

format: ## Format every file and apply the fixes of ruff
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

lint: ## Check the format, the rules of ruff, what imports what, and the container file, without changing a file
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/lint-imports
	$(VENV)/bin/hadolint cluster/Dockerfile

type: ## Check the types with mypy
	$(VENV)/bin/mypy

test: ## Run the ordinary tests
	$(PYTHON) -m pytest

slow: ## Run the slow tests (real data at full size; needs $$HFLRAY_DATA)
	$(PYTHON) -m pytest -m slow

docs: ## Build the documentation in build/docs, without a network; a warning is an error
	$(PYTHON) -m sphinx --fail-on-warning --keep-going --quiet docs build/docs
	@echo "build/docs/index.html"

schema: ## Write the JSON Schema of sweep files, which editors read, again
	@PYTHONPATH=. $(PYTHON) docs/_ext/schema.py > tune_configs/sweep.schema.json.new
	@mv tune_configs/sweep.schema.json.new tune_configs/sweep.schema.json

reference: ## Write the parts of the documentation that are made from the code again
	@PYTHONPATH=. $(PYTHON) docs/_ext/pages.py

blocks: ## Run each block of the README and the tutorial in a new virtual environment, and say how long each takes
	$(PYTHON) -m tests.blocks $(BLOCKS)

pythons: ## Run a short suite on every promised Python of this machine (the first run downloads their packages)
	@.ci/pythons

golden: ## Compare this tree with early commits: hashes to the bit, bills to 1e-12
	$(PYTHON) -m pytest tests/test_golden.py -m 'slow or not slow'

bench: ## Run all benchmarks, as ratios measured side by side (BENCH='--only scale')
	-@$(PYTHON) -m tests.benchmarks peers
	@$(PYTHON) -m tests.benchmarks $(BENCH)

bench-check: ## List what that run measured as over 10 % slower than tests/benchmarks/results/ has for this type of CPU
	@$(PYTHON) -m tests.benchmarks check $(BENCH)

bench-keep: ## Save that run in tests/benchmarks/results/ as the one of this type of CPU
	@$(PYTHON) -m tests.benchmarks keep $(BENCH)

mutants: ## Change one token of a core module at a time, and count the changes that its tests notice (MUTANTS='--limit 20')
	$(PYTHON) -m pip install -q -e '.[mutants]'
	@$(PYTHON) -m pytest -q tests/mutants -m mutants
	@$(PYTHON) -m tests.mutants $(MUTANTS)

cluster: ## Run the tests of cluster/ on several Ray nodes; as root also `ray up` over network namespaces
	$(PYTHON) -m pip install -q -e '.[cluster-test]'
	$(PYTHON) -m pytest -m cluster

lock: ## Write cluster/requirements.lock again (pins stay if they can; UPGRADE=--upgrade takes the newest)
	$(PYTHON) -m pip install -q uv
	$(VENV)/bin/uv pip compile pyproject.toml --extra search --extra cluster --python-version 3.11 \
	  --python-platform x86_64-manylinux_2_28 --generate-hashes $(UPGRADE) -q \
	  --custom-compile-command 'make lock' -o cluster/requirements.lock

chaos: ## Break small sweeps at random moments until 100 kills, and compare them with an unbroken run (CHAOS='--kills 20')
	$(PYTHON) -m tests.chaos $(CHAOS)

release: ## Build the sdist and the wheel, check them, and use each in a new environment (RELEASE=--quick: no installation)
	$(PYTHON) -m pip install -q -e '.[release]'
	@$(PYTHON) -m tests.release $(RELEASE)

quickstart: ## Run the README's first command after the install
	$(PYTHON) -m hflray.tune
