#!/usr/bin/env bash
# A TPU slice from nothing to a training run, with gcloud on this machine. All hosts run the same command.
#
#   bash launch/tpu_pod.sh create                                       the slice
#   bash launch/tpu_pod.sh setup                                        this folder as it is committed, and its packages, on every host
#   bash launch/tpu_pod.sh run OUTPUT launch/train_rl.py --config=...   starts, or resumes, and comes back
#   bash launch/tpu_pod.sh restart OUTPUT launch/train_rl.py --config=...   after a host died or was taken away: makes
#                                        what is gone anew, ends what is left of the run, and resumes
#   bash launch/tpu_pod.sh logs | stop | status | delete
#
# --dry-run as the first argument prints what would run. OUTPUT and the files that the run reads lie where every host
# sees them: a mounted bucket or NFS.
#
#   NAME=slca-jax           of the slice
#   ZONE                    where it is
#   TYPE=v6e-16             accelerator type: v6e-16, v5litepod-16, v5p-32 (TensorCores), ...
#   VERSION=v2-alpha-tpuv6e runtime: v2-alpha-tpuv5-lite, v2-alpha-tpuv5, v2-alpha-tpuv6e
#   SPOT=                   yes for one that is cheaper and may be taken away
#   RESTARTS=20             how often each host starts its process again by itself
set -euo pipefail
cd "$(dirname "$0")/.."

dry=''
if [ "${1:-}" = --dry-run ]; then
  dry=yes
  shift
fi
name=${NAME:-slca-jax} type=${TYPE:-v6e-16} version=${VERSION:-v2-alpha-tpuv6e} folder=slca_jax

usage() {
  sed -n '2,25s/^# \{0,1\}//p' launch/tpu_pod.sh
  exit "$1"
}

case ${1:-} in
  create | setup | run | restart | logs | stop | status | delete) zone=${ZONE:?is not set; it says where the slice is} ;;
  -h | --help) usage 0 ;;
  *) usage 2 ;;
esac

act() { # runs it, or prints it so that it could be pasted
  if [ -n "$dry" ]; then
    printf '%q ' "$@"
    echo
  else
    "$@"
  fi
}

tpu() { # tpu COMMAND ARGUMENTS ...
  act gcloud compute tpus tpu-vm "$1" "$name" --zone="$zone" "${@:2}"
}

on_all() { # on_all SCRIPT
  tpu ssh --worker=all --command="$1"
}

create() {
  local options=(--accelerator-type="$type" --version="$version") # never empty: bash before 4.4 takes that for unset
  [ -z "${SPOT:-}" ] || options+=(--spot)
  tpu create "${options[@]}"
}

setup() {
  local archive
  [ -z "$(git status --short)" ] || printf 'not committed, so not copied:\n%s\n' "$(git status --short)" >&2
  archive=$(mktemp -d)/$folder.tar.gz
  act git archive --format=tar.gz --output="$archive" HEAD
  act gcloud compute tpus tpu-vm scp "$archive" "$name:$folder.tar.gz" --zone="$zone" --worker=all
  on_all "mkdir -p $folder && tar -xzf $folder.tar.gz -C $folder && cd $folder && \
    . launch/setup.sh && prepare_environment tpu"
}

run() {
  local output=${1:?usage: tpu_pod.sh run OUTPUT PROGRAM ARGUMENTS ...} command
  local program=${2:?usage: tpu_pod.sh run OUTPUT PROGRAM ARGUMENTS ...}
  shift 2
  # The compiler's flag is the one launch/plan.py plans with.
  command=$(printf '%q ' env RESTARTS="${RESTARTS:-20}" \
    LIBTPU_INIT_ARGS="--xla_jf_spmd_threshold_for_windowed_einsum_mib=1000000 ${LIBTPU_INIT_ARGS:-}" \
    bash launch/resume.sh "$output" .venv/bin/python "$program" "$@" --coordinator=auto "--config.output=$output")
  on_all "cd $folder && (setsid nohup $command >> run.log 2>&1 < /dev/null & echo \$! > run.pid)"
}

stop() {
  on_all "cd $folder && kill -TERM \$(cat run.pid) && while kill -0 \$(cat run.pid) 2>/dev/null; do sleep 1; done"
}

end_what_is_left() {
  on_all "cd $folder 2>/dev/null && kill -KILL -- -\$(cat run.pid) 2>/dev/null; true"
}

state() {
  gcloud compute tpus tpu-vm describe "$name" --zone="$zone" --format='value(state)'
}

restart() {
  local now=READY
  [ -n "$dry" ] || now=$(state 2>/dev/null || echo GONE)
  case ${STATE:-$now} in
    READY) end_what_is_left ;;
    GONE) create && setup ;;
    *) tpu delete --quiet && create && setup ;;
  esac
  run "$@"
}

case $1 in
  create) create ;;
  setup) setup ;;
  run) run "${@:2}" ;;
  restart) restart "${@:2}" ;;
  logs) on_all "tail -n ${LINES_OF_LOG:-20} $folder/run.log" ;;
  stop) stop ;;
  status) tpu describe ;;
  delete) tpu delete --quiet ;;
esac
