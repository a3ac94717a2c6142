# `make demo` and `make test` work on a fresh clone: each sets up what it needs first.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help setup demo test test-zoo nightly lint format bench results docs clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## make .venv with everything the tests need

$(READY): pyproject.toml constraints.txt scripts/setup.sh
	@bash scripts/setup.sh "$(PYTHON)" "$(VENV)"
	@touch $@

demo: $(READY) ## compress a small CNN, with a report, in half a minute
	@rm -rf runs/demo
	@$(RUN)/rsprune compress recipes/digits.toml --out runs/demo

test: $(READY) ## run all tests
	$(RUN)/python -m pytest -n 2 --dist worksteal --durations 15

test-zoo: $(READY) ## prune every architecture of the zoo, and print a table (about an hour)
	$(RUN)/python benchmarks/zoo.py

nightly: $(READY) ## thousands of random networks instead of hundreds
	RSPRUNE_NIGHTLY=1 $(RUN)/python -m pytest -n 2 tests/property/test_random_cnns.py

lint: $(READY) ## ruff, mypy and the import contract
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/mypy
	$(RUN)/lint-imports

format: $(READY) ## let ruff mend what it can
	$(RUN)/ruff check --fix .
	$(RUN)/ruff format .

bench: $(READY) ## times as ratios to torch.optim.SGD, to Torch-Pruning and to an epoch
	@$(RUN)/python benchmarks/optim_steps.py
	@$(RUN)/python benchmarks/structure.py
	@$(RUN)/python benchmarks/epoch.py
	@$(RUN)/python benchmarks/compress.py

results: $(READY) ## tables of docs/results.md that need no weights (about two hours)
	@$(RUN)/python benchmarks/convex.py
	@$(RUN)/python benchmarks/sparse_training.py
	@$(RUN)/python benchmarks/latency.py
	@$(RUN)/python benchmarks/memory.py
	@$(RUN)/python benchmarks/convolutions.py

docs: $(READY) ## check that the documentation's code runs and its links lead somewhere
	$(RUN)/python -m pytest tests/integration/test_docs.py

clean: ## remove the environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
