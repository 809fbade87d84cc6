# Two commands on a fresh clone: make demo, make test. Each makes .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test bench lint format clean

demo: $(READY)
	$(BIN)/askew demo

test: $(READY)
	$(BIN)/python -m pytest -n 2 $(ARGS)

# one optimizer step against torch's fused Adam and the rivals; ARGS=--help for choices
bench: $(READY)
	$(BIN)/askew bench step $(ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# torch goes in first and pinned, so that nothing pulls another build of it.
$(READY): pyproject.toml setup.py $(wildcard src/askew/native/*.cpp src/askew/native/*.h)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis
