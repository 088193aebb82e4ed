# Everything happens in .venv; each target can be called again and again.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint clean-venv

demo: .venv/.installed
	$(BIN)/fedapp compare fedsaf local --clients 10 --rounds 8 --set local-epochs=3 --set learning-rate=0.05 --set batch-size=50

test: .venv/.dev
	$(BIN)/pytest -n 2 --dist loadfile

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.venv/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "fedapp needs Python 3.11 or newer; try make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

.venv/.dev: .venv/.installed pyproject.toml
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $@

clean-venv:
	rm -rf .venv
