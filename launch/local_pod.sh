#!/usr/bin/env bash
# Runs a command as N processes on this machine that meet on the loopback interface, as N hosts of a pod would.
#
#   bash launch/local_pod.sh N COMMAND ...       for example N=2 with 4 simulated devices each:
#   JAX_PLATFORMS=cpu JAX_NUM_CPU_DEVICES=4 bash launch/local_pod.sh 2 python launch/train_rl.py --config=...
#
# Each gets --coordinator, --processes and --process after its own arguments. SIGTERM and SIGINT go on to all of them.
# Exits with the largest exit code of them.
#
#   PORT=8476   where process 0 listens
set -uo pipefail
count=${1:?usage: local_pod.sh N COMMAND ...}
shift
: "${1:?usage: local_pod.sh N COMMAND ...}"
children=() worst=0

# shellcheck disable=SC2329  # the trap calls it
forward() {
  [ ${#children[@]} -eq 0 ] || kill -TERM "${children[@]}" 2>/dev/null
}
trap forward TERM INT

for ((i = 0; i < count; i++)); do
  "$@" "--coordinator=127.0.0.1:${PORT:-8476}" "--processes=$count" "--process=$i" &
  children+=($!)
done
for child in "${children[@]}"; do
  wait "$child"
  code=$?
  while kill -0 "$child" 2>/dev/null; do # a signal ended the wait, not the child
    wait "$child"
    code=$?
  done
  [ "$code" -le "$worst" ] || worst=$code
done
exit "$worst"
