# All that depends on the cluster, in one place: every job reads it. Change it here, or export a variable before sbatch:
#     CLUSTER_MPI=pmi2 CLUSTER_MODULES="gcc mpich" sbatch slurm/vgg.sbatch
# shellcheck shell=bash
#
#                     Open MPI (default)    MPICH             Cray MPICH under Slurm
#   CLUSTER_MODULES   "gcc openmpi"         "gcc mpich"       "PrgEnv-gnu cudatoolkit craype-accel-nvidia80"
#   CLUSTER_MPI       pmix                  pmi2              cray_shasta
#
# docs/cluster.md explains them, how to build mpi4py against the cluster's MPI, and systems without Slurm.

: "${CLUSTER_MODULES=}"       # what to `module load`, separated by spaces
: "${CLUSTER_MPI=pmix}"       # how srun and the MPI library find each other; `srun --mpi=list` shows what there is
: "${CLUSTER_GPUS_PER_RANK=}" # 1 binds a GPU to each rank; empty shows each rank all of its node
: "${CLUSTER_LAUNCH=}"        # another launcher and its options than srun, say "mpiexec -n 16 --ppn 4"
# What `make setup` has made, MPI=system before the wheel; anything else with bin/python; empty takes python from the path
: "${CLUSTER_VENV=$(for folder in .venv-system .venv; do [ ! -d "$folder" ] || { echo "$folder"; break; }; done)}"

# Whether MPI takes device pointers. Unset, Open MPI, MPICH and others are asked, which `python -m sparse_mpi doctor`
# shows. 1 is for an MPI that takes them but does not say so, 0 sends everything through host memory.
#export SPARSE_MPI_CUDA_AWARE=1
# Cray MPICH passes device pointers only with this, and only in a process linked to its GPU library
#export MPICH_GPU_SUPPORT_ENABLED=1
# Open MPI on InfiniBand: UCX, on the adapter of that name
#export OMPI_MCA_pml=ucx UCX_NET_DEVICES=mlx5_0:1

if [ -n "$CLUSTER_MODULES" ]; then
    set +u # module systems read variables that are not set
    command -v module >/dev/null || . /etc/profile
    # shellcheck disable=SC2086
    module load $CLUSTER_MODULES
    set -u
fi
if [ -n "$CLUSTER_VENV" ]; then
    [ -x "$CLUSTER_VENV/bin/python" ] || { echo "CLUSTER_VENV: no bin/python in $CLUSTER_VENV; make setup" >&2; exit 1; }
    PATH=$(cd "$CLUSTER_VENV" && pwd)/bin:$PATH
fi
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} # this checkout, installed or not
export PYTHONUNBUFFERED=1

# A rank has all CPUs of its share of the node. srun does not take them over from sbatch, and binds a rank to one.
: "${SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-$((${SLURM_CPUS_ON_NODE:-1} / ${SLURM_NTASKS_PER_NODE:-1}))}}"
: "${OMP_NUM_THREADS=$SRUN_CPUS_PER_TASK}"
export SRUN_CPUS_PER_TASK OMP_NUM_THREADS

if [ -n "$CLUSTER_LAUNCH" ]; then
    read -ra LAUNCH <<<"$CLUSTER_LAUNCH"
else
    LAUNCH=(srun --mpi="$CLUSTER_MPI" --kill-on-bad-exit=1)
    [ -z "$CLUSTER_GPUS_PER_RANK" ] || LAUNCH+=(--gpus-per-task="$CLUSTER_GPUS_PER_RANK" --gpu-bind=closest)
fi
