#!/usr/bin/env bash
# A training program as a job that goes on after an interruption:  train.sh PROGRAM DATA [options of the program]
#
# DATA is what it trains on unless the options say --data, --task or --tiny. Shortly before the time limit Slurm sends
# USR1: the program writes a checkpoint and ends, the job goes back to the queue and later on from there. A job that is
# requeued by others, say preempted, gets TERM, and the same happens. One whose rank is killed goes back too, up to
# REQUEUES times (3) and if it has written a checkpoint since it started. Its folder stays runs/NAME-ID all the while.
set -euo pipefail
. slurm/env.sh

program=$1 data=$2
shift 2
chosen=' --(tiny|task|data)[ =]'
[[ " $* " =~ $chosen ]] || set -- --data "$data" "$@"
job=${SLURM_JOB_ID:-${PBS_JOBID:-$$}}
out=runs/${SLURM_JOB_NAME:-$program}-${job%%.*}

warned='' step='' began=$(date +%s)
trap 'warned=yes; [ -z "$step" ] || kill -USR1 "$step" || true' USR1
trap : TERM # stay until the program has written its checkpoint
echo "$program: ${LAUNCH[*]}, results in $out, start $((${SLURM_RESTART_COUNT:-0} + 1))"
"${LAUNCH[@]}" python "train/$program.py" --resume --checkpoint-every 500 --out "$out" "$@" &
step=$!
while kill -0 "$step" 2>/dev/null; do wait "$step" || true; done # a signal ends a wait
status=0
wait "$step" || status=$?

# Errors of the program and of its command line are 1 and 2, which a new start would not mend
if [ "$status" -gt 2 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt "${REQUEUES:-3}" ]; then
    [ -z "$(find "$out/checkpoints" -newermt "@$began" -print -quit 2>/dev/null)" ] || warned=yes
fi
if [ -n "$warned" ] && [ "$status" -ne 0 ] && [ -n "${SLURM_JOB_ID:-}" ]; then
    echo "$program: interrupted, back to the queue"
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
