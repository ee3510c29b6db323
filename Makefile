# A fresh machine needs Linux, Python 3.11 to 3.13, make and the package index, then `make demo` and
# `make test`. Every target below needs .venv: built once, and again when the pins change.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PINS   := requirements/dev.txt
UV     := uv==0.13.8
WORKERS ?= 3
# A file's tests, or a folder's, go to one worker, longest first (tests/conftest.py). A worker in
# which a test hangs ends (pyproject.toml), and would be given the same test again.
PYTEST := $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadscope --max-worker-restart=0
COLAB  := .venv-colab
COLAB_PINS := requirements/colab.txt
LIBRARIES := .venv-libraries
LIBRARIES_PINS := requirements/libraries.txt
PEERS  := .venv-peers
PEERS_PINS := requirements/peers.txt
KAGGLE := .venv-kaggle
KAGGLE_PINS := requirements/kaggle.txt
# Kaggle has Python 3.12; without one, the Python of .venv: `make KAGGLE_PYTHON=... test-kaggle`.
KAGGLE_PYTHON ?= $(shell python3.12 -c 'import sys; print(sys.executable)' 2>/dev/null || echo $(BIN)/python)
# Errors alone: pip warns of settings that the machine has for others (folders of wheels, root).
PIP    := $(BIN)/python -m pip --disable-pip-version-check install --quiet --quiet

# Tests start processes by the hundred: without bytecode each would compile all of xla_nb again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo chaos test test-all test-colab test-kaggle test-libraries lab bench check format wheel lock clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## */\t/' | expand -t 12

demo: $(STAMP)  ## run notebooks/quickstart.ipynb on 4 simulated ranks and show what they returned
	$(BIN)/python notebooks/run_demo.py

test: $(STAMP)  ## the tests, but for the slow ones, with WORKERS=3
	$(PYTEST) -m "not (slow or chaos)"

test-all: $(STAMP)  ## every test: whole notebooks, and machines of their own that are lost
	$(PYTEST)

test-colab: $(COLAB)/.installed  ## what meets the front end, with Colab's IPython, ipykernel and ipywidgets
	$(COLAB)/bin/python -m pytest -q tests/test_magics.py tests/test_api.py tests/views/panel/test_view.py

# torch 2.8 starts processes when it is imported, to compile in: tests would find them left behind.
test-kaggle: $(KAGGLE)/.installed  ## the core of the tests with Kaggle's torch and torch_xla 2.8, on its Python 3.12 where there is one
	TORCHINDUCTOR_COMPILE_THREADS=1 $(subst $(BIN),$(KAGGLE)/bin,$(PYTEST)) -m "published or not (slow or chaos or browser or ray)" \
	    tests/program tests/pickling tests/messages tests/process_state tests/live_ranks \
	    tests/rank tests/run tests/monitor tests/record tests/topology tests/engines \
	    tests/simulation tests/dropin tests/programs tests/libraries tests/test_api.py \
	    tests/test_live.py tests/test_live_failures.py tests/test_magics.py tests/test_old_names.py \
	    tests/test_variables.py

test-libraries: $(LIBRARIES)/.installed  ## trainings with Lightning, transformers, timm and others, in their newest versions
	$(subst $(BIN),$(LIBRARIES)/bin,$(PYTEST)) tests/libraries \
	    $(addprefix tests/programs/test_programs.py::test_,lightning_tpu transformers_trainer)

chaos: $(STAMP)  ## 200 random kills and 500 launches as tables, 4,000 generated inputs (half an hour)
	$(BIN)/python -m tests.chaos
	$(PYTEST) -m chaos tests/test_anything.py

lab: $(STAMP)  ## JupyterLab on the notebooks
	$(BIN)/jupyter lab --ServerApp.root_dir=notebooks $(if $(filter 0,$(shell id -u)),--allow-root)

bench: $(STAMP) $(PEERS)/.installed  ## xla_nb beside its rivals, measured in one run
	$(BIN)/python -m benchmarks

check: $(STAMP)  ## lint, format and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(STAMP)  ## make `check` happy about format and imports
	$(BIN)/ruff check --fix-only --quiet
	$(BIN)/ruff format

wheel: $(STAMP)  ## build dist/xla_nb-*.whl
	$(BIN)/python -m build --wheel --no-isolation

# Keeps the versions already pinned; `make lock UPGRADE=--upgrade` takes the newest of all.
lock: $(STAMP)  ## write the pins again after a change of requirements/*.in
	@set -e; for pins in $(PINS) $(COLAB_PINS) $(LIBRARIES_PINS) $(KAGGLE_PINS) $(PEERS_PINS); do \
	    $(BIN)/uv pip compile --universal --python-version 3.11 $(UPGRADE) --quiet \
	        --no-annotate --no-emit-index-url --no-emit-find-links \
	        --custom-compile-command 'make lock' --output-file $$pins $${pins%.txt}.in; \
	done

# torch_xla's wheel brings an old torchax in the folder of the real one: the last one written wins.
AGAIN = torchax=`grep '^torchax==' $(PINS)`; \
	$(BIN)/uv pip install --quiet --python $(BIN)/python --reinstall --no-deps $$torchax 2>/dev/null || \
	$(PIP) --force-reinstall --no-deps $$torchax

clean:  ## remove .venv, its siblings and everything built
	rm -rf $(VENV) $(COLAB) $(LIBRARIES) $(KAGGLE) $(PEERS) build dist out .mypy_cache .ruff_cache .pytest_cache

# Both installers take the package index that the machine is set up for. pip takes over when there
# is no uv here, or when it cannot reach the index that pip alone was told of.
# No build isolation: the build tools are pinned like everything else.
$(STAMP): $(PINS) pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || { \
	    echo "xla_nb needs Python 3.11 to 3.13 (torch_xla has no wheel for others), and" \
	         "'$(PYTHON)' is `$(PYTHON) -V 2>&1`. Say: make PYTHON=python3.12 ..." >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { \
	    echo "No virtual environment could be made. On Debian: apt install python3-venv" >&2; \
	    rm -rf $(VENV); exit 1; }
	@uv="$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python"; \
	echo "installing the pinned packages into $(VENV): some 7 GB, torch brings CUDA along"; \
	$(PIP) $(UV) && $$uv -r $(PINS) || $(PIP) -r $(PINS)
	@$(AGAIN)
	@$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

# Each links the packages that .venv has too, so it is soon made and takes little room.
$(COLAB)/.installed: $(COLAB_PINS)
$(LIBRARIES)/.installed: $(LIBRARIES_PINS)
$(KAGGLE)/.installed: $(KAGGLE_PINS)
$(PEERS)/.installed: $(PEERS_PINS)
$(COLAB)/.installed $(LIBRARIES)/.installed $(PEERS)/.installed: OWN_PYTHON := $(BIN)/python
$(KAGGLE)/.installed: OWN_PYTHON := $(KAGGLE_PYTHON)
$(COLAB)/.installed $(LIBRARIES)/.installed $(KAGGLE)/.installed $(PEERS)/.installed: $(STAMP)
	@echo "installing $(filter %.txt,$^) into $(@D), on `$(OWN_PYTHON) -V`"
	@$(BIN)/uv venv --quiet --clear --python $(OWN_PYTHON) $(@D)
	@uv="$(BIN)/uv pip install --quiet --compile-bytecode --python $(@D)/bin/python"; \
	$$uv -r $(filter %.txt,$^) && $$uv --no-deps --no-build-isolation --editable .
	@touch $@
