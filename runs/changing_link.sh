#!/usr/bin/env bash
# Train GPT-2 with fixed densities and with budgets on a link that changes, in half an hour:
# docs/explanation/slow-networks.md. Needs root, to emulate hosts. Writes to runs/changing
set -euo pipefail
cd "$(dirname "$0")/.."

fixed=(elect:density={0.001,0.003,0.01,0.03}:lr=0.001)
budgets=(elect:{step-seconds=0.068,budget=3MB/s,budget=3MB/s:step-seconds=0.06}:lr=0.003)
"${PYTHON:-python3}" train/study.py gpt2 --ranks 4 --seeds 1 2 3 --links 1gbit,50mbit --every 30s --target 11 \
    --out runs/changing --ways "${fixed[@]}" "${budgets[@]}" elect:density=0.2:lr=0.003 dense:lr=0.006 \
    -- --tiny --warmup-epochs 1 --batch-size 8 --epochs 20 --clip-norm 1
