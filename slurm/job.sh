#!/usr/bin/env bash
# Runs one allot process as a Slurm batch job and turns its end into what Slurm shall do next.
#
#   job.sh [--follow FILE] COMMAND [ARGUMENT...]
#
# SIGTERM (scancel, preemption, scontrol requeue)  the process drains; what becomes of the job is Slurm's decision
# SIGUSR1 (the time limit is near)                 the process drains and the job is queued again
# exit status 0                                    the job is done
# exit status 2 or 3 (usage, mismatch)             the job fails: every try would end the same
# other status, or killed by a signal              the job is queued again, at most ALLOT_MAX_RESTARTS (100) times, which
#                                                  count every restart of the job, preemptions too
# FILE has other content than at the start         the process drains and is started anew: the aggregator has moved
set -uo pipefail

follow=
if [ "$1" = --follow ]; then
  follow=$2
  shift 2
fi

child= stopping=false time_is_up=false again=false interrupted=false

stop() {
  interrupted=true
  # Once: Slurm also signals the process itself, and the third signal ends it without draining.
  if ! $stopping && [ -n "$child" ]; then kill -TERM "$child" 2>/dev/null; fi
  stopping=true
}
start_anew() {
  interrupted=true
  if ! $stopping && ! $again; then kill -TERM "$child" 2>/dev/null; fi
  again=true
}
trap stop TERM INT
trap 'time_is_up=true; stop' USR1
trap start_anew USR2

# Sends this shell SIGUSR2 when the file names another place than before. A missing file means that nobody listens yet.
watch_for_move() {
  local before=$1 now
  while sleep 5; do
    now=$(cat "$follow" 2>/dev/null)
    [ -n "$now" ] || continue
    : "${before:=$now}"
    if [ "$now" != "$before" ]; then
      echo "job.sh: $follow named $before and now names $now; starting anew" >&2
      kill -USR2 $$
      return
    fi
  done
}

# Runs the command once, into `status`.
run_once() {
  local watcher=
  again=false
  if [ -n "$follow" ]; then
    watch_for_move "$(cat "$follow" 2>/dev/null)" &
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
  scontrol requeue "$SLURM_JOB_ID"
  exit
}

while true; do
  run_once "$@"
  $again && ! $stopping || break
done

if $time_is_up; then requeue "the time limit is near"; fi
if $stopping || [ "$status" = 0 ]; then exit "$status"; fi
case "$status" in
  2 | 3) exit "$status" ;;
  *) requeue "$1 ended with status $status" ;;
esac
