# All that depends on the cluster, in one place: every job reads it. Change it here, or export a variable before sbatch:
#     CLUSTER_MPI=pmi2 CLUSTER_MODULES="gcc mpich" sbatch slurm/vgg.sbatch
# shellcheck shell=bash
#
#                     Open MPI (default)    MPICH             Cray MPICH under Slurm
#   CLUSTER_MODULES   "gcc openmpi"         "gcc mpich"       "PrgEnv-gnu cudatoolkit craype-accel-nvidia80"
#   CLUSTER_MPI       pmix                  pmi2              cray_shasta
#
# docs/guides/cluster.md explains them, how to build mpi4py against the cluster's MPI, and systems without Slurm.

: "${CLUSTER_MODULES=}"       # what to `module load`, separated by spaces
: "${CLUSTER_MPI=pmix}"       # how srun and the MPI library find each other; `srun --mpi=list` shows what there is
: "${CLUSTER_RANKS_PER_NODE=}" # empty: as many as GPUs were asked for on a node, if the job has GPUs and one rank there
: "${CLUSTER_GPUS_PER_RANK=}" # 1 binds a GPU to each rank and hides the others; empty shows each rank all of its node
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

# GPUs that the job asked for on a node, as in --gpus-per-node=a100:4. What --exclusive brings unasked, srun does not
# give to ranks, and of --gres=gpu:4 Slurm does not tell.
node_gpus=${SLURM_GPUS_PER_NODE:-0} job_gpus=${SLURM_GPUS:-0}
node_gpus=${node_gpus##*:} job_gpus=${job_gpus##*:}
[ "$node_gpus" -gt 0 ] || node_gpus=$((job_gpus / ${SLURM_JOB_NUM_NODES:-1}))
# One rank a node is what the jobs say: with GPUs that means one a GPU. Other numbers are the user's.
node_tasks=${SLURM_NTASKS_PER_NODE:-1}
node_ranks=${CLUSTER_RANKS_PER_NODE:-$((node_tasks > 1 || node_gpus == 0 ? node_tasks : node_gpus))}
for number in CLUSTER_RANKS_PER_NODE CLUSTER_GPUS_PER_RANK; do
    [ -z "${!number}" ] || [[ ${!number} =~ ^[1-9][0-9]*$ ]] || {
        echo "$number must be an integer >= 1, got ${!number}; leave it empty for what suits the job" >&2
        exit 1
    }
done

# A rank has all CPUs of its share of the node. srun does not take them over from sbatch, and binds a rank to one.
: "${SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-$((${SLURM_CPUS_ON_NODE:-1} / node_ranks))}}"
[ "$SRUN_CPUS_PER_TASK" -gt 0 ] || SRUN_CPUS_PER_TASK=1 # more ranks than CPUs
: "${OMP_NUM_THREADS=$SRUN_CPUS_PER_TASK}"
export SRUN_CPUS_PER_TASK OMP_NUM_THREADS

if [ -n "$CLUSTER_LAUNCH" ]; then
    read -ra LAUNCH <<<"$CLUSTER_LAUNCH"
else
    LAUNCH=(srun --mpi="$CLUSTER_MPI" --kill-on-bad-exit=1)
    # Elsewhere srun takes the number of ranks from the job.
    [ "$node_ranks" -eq "$node_tasks" ] ||
        LAUNCH+=(--ntasks="$((node_ranks * ${SLURM_JOB_NUM_NODES:-1}))" --ntasks-per-node="$node_ranks")
    # Ranks fill a socket before the next one: GPUs are counted like that too, and the ranks of a node take them in turn.
    [ "$node_gpus" -eq 0 ] || [ -n "${SLURM_DISTRIBUTION:-}" ] || LAUNCH+=(--distribution=block:block)
    # Not --gpu-bind=closest, which shows a rank all GPUs of its socket.
    [ -z "$CLUSTER_GPUS_PER_RANK" ] || LAUNCH+=(--gpu-bind="per_task:$CLUSTER_GPUS_PER_RANK")
fi
