# make demo   install, train, evaluate, print the report       make test    install, lint, types, tests
# make checks lint and types only                               make bench   measure the engine on a checkpoint
SHELL := /bin/bash
VENV ?= .venv
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python3.14 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
PY := $(VENV)/bin/python
# Byte code is written when a module is first imported; most of what is installed never is.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(PY) -m pip install --quiet --quiet --disable-pip-version-check --no-compile --constraint constraints.txt
TEST_JOBS ?= 2
PYTEST := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 WANDB_MODE=offline \
	$(PY) -m pytest --numprocesses $(TEST_JOBS) --dist loadfile
RUN_NAME ?= default
OLDEST_TRANSFORMERS := 5.19.0

.PHONY: demo test checks bench test-oldest clean
.DEFAULT_GOAL := demo

demo: $(VENV)/.installed
	$(PY) -m ssd_train +recipe=layerskip run_name=$(RUN_NAME) $(ARGS)

test: checks
	$(PYTEST) $(ARGS)

checks: $(VENV)/.installed-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

# make bench CHECKPOINT=DIR measures decoding on that checkpoint too.
bench: $(VENV)/.installed-dev
	$(PY) scripts/bench.py loss
	$(PY) scripts/bench.py train $(ARGS)
	$(if $(CHECKPOINT),$(PY) scripts/bench.py decode $(CHECKPOINT))

# The lower end of the supported range of transformers; the tested set is the upper end.
test-oldest: $(VENV)/.installed-oldest
	PYTHONPATH=$(CURDIR)/$(VENV)/oldest $(PYTEST) tests/infer $(ARGS)

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; set PYTHON=/path/to/python" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing into $(VENV); one to two minutes the first time."
	$(PIP) --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "Installing the development tools into $(VENV)."
	$(PIP) --editable '.[dev]'
	@touch $@

$(VENV)/.installed-oldest: $(VENV)/.installed-dev
	$(PY) -m pip install --quiet --quiet --disable-pip-version-check --no-deps --upgrade \
		--target $(VENV)/oldest transformers==$(OLDEST_TRANSFORMERS)
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
