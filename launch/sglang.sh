#!/usr/bin/env bash
# Starts SGLang servers for rollouts. Ends all of them on Ctrl-C.
#
#   bash launch/sglang.sh MODEL PORT [FLAGS ...]         on GPUs: SERVERS servers on PORT, PORT+1, ...
#   bash launch/sglang.sh --install-cpu VENV             a CPU build in an environment of its own (2 minutes, 3 GB)
#   bash launch/sglang.sh --cpu MODEL PORT [FLAGS ...]   one small CPU server on the loopback interface
#
#   VENV=.venv-sglang   environment that holds SGLang
#   SERVERS=1 TP=1      how many servers, and GPUs of each
#   ROUTER_PORT=30000   also starts sglang-router there (pip install sglang-router into VENV)
#   HOST=0.0.0.0        where the GPU servers listen: anybody who reaches them can replace their weights
#
# FLAGS go to sglang.launch_server. Then: launch/train_rl.py --config.rollout.engine=sglang \
#   --config.rollout.sglang.urls=http://HOST:PORT,http://HOST:PORT+1 [--config.rollout.sglang.router=http://HOST:30000]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
version=0.5.23

install_cpu() {  # PyPI's torch may be a CUDA build: set PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu then
  local venv=$1
  [ -f "$venv/.sglang-$version" ] && return
  "${PYTHON:-python3}" -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$here/sglang_cpu/requirements.txt"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps "sglang==$version" torchvision==0.28.0
  touch "$venv/.sglang-$version"
}

serve_cpu() {
  local model=$1 port=$2
  shift 2
  export SGLANG_USE_CPU_ENGINE=1 HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 CUDA_VISIBLE_DEVICES=
  # More threads than idle cores make it ten times slower: they wait for each other by spinning.
  export PYTHONPATH=$here/sglang_cpu OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
  exec "${VENV:-.venv-sglang}/bin/python" "$here/sglang_cpu/serve.py" --model-path "$model" --host 127.0.0.1 \
    --port "$port" --device cpu --attention-backend torch_native --dtype float32 --context-length 1024 \
    --max-total-tokens 8192 --max-running-requests 8 --mem-fraction-static 0.3 --skip-server-warmup "$@"
}

serve() {
  local model=$1 port=$2 servers=${SERVERS:-1} tp=${TP:-1} host=${HOST:-0.0.0.0} urls=() i
  local python=${VENV:-.venv-sglang}/bin/python
  shift 2
  trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT
  for ((i = 0; i < servers; i++)); do
    "$python" -m sglang.launch_server --model-path "$model" --host "$host" --port $((port + i)) --tp-size "$tp" \
      --base-gpu-id $((i * tp)) --mem-fraction-static 0.8 "$@" &
    urls+=("http://127.0.0.1:$((port + i))")
  done
  if [ -n "${ROUTER_PORT:-}" ]; then
    "$python" -m sglang_router.launch_router --worker-urls "${urls[@]}" --host "$host" --port "$ROUTER_PORT" \
      --policy consistent_hashing &
  fi
  wait -n  # one that ends takes the others along: a service manager restarts them together
}

case ${1:-} in
  --install-cpu) install_cpu "${2:?usage: sglang.sh --install-cpu VENV}" ;;
  --cpu) shift && serve_cpu "${1:?usage: sglang.sh --cpu MODEL PORT}" "${2:?usage: sglang.sh --cpu MODEL PORT}" "${@:3}" ;;
  '' | -h | --help) sed -n '2,16s/^# \{0,1\}//p' "$0" ;;
  *) serve "$1" "${2:?usage: sglang.sh MODEL PORT}" "${@:3}" ;;
esac
