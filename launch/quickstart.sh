#!/usr/bin/env bash
# From nothing to a report, on a CPU in minutes: sets everything up, trains a small policy with SFT, then with GRPO and
# with SLCA-GRPO, and writes runs/quickstart/report.html. Arguments go on, for example --config.seed=1.
cd "$(dirname "$0")/.."
. launch/setup.sh
prepare_environment quickstart
export JAX_PLATFORMS=${JAX_PLATFORMS:-cpu} HF_HUB_OFFLINE=1
export JAX_COMPILATION_CACHE_DIR=${JAX_COMPILATION_CACHE_DIR:-$PWD/.cache/jax}
export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0.2
exec "$python" launch/quickstart.py --config=configs/quickstart.py "$@"
