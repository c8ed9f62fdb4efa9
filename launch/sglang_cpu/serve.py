"""Starts SGLang's server on a CPU; the arguments are those of `python -m sglang.launch_server`.

PyPI's torchvision is built for CUDA. Beside a CPU build of torch its operators do not load, and registering shapes for
them fails when SGLang imports it. With the two operators declared beforehand the import passes; a text model calls
neither. Workers that the server spawns import this file again, so the declaration reaches them too.
"""
# pyright: reportMissingImports=false

import os
import sys

import torch

_VISION = torch.library.Library('torchvision', 'FRAGMENT')
for _name in ('nms', 'qnms'):
  _VISION.define(f'{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor')


def main() -> None:
  """Serves until it is told to end, and takes its workers along."""
  from sglang.launch_server import run_server
  from sglang.srt.server_args import prepare_server_args
  from sglang.srt.utils import kill_process_tree

  try:
    run_server(prepare_server_args(sys.argv[1:]))
  finally:
    kill_process_tree(os.getpid(), include_parent=False)


if __name__ == '__main__':
  main()
