# Every target makes .venv and installs what it needs on first use; later calls start at once.
PYTHON ?= python3
BIN := .venv/bin
EXTRAS := demo,data,tensorboard,tasks,export,serve,docs,dev
# Three processes of one thread each keep two processors busy: many tests wait, for a server or a process of their own.
# What Python compiles is kept even where the environment forbids it, or every process that a test starts compiles all anew.
TEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist worksteal

.PHONY: setup demo test test-all mutants fuzz lint format bench docs clean

setup: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	@echo "Making .venv and installing (a few minutes, once) ..."
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$(EXTRAS)]"
	@touch $@

demo: setup
	@PATH="$(CURDIR)/$(BIN):$$PATH" sh examples/demo.sh

lint: setup
	$(BIN)/ruff check -q .
	$(BIN)/ruff format -q --check .
	$(BIN)/basedpyright --level error
	$(BIN)/lint-imports --no-cache > /dev/null || $(BIN)/lint-imports --no-cache

format: setup
	$(BIN)/ruff check -q --fix .
	$(BIN)/ruff format -q .

test: lint
	$(TEST) -m "not slow"

# What measures speed comes last, alone and with all processors.
test-all: lint
	$(TEST)
	$(BIN)/python -m pytest -m slow tests/serving/test_load.py

# Bugs planted one at a time in a copy: which of them no test notices. make mutants ARGS="--only models/"
mutants: setup
	$(BIN)/python -m tests.mutants.run --jobs 2 $(ARGS)

# Hostile files and requests, those that were found before and new ones. make fuzz ARGS="--minutes 2 --seed 7"
fuzz: setup
	$(BIN)/python -m tests.fuzz.run $(ARGS)

bench: setup
	$(BIN)/python bench/forward.py

# The pages as a site, with the reference made from the docstrings; build/site/index.html can be opened as it is.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

clean:
	rm -rf .venv build dist *.egg-info
