# Everything from a bare Python >= 3.11: `make demo`, `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin

.PHONY: help demo test lint format clean

help:
	@echo "make demo    install into $(VENV) and run the main job on this machine, without a GPU"
	@echo "make test    install and run the tests"
	@echo "make lint    ruff, the type checker, and the linters of workflows"
	@echo "make format  put the code into shape"

$(VENV)/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 11) else f"Python {v[0]}.{v[1]} found, 3.11 or newer needed: make PYTHON=python3.12")'
	@$(PYTHON) -m venv $(VENV) || { echo "no venv module: on Debian, apt install python3-venv"; exit 1; }
	@echo "installing torch, triton and the rest into $(VENV): some minutes, some gigabytes"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

# Of each kernel and dtype six cases, 4 that are the same each time and 2 fresh, in one input profile:
# by the interpreter a row is a program, and those of all profiles take twice as long.
demo: $(VENV)/installed
	$(BIN)/tolcal ci --device cpu --profile default --gate 4 --cases 2 --out out

test: $(VENV)/installed
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/zizmor --quiet --offline --no-progress --strict-collection --persona=auditor .github action.yml
	$(BIN)/actionlint

format: $(VENV)/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) out build dist
