#!/usr/bin/env bash
# Trains on the GPUs of this host, all in one process; starts again where it failed. The same command resumes.
#
#   bash launch/gpu.sh OUTPUT launch/train_rl.py --config=configs/rl.py:slca --config.model.path=MODEL ...
#
#   GPUS=0,1,2,3      which of them; all unless given. Name the mesh with --config.mesh.fsdp and --config.mesh.tensor
#   PYTHON=python     interpreter with the project's extra gpu: pip install -e '.[gpu]'
#   RESTARTS=3        how often a run that failed is started again
cd "$(dirname "$0")/.." || exit
output=${1:?usage: gpu.sh OUTPUT PROGRAM ARGUMENTS ...}
program=${2:?usage: gpu.sh OUTPUT PROGRAM ARGUMENTS ...}
[ -z "${GPUS:-}" ] || export CUDA_VISIBLE_DEVICES=$GPUS
# The default leaves a quarter of the memory to others.
export XLA_PYTHON_CLIENT_MEM_FRACTION=${XLA_PYTHON_CLIENT_MEM_FRACTION:-0.92}
export JAX_COMPILATION_CACHE_DIR=${JAX_COMPILATION_CACHE_DIR:-$PWD/.cache/jax} RESTARTS=${RESTARTS:-3}
exec bash launch/resume.sh "$output" "${PYTHON:-python}" "$program" "${@:3}" "--config.output=$output"
