# `make demo` needs only Python 3.11 or newer, make and a package registry; `make test` also needs
# PostgreSQL and SoftHSM2, which it installs on Debian.

PYTHON ?= python3
DEMO_FLAGS ?=
PYTEST_FLAGS ?=
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help setup services demo test unit clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## make .venv with pinned packages; does nothing if it is there
	@$(PYTHON) scripts/setup_environment.py

services: ## install what the tests start (PostgreSQL, SoftHSM2); does nothing if it is there
	@scripts/install_services.sh

demo: setup ## the main job, shown and checked (DEMO_FLAGS=--fast: a tiny model)
	$(BIN)/kvcustody demo $(DEMO_FLAGS)

test: setup services ## format, lint, types, all tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest $(PYTEST_FLAGS)

unit: setup ## the quick tests
	$(BIN)/pytest -m unit $(PYTEST_FLAGS)

clean: ## remove what setup, demo and tests made here
	rm -rf .venv demo-run .mypy_cache .ruff_cache .pytest_cache .hypothesis
