#!/usr/bin/env bash
# The sweep behind the scaling figures: a step of every algorithm, alone and in training, on more and more ranks.
set -euo pipefail

usage='usage: slurm/scaling.sh [--ranks "4 8 16 32"] [--densities 0.01] [--algorithms "dense oktopk ..."] [--per-node 1]
                        [--out DIR] [--dry-run] [-- options of sbatch]

Submits slurm/bench.sbatch and slurm/pace.sbatch with VGG-16 for each number of ranks and density, and says how to draw their
records. --algorithms are all there are unless given, --dry-run only prints the jobs. Example:
    slurm/scaling.sh --ranks "8 16" --per-node 4 -- --account=me'
fail() { echo "error: $*; slurm/scaling.sh --help explains all options" >&2; exit 2; }

ranks="4 8 16 32" densities=0.01 algorithms='' per_node=1 out=runs/scaling-$(date +%Y%m%d-%H%M%S) print=''
while [ $# -gt 0 ]; do
    case $1 in
        --help) echo "$usage"; exit ;;
        --dry-run) print="echo"; shift; continue ;;
        --) shift; break ;;
        --ranks | --densities | --algorithms | --per-node | --out) [ -n "${2:-}" ] || fail "$1 needs a value" ;;
        *) fail "unknown option $1" ;;
    esac
    case $1 in
        --ranks) ranks=$2 ;;
        --densities) densities=$2 ;;
        --algorithms) algorithms=$2 ;;
        --per-node) per_node=$2 ;;
        --out) out=$2 ;;
    esac
    shift 2
done
for number in $ranks $per_node; do
    [[ $number =~ ^[1-9][0-9]*$ ]] || fail "--ranks and --per-node must be integers >= 1, got $number"
done

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# In a shell of its own: what suits this machine must not go with the jobs
all='import sparse_mpi; print(*sparse_mpi.ALGORITHMS)'
[ -n "$algorithms" ] || algorithms=$(. slurm/env.sh && python -c "$all")
read -ra names <<<"$algorithms"
[ -n "$print" ] || mkdir -p "$out"
for count in $ranks; do
    share=$((count < per_node ? count : per_node))
    export CLUSTER_RANKS_PER_NODE=$share # also where the options of sbatch ask for more GPUs
    shape=(--nodes=$(((count + share - 1) / share)) --ntasks="$count" --ntasks-per-node="$share")
    for density in $densities; do
        record=p$count-d$density.json
        $print sbatch "${shape[@]}" "$@" slurm/bench.sbatch \
            --density "$density" --json "$out/step-$record" --algorithms "${names[@]}"
        $print sbatch "${shape[@]}" "$@" slurm/pace.sbatch vgg \
            --json "$out/training-$record" --ways "${names[@]}" -- --density "$density"
    done
done
echo "When they are done: python slurm/plot_scaling.py $out"
