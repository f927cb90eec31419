# Two commands on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test lint types unit test-data test-gpu test-doors format clean

demo: $(VENV)/.demo  ## train on the digits that ship with the package, print and draw the result
	$(BIN)/dumlp-pin demo

test: lint types unit  ## everything that must hold before a change lands

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/pyright

unit: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto -m "not data and not gpu and not doors"

test-data: $(VENV)/.dev  ## needs the real data sets under $$DUMLP_PIN_DATA, see docs/data.md
	$(BIN)/python -m pytest -m data

test-gpu: $(VENV)/.dev  ## needs a CUDA device
	$(BIN)/python -m pytest -m gpu

test-doors: $(VENV)/.dev  ## installs the wheel seven times, each with one extra; it takes long
	$(BIN)/python -m pytest -m doors tests/doors

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV)

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# A stamp a set of extras: nothing is installed again until what it depends on changes.
$(VENV)/.demo: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[figures]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@ $(VENV)/.demo
