# make run · make check · make test · make lint · make bench NAME=… — each sets up what it needs on a fresh machine.
#   check   lint, types and the fast tests: about 2 minutes on two cores
#   test    lint, types and all tests, browsers and PostgreSQL included: 10 to 13 minutes
#   PROCESSES=… sets the number of processes in which make test runs the tests
#   TORCH=cpu or TORCH=cuda selects the build of torch for all targets; later commands keep it. Without it, the default
#   of pip's index is used
PYTHON ?= python3
VENV := .venv
TORCH ?= $(or $(patsubst $(VENV)/.torch-%,%,$(firstword $(wildcard $(VENV)/.torch-cpu $(VENV)/.torch-cuda))),default)
TORCH_CUDA ?= cu130
PROCESSES ?= 3
PY := $(VENV)/bin/python
PIP := $(PY) -m pip install --quiet --disable-pip-version-check
# Tests start hundreds of processes. Without bytecode files, each of them compiles the sources again.
unexport PYTHONDONTWRITEBYTECODE
# By file, because tests of a file share servers; in the order of tests/conftest.py, which begins with the long files.
BY_FILE := --dist loadfile --no-loadscope-reorder

TORCH_BUILD_cpu := cpu
TORCH_BUILD_cuda := $(TORCH_CUDA)
TORCH_PINS := $(shell sed -n 's/^\(torch\(audio\)\{0,1\}==[^ ]*\).*/\1/p' requirements.txt)
ifeq ($(filter default cpu cuda,$(TORCH)),)
$(error TORCH=$(TORCH) is unknown. Use TORCH=cpu or TORCH=cuda, or leave it out)
endif

.PHONY: run check test lint style types fast-tests all-tests bench setup setup-dev clean
.DEFAULT_GOAL := run

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Winnow needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Set PYTHON=/path/to/python3.11.")'
	@echo "Creating the virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.torch-default: | $(PY)
	@touch $@

$(VENV)/.torch-cpu $(VENV)/.torch-cuda: requirements.txt | $(PY)
	@if [ "$$(cat $@ 2>/dev/null)" != "$(TORCH_PINS)" ]; then \
	  echo "Installing the $(TORCH) build of $(TORCH_PINS)"; \
	  $(PIP) --force-reinstall --no-deps --index-url https://download.pytorch.org/whl/$(TORCH_BUILD_$(TORCH)) $(TORCH_PINS) \
	    || exit 1; \
	fi
	@rm -f $(VENV)/.torch-cpu $(VENV)/.torch-cuda
	@echo "$(TORCH_PINS)" > $@

$(VENV)/.runtime: requirements.txt $(VENV)/.torch-$(TORCH) | $(PY)
	@echo "Installing the pinned requirements (a few minutes the first time)"
	@$(PIP) -r requirements.txt
	@touch $@

$(VENV)/.development: requirements.txt requirements-dev.txt $(VENV)/.torch-$(TORCH) | $(PY)
	@echo "Installing the pinned requirements and test tools (a few minutes the first time)"
	@$(PIP) -r requirements-dev.txt
	@touch $@ $(VENV)/.runtime

setup: $(VENV)/.runtime
setup-dev: $(VENV)/.development

run: setup
	@exec $(PY) -m app run

lint: style types

style: setup-dev
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .

types: setup-dev
	@$(PY) -m mypy

# Types are checked while the tests run, because mypy without its cache takes half a minute on one core.
check: style
	@$(MAKE) --no-print-directory -j 2 types fast-tests

# Three processes for two cores: in a fresh clone, one compiles numba's loops while another waits for them. The other
# tests often wait for servers and browsers; PROCESSES sets their number of processes.
fast-tests:
	@$(PY) -m pytest -n 3 $(BY_FILE) --ignore tests/browser -m "not slow and not postgres"

# Tests with servers, browsers and killed processes can fail on a busy machine. A test that fails is run once more, and
# the summary lists it in both cases. `python -m pytest` alone does not repeat tests.
test: style
	@$(MAKE) --no-print-directory -j 2 types all-tests

all-tests:
	@$(PY) -m pytest -n $(PROCESSES) $(BY_FILE) --reruns 1

bench: setup-dev
	@$(PY) -m benchmarks.$(NAME)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
