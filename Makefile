# make demo: set up and run the main job on the embedded models.   make test: set up and run all checks.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-all lint bench clean

$(STAMP): pyproject.toml constraints.txt scripts/install
	scripts/install $(PYTHON) $(VENV)
	touch $@

demo: $(STAMP)
	$(BIN)/paceline demo

test: lint
	$(BIN)/python -m pytest

test-all: lint
	$(BIN)/python -m pytest -m "not gpu"

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) demo-output bench-output
