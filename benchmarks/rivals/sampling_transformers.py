"""`generate` of transformers, for `benchmarks/sampling.py`."""

import json
import pathlib
import sys
import time

import numpy as np
import torch
from transformers import AutoModelForCausalLM


def main(folder: pathlib.Path, batches: list[int], new: int) -> None:
  model = AutoModelForCausalLM.from_pretrained(folder / 'model', dtype=torch.float32).eval()
  model.generation_config.eos_token_id = None
  found = {}
  for batch in batches:
    seconds = []
    for prompt in np.load(folder / 'prompts.npy'):
      ids_BT = torch.tensor(prompt).repeat(batch, 1)
      start = time.perf_counter()
      with torch.inference_mode():
        row_BT = model.generate(
          ids_BT, attention_mask=torch.ones_like(ids_BT), max_new_tokens=new, do_sample=False, pad_token_id=0
        )
      tokens = row_BT[:, len(prompt) :].tolist()
      seconds.append(time.perf_counter() - start)
    found[batch] = {'seconds': seconds[1:], 'tokens': tokens}
  print(json.dumps(found))


if __name__ == '__main__':
  main(pathlib.Path(sys.argv[1]), [int(batch) for batch in sys.argv[2].split(',')], int(sys.argv[3]))
