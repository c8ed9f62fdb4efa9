"""The step in plain PyTorch + transformers, for `benchmarks/train_step.py`: only responses have logits."""

import json
import pathlib
import resource
import sys
import time

import numpy as np
import torch
from transformers import AutoModelForCausalLM


def load(folder: pathlib.Path) -> torch.nn.Module:
  return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation='sdpa')


def logps(model: torch.nn.Module, tokens_RS: torch.Tensor, T: int) -> torch.Tensor:
  logits_RTV = model(tokens_RS, logits_to_keep=T + 1, use_cache=False).logits[:, :-1]
  return logits_RTV.gather(-1, tokens_RS[:, -T:, None])[..., 0] - logits_RTV.logsumexp(-1)


def main(folder: pathlib.Path, repeats: int) -> None:
  case = {name: torch.from_numpy(array) for name, array in np.load(folder / 'batch.npz').items()}
  response_RT, sampled_RT = case['response_RT'].long(), case['sampled_RT'].float()
  prompt_RP = case['prompt_GP'].long().repeat_interleave(len(response_RT) // len(case['prompt_GP']), 0)
  tokens_RS, T = torch.cat([prompt_RP, response_RT], 1), response_RT.shape[1]
  advantage_RT = case['advantage_R'][:, None]
  start = time.perf_counter()
  reference = load(folder / 'reference')
  seconds = []
  for repeat in range(repeats + 1):
    model = load(folder / 'policy')
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.01)
    begun = time.perf_counter()
    with torch.no_grad():
      old_RT, ref_RT = logps(model, tokens_RS, T), logps(reference, tokens_RS, T)
    logp_RT = logps(model, tokens_RS, T)
    ratio_RT = torch.exp(logp_RT - old_RT)
    loss_RT = -torch.minimum(ratio_RT * advantage_RT, ratio_RT.clamp(0.8, 1.2) * advantage_RT)
    gap_RT = ref_RT - logp_RT
    loss_RT = loss_RT + 0.04 * (gap_RT.exp() - gap_RT - 1)
    loss = (loss_RT * sampled_RT).sum() / sampled_RT.sum()
    loss.backward()
    optimizer.step()
    seconds.append(time.perf_counter() - begun)
    if not repeat:
      first = time.perf_counter() - start
  np.savez(folder / 'torch.npz', old_RT=old_RT.numpy(), ref_RT=ref_RT.numpy())
  norm = sum(float(p.grad.square().sum()) for p in model.parameters()) ** 0.5
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
  print(json.dumps({'seconds': seconds[1:], 'first': first, 'peak': peak, 'loss': loss.item(), 'norm': norm}))


if __name__ == '__main__':
  main(pathlib.Path(sys.argv[1]), int(sys.argv[2]))
