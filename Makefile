# The project's commands; `make` alone lists them. Each makes the environment first if it is missing.

# What may be set: make reproduce OUT=elsewhere
PYTHON ?= $(shell python3.11 -V >/dev/null 2>&1 && echo python3.11 || echo python3)
OUT ?= out
TORCH_INDEX ?=
PROFILE ?= local
REF ?= HEAD

VENV := .venv
STAMP := $(VENV)/.complete
ifeq ($(origin PY),command line)
READY :=
else
PY := $(VENV)/bin/python
READY := $(STAMP)
endif

# One thread each: the networks are small, and numbers must not depend on the machine's core count.
export OMP_NUM_THREADS := 1

.DEFAULT_GOAL := help
.PHONY: help env reproduce paper slurm-test site site-test publish test check gpu lint same-numbers smoke lab clean

help: ## List these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  OUT=DIR          where a run writes (default: out)"
	@echo "  PYTHON=python3   the interpreter that makes .venv (3.11 or newer; tested: 3.11)"
	@echo "  TORCH_INDEX=URL  package index to take torch from, for example one with CPU-only builds"
	@echo "  PY=python        run in an environment of your own (conda) instead of .venv"

env: $(STAMP) ## Make .venv with the versions of requirements.lock

# The stamp is written last: without it an environment is half made, and starts afresh.
$(STAMP): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { echo >&2 \
	  "make env: needs Python 3.11 or newer, but $(PYTHON) is: $$($(PYTHON) -V 2>&1)." \
	  "Install one and name it: make env PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo >&2 \
	  "make env: $(PYTHON) lacks the modules venv and ensurepip." \
	  "On Debian or Ubuntu install them with: apt-get install python3-venv"; exit 1; }
	@test -e $@ || { echo "Making $(VENV); this takes a few minutes."; $(PYTHON) -m venv --clear $(VENV); }
	@rm -f $@
ifneq ($(TORCH_INDEX),)
	$(VENV)/bin/python -m pip install --index-url '$(TORCH_INDEX)' --no-deps -c requirements.lock torch
endif
	$(VENV)/bin/python -m pip install -c requirements.lock -e '.[study,notebooks,test,workflow,site]'
	@touch $@

reproduce: $(READY) ## Run the six tasks; tables and figures go to out/ (at most 20 minutes on 2 cores)
	$(PY) -m fdn reproduce --out '$(OUT)'

paper: $(READY) ## The whole study, 996 runs, on all cores, or on a cluster with PROFILE=slurm
	$(PY) -m fdn paper --out '$(OUT)' --profile '$(PROFILE)'

publish: $(READY) ## Copy a run's results, figures and notebooks to the tracked places
	$(PY) -m fdn publish --out '$(OUT)'

NOTEBOOKS := $(sort $(wildcard notebooks/*.ipynb))
STRICT := $(filter notebooks/01_% notebooks/02_% notebooks/05_%,$(NOTEBOOKS))
LAX := $(filter-out $(STRICT),$(NOTEBOOKS))
# Two processes, each with whole files in their order: what a file prepares is prepared once.
PYTEST := $(PY) -m pytest -n 2 --dist loadscope --no-loadscope-reorder
NBVAL := $(PYTEST) --nbval-current-env --nbval-cell-timeout 300
NUMERIC := $(filter-out %/test_bench.py %/test_triton.py %/test_cost.py %/test_on_gpu.py,$(wildcard tests/kernels/test_*.py)) tests/models tests/training \
  tests/test_metrics.py tests/timing/test_benchmark.py tests/report/test_tables.py
ANOTHER_PROCESSOR := ATEN_CPU_CAPABILITY=default MKL_CBWR=COMPATIBLE NUMBA_CPU_NAME=generic

test: export TQDM_DISABLE := 1
test: $(READY) ## Run the tests and every notebook (at most 12 minutes on 2 cores)
	@start=$$(date +%s); failed=; \
	$(PYTEST) || failed="$$failed pytest"; \
	test -z "$(STRICT)" || $(NBVAL) --nbval $(STRICT) || failed="$$failed strict-notebooks"; \
	test -z "$(LAX)" || $(NBVAL) --nbval-lax $(LAX) || failed="$$failed notebooks"; \
	echo "make test: $$(( $$(date +%s) - start )) s, $${failed:+failed:}$${failed:-all passed}"; \
	test -z "$$failed"

check: export TQDM_DISABLE := 1
check: $(READY) ## What takes longer: all kernels, another processor, a browser, SLURM (at most 30 minutes)
	@start=$$(date +%s); failed=; \
	$(PYTEST) --dist load -m check || failed="$$failed long-tests"; \
	$(ANOTHER_PROCESSOR) $(PYTEST) $(NUMERIC) || failed="$$failed another-processor"; \
	if command -v chromium > /dev/null; then $(MAKE) site-test || failed="$$failed site"; \
	else echo "make check: left out, for want of chromium: the site in a browser (Debian: apt-get install chromium)"; fi; \
	$(MAKE) slurm-test || failed="$$failed slurm"; \
	echo "make check: $$(( $$(date +%s) - start )) s, $${failed:+failed:}$${failed:-all passed}"; \
	test -z "$$failed"

gpu: $(READY) ## All that takes a GPU: checks, benchmark, a page in data/gpu (at most 8 minutes; continues)
	$(PY) tests/kernels/on_gpu.py

lint: $(READY) ## The linter, the formatter and the types of what users import
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy

same-numbers: $(READY) ## Compare every number with those of the commit REF, bit by bit (default: HEAD), and with the committed ones
	@$(PY) tests/same_numbers.py --ref '$(REF)'

slurm-test: $(READY) ## The workflow on a one-node SLURM (as root on Debian: apt-get install slurm-wlm munge)
	$(PY) -m pytest -q -rs -o addopts= tests/workflow/slurm_checks.py

site: $(READY) ## Write the static site of the committed results to OUT/site
	$(PY) -m fdn site --out '$(OUT)/site'

site-test: site ## Read the site in a browser (Debian: apt-get install chromium)
	SITE='$(OUT)/site' $(PYTEST) --dist load -q -o addopts= tests/report/site_checks.py

smoke: $(READY) ## Walk the whole path with few epochs (under 2 minutes)
	$(PY) -m fdn smoke

lab: $(READY) ## Open JupyterLab
	$(PY) -m jupyterlab

clean: ## Remove .venv and caches; results in out/ stay
	rm -rf $(VENV) build .pytest_cache *.egg-info
	find fdn_kernels lib notebooks tests -name __pycache__ -o -name .ipynb_checkpoints | xargs rm -rf
