#!/usr/bin/env bash
# Runs one process of a training run so that whatever started it can start it again: the same command resumes.
#
#   bash launch/resume.sh OUTPUT COMMAND ...
#
# SIGTERM and SIGINT go on to the command, which saves a checkpoint and ends. Exits with 0 once OUTPUT/result.json says
# that the run is complete, with 75 if it was stopped before (start it again), else with the command's own code.
#
#   RESTARTS=0   how often a command that failed is started again here, PAUSE=10 seconds later
set -uo pipefail
output=${1:?usage: resume.sh OUTPUT COMMAND ...}
shift
: "${1:?usage: resume.sh OUTPUT COMMAND ...}"
left=${RESTARTS:-0} asked='' child=''

forward() {
  asked=yes
  [ -z "$child" ] || kill -TERM "$child" 2>/dev/null
}
trap forward TERM INT

finish() {  # wait returns early when a signal comes, and again until the child is gone
  local code
  wait "$child"
  code=$?
  while kill -0 "$child" 2>/dev/null; do
    wait "$child"
    code=$?
  done
  return "$code"
}

while :; do
  "$@" &
  child=$!
  [ -z "$asked" ] || forward # the signal came before the child did
  finish
  code=$?
  if [ "$code" -eq 0 ] && [ -e "$output/result.json" ]; then
    exit 0
  fi
  # Another host that was asked to stop takes the others along: they end well, but before the end.
  if [ -n "$asked" ] || [ "$code" -eq 0 ]; then
    echo "stopped before its end; the same command resumes" >&2
    exit 75
  fi
  [ "$left" -gt 0 ] || exit "$code"
  left=$((left - 1))
  echo "ended with $code; starts again in ${PAUSE:-10} s, $left more times" >&2
  child=''
  sleep "${PAUSE:-10}" &
  wait $!
  [ -z "$asked" ] || exit 75
done
