#!/usr/bin/env bash
# Run a command that starts MPI jobs without the launcher, as tests do: runs/direct.sh python -m tests.fault_tolerance.chaos
# Open MPI refuses root and more ranks than cores unless told, pins ranks to cores, and looks for network hardware
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe PRTE_MCA_hwloc_default_binding_policy=none
export OMPI_MCA_btl=^ofi OMPI_MCA_mpi_yield_when_idle=1
exec "$@"
