#!/usr/bin/env bash
# Runs one allot process as a Slurm batch job and turns its end into what Slurm shall do next.
#
#   job.sh [--of-run DIR] COMMAND [ARGUMENT...]
#
# With --of-run the command is a worker's: it gets `--connect ADDRESS` of the aggregator that DIR/endpoint names as soon as
# there is one, is started again when the aggregator moves, and is not started when the run is finished (DIR/schedule.json).
#
# SIGTERM (scancel, preemption, scontrol requeue)  the process drains; what becomes of the job is Slurm's decision
# SIGUSR1 (the time limit is near)                 the process drains and the job is queued again
# exit status 0                                    the job is done
# exit status 2 or 3 (usage, mismatch)             the job fails: every try would end the same
# other status, or killed by a signal              the job is queued again, at most ALLOT_MAX_RESTARTS (100) times, which
#                                                  count every restart of the job, preemptions too
set -uo pipefail

run=''
if [ "$1" = --of-run ]; then
  run=$2
  shift 2
fi

child='' stopping=false time_is_up=false again=false interrupted=false

stop() {
  interrupted=true
  # Once: Slurm also signals the process itself, and the third signal ends it without draining.
  if ! $stopping && [ -n "$child" ]; then kill -TERM "$child" 2>/dev/null; fi
  stopping=true
}
start_anew() {
  interrupted=true
  if ! $stopping && ! $again && [ -n "$child" ]; then kill -TERM "$child" 2>/dev/null; fi
  again=true
}
trap stop TERM INT
trap 'time_is_up=true; stop' USR1
trap start_anew USR2

# Where the run's aggregator listens; nothing while none has announced itself.
endpoint() { cat "$run/endpoint" 2>/dev/null; }

# Sends this shell SIGUSR2 when the worker's aggregator, at address $1, is not the run's any more.
watch_aggregator() {
  local now
  while sleep 5; do
    now=$(endpoint)
    # No file: killed, or about to start again, and the worker waits for it; unless the run is finished.
    [ -n "$now" ] || [ -e "$run/schedule.json" ] || continue
    [ "$now" != "$1" ] || continue
    echo "job.sh: the aggregator was at $1 and is now at ${now:-its end}" >&2
    kill -USR2 $$
    return
  done
}

# Runs the command once, into `status`.
run_once() {
  local watcher='' address=''
  again=false status=0
  if [ -n "$run" ]; then
    until $stopping || { address=$(endpoint) && [ -n "$address" ]; }; do
      if [ -e "$run/schedule.json" ]; then
        echo "job.sh: the run in $run is finished" >&2
        return
      fi
      sleep 1
    done
    if $stopping; then return; fi
    set -- "$@" --connect "$address"
    watch_aggregator "$address" &
    watcher=$!
  fi
  "$@" &
  child=$!
  # A signal that came before there was a process to tell.
  if $stopping; then kill -TERM "$child"; fi
  while true; do
    interrupted=false
    wait "$child"
    status=$?
    # A signal ends `wait`, not the process; waiting again for one that has ended gives its status again.
    $interrupted || break
  done
  if [ -n "$watcher" ]; then kill "$watcher" 2>/dev/null; fi
}

requeue() {
  if [ "${SLURM_RESTART_COUNT:-0}" -ge "${ALLOT_MAX_RESTARTS:-100}" ]; then
    echo "job.sh: not queued again after $SLURM_RESTART_COUNT restarts ($1); ALLOT_MAX_RESTARTS is the limit" >&2
    exit 1
  fi
  echo "job.sh: queueing the job again: $1" >&2
  # Ends this job with a SIGTERM, for which nothing is left to do.
  trap '' TERM
  # SLURM_JOB_ID of an array's last task is the number of the whole array, and would requeue all of it.
  local job=$SLURM_JOB_ID
  if [ -n "${SLURM_ARRAY_JOB_ID:-}" ]; then job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID; fi
  scontrol requeue "$job"
  exit
}

run_once "$@"
while $again && ! $stopping; do run_once "$@"; done

if $time_is_up; then requeue "the time limit is near"; fi
if $stopping || [ "$status" = 0 ]; then exit "$status"; fi
case "$status" in
  2 | 3) exit "$status" ;;
  *) requeue "$1 ended with status $status" ;;
esac
