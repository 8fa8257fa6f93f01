#!/usr/bin/env bash
# The studies of docs/explanation/accuracy.md, defaults against dense training, about two hours on two cores. Records that
# are in the folder are not made again, so that it can be stopped and started. Each study leaves its tables, and gaps.svg:
# the gap to dense over the bytes of the whole run. Images need the package dataset-fashion-mnist.
#   PYTHON=.venv/bin/python runs/accuracy.sh [SEED ..]    writes to runs/accuracy
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
seeds=("$@")
[ $# -gt 0 ] || seeds=(31 32 33 34 35)

study() { "$python" train/study.py "$2" --out "runs/accuracy/$1" --ranks 8 --seeds "${seeds[@]}" "${@:3}"; }

images=(--tiny --data fashion-mnist --epochs 1 --warmup-epochs 0.2 --batch-size 16 --momentum 0.9 --lr 0.05)
ways=(dense elect elect:density=0.005 elect:density=0.0025)
study vgg vgg --shards shuffled sorted:norm=group --ways "${ways[@]}" -- "${images[@]}"
study resnet resnet --ways dense elect -- "${images[@]}"
study lstm lstm --ways dense elect -- --task text --tiny --epochs 9 --batch-size 8 --optimizer adam --lr 3e-3
study vit vit --ways dense elect -- --tiny --epochs 20
for seed in "${seeds[@]}"; do
    file=runs/accuracy/characters-$seed.json
    if [ ! -e "$file" ]; then
        "$python" runs/character_transformer.py --seed "$seed" >"$file.part"
        mv "$file.part" "$file"
    fi
done
