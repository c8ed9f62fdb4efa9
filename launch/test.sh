#!/usr/bin/env bash
# Sets everything up and runs the checks: lint, format, types, tests. Arguments go to pytest.
#   bash launch/test.sh [tests/ops -k segment ...]
cd "$(dirname "$0")/.."
. launch/setup.sh
prepare_environment test,quickstart,gguf
export JAX_PLATFORMS=cpu HF_HUB_OFFLINE=1
"$python" -m ruff check .
"$python" -m ruff format --check .
"$python" -m pyright --pythonpath "$python"
"$python" -m pytest -n "${TEST_PROCESSES:-2}" --dist loadfile "$@"
