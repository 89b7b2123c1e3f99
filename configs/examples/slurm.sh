#!/usr/bin/env bash
# Workers of a run as an array of Slurm, preempted and requeued as often as the cluster likes.
#
#   dipaco begin CONFIG --run s3://bucket/run --database env:DIPACO_DATABASE   # once
#   RUN=s3://bucket/run sbatch --array=0-63 slurm.sh                           # 64 workers
#   scancel --batch --signal=TERM JOB_INDEX                                    # one drains, and is requeued
#   dipaco drain --run s3://bucket/run                                         # all drain, until `resume`
#
# The environment in which `sbatch` is called goes with the jobs (that is Slurm's default): the virtual
# environment with `dipaco` in it, DIPACO_DATABASE, the bucket's credentials. Beside it, what the cluster
# asks for: --partition, --account, --time, --gpus-per-task=1 --cpus-per-task=8.
#
# A worker that is told to leave (preempted, a minute before the end of --time) saves its phase part-way
# within seconds, and its job is requeued: the next life of it, or another worker, goes on from that step.
# One that is killed without a word is requeued by Slurm too, and its task is free when its lease ends.
# After `scancel JOB` it does not come back; after `dipaco drain` or `upgrade` it does.
#SBATCH --job-name=dipaco
#SBATCH --array=0-15
#SBATCH --ntasks=1
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=dipaco-%A_%a.log
#SBATCH --signal=B:TERM@60
set -u

# Every life has a name of its own: where a node has died, no worker waits for the last one's silence.
name="slurm-${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}-${SLURM_ARRAY_TASK_ID:-0}-${SLURM_RESTART_COUNT:-0}"

is_told_to_leave= worker=
trap 'is_told_to_leave=yes; [ -z "$worker" ] || kill -TERM "$worker"' TERM
dipaco worker --run "$RUN" --name "$name" &
worker=$!
[ -z "$is_told_to_leave" ] || kill -TERM "$worker"

# A signal interrupts `wait`: ask again until the worker is gone.
while :; do
  wait "$worker"
  code=$?
  kill -0 "$worker" 2>/dev/null || break
done

# 4: a fault of this machine, or a database or bucket that was away for long; others may go on.
# 6: the run was drained, or is of another version.
# A job that is not running any more was preempted, and Slurm requeues it, or cancelled.
if [ -n "$is_told_to_leave" ] || [ "$code" = 4 ] || [ "$code" = 6 ]; then
  if [ "$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T)" = RUNNING ]; then
    scontrol requeue "$SLURM_JOB_ID" && exit 0
  fi
fi
exit "$code"
