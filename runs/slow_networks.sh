#!/usr/bin/env bash
# Train GPT-2 and ResNet-20 in six ways and time them on slow networks, in an hour: docs/explanation/networks.md.
# Needs root, to emulate hosts. PYTHON=.venv/bin/python runs/slow_networks.sh writes to runs/slow
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}

# Gradients of every step, and eight local steps with the plain mean outside
mean=outer-lr=1:outer-momentum=0
sparse=local-steps=8:density=0.2:wire=packed+int4:feedback=leaky:$mean
every=density=0.02:wire=packed+int8
local=("dense:local-steps=8:$mean" "topka:$sparse" "elect:$sparse")
slow=(--seeds 1 2 3 --emulate none 10mbit 100mbit 1gbit)
tiny=(--tiny --warmup-epochs 1 --batch-size 8)

for run in 4:20 8:10; do
    ranks=${run%:*}
    "$python" train/study.py gpt2 --ranks "$ranks" "${slow[@]}" --out "runs/slow/gpt2-p$ranks" \
        --ways dense "elect:$every:lr=0.002" "oktopk:$every:lr=0.002" "${local[@]}" \
        -- "${tiny[@]}" --epochs "${run#*:}" --clip-norm 1 --lr 0.006
done
for ranks in 4 8; do
    "$python" train/study.py resnet --ranks "$ranks" "${slow[@]}" --out "runs/slow/resnet-p$ranks" \
        --ways dense "elect:$every" "oktopk:$every" "${local[@]}" \
        -- "${tiny[@]}" --epochs 12 --optimizer adamw --lr 0.003
done
"$python" -m sparse_mpi bench draw runs/slow/*/race.json --plot runs/slow/losses.svg
