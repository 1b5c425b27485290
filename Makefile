# The two commands a newcomer needs: `make demo` and `make test`. Both install what they use into .venv.
# `make test-all` also runs the tests marked slow, of more than eight seconds each.
# `make learn DATA=FOLDER` measures the course anew, in hours: every experiment, its pages, verdicts and notebooks.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-all learn format clean

demo: .venv/installed
	$(BIN)/transduct demo

test: .venv/installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow"
	if nvidia-smi > /dev/null 2>&1; then $(BIN)/pytest -m gpu; fi

test-all: test
	$(BIN)/pytest -n 2 --dist worksteal -m slow

learn: .venv/installed-dev
	$(BIN)/transduct learn --all $(if $(DATA),--data $(DATA)) --out docs/learn
	$(BIN)/python -m transduct_course.pages docs
	$(BIN)/python -m course.tests.verdicts

format: .venv/installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# --no-compile: Python compiles what it imports, and compiling all of it here takes a minute more.
.venv/installed: pyproject.toml course/pyproject.toml setup.py $(wildcard transduct/kernels/*.[ch])
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "transduct needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --no-compile --editable . --editable course
	touch $@

.venv/installed-dev: .venv/installed
	$(BIN)/pip install --quiet --no-compile --editable '.[dev]' --editable course
	touch $@

clean:
	rm -rf .venv build *.egg-info course/build course/*.egg-info .pytest_cache .mypy_cache .ruff_cache
