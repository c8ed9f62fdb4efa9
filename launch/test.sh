#!/usr/bin/env bash
# Sets everything up and runs the checks: lint, format, types, tests. Arguments go to pytest.
#   bash launch/test.sh [--sglang] [tests/ops -k segment ...]
# With --sglang a real SGLang server is tested too; it is installed for the CPU into .venv-sglang (3 GB) if it is not there.
cd "$(dirname "$0")/.."
. launch/setup.sh
prepare_environment test,quickstart,gguf
export JAX_PLATFORMS=cpu HF_HUB_OFFLINE=1
if [ "${1:-}" = --sglang ]; then
  shift
  export SLCA_SGLANG_VENV=${SLCA_SGLANG_VENV:-$PWD/.venv-sglang}
  bash launch/sglang.sh --install-cpu "$SLCA_SGLANG_VENV"
fi
"$python" -m ruff check .
"$python" -m ruff format --check .
"$python" -m pyright --pythonpath "$python"
"$python" -m pytest -n "${TEST_PROCESSES:-2}" --dist loadfile "$@"
