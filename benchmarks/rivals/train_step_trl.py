"""TRL's own step functions, for `benchmarks/train_step.py`: those of its GRPOTrainer, with token-mean loss ('bnpo')."""

import json
import pathlib
import resource
import sys
import tempfile
import time

import numpy as np
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer


def load(folder: pathlib.Path) -> torch.nn.Module:
  return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation='sdpa')


def make_trainer(folder: pathlib.Path, rows: int, size: int, output: str) -> GRPOTrainer:
  settings = GRPOConfig(
    output_dir=output, per_device_train_batch_size=rows, num_generations=size, beta=0.04, epsilon=0.2, loss_type='bnpo',
    use_cpu=True, bf16=False, gradient_checkpointing=False, report_to='none',
  )  # fmt: skip
  trainer = GRPOTrainer(
    model=str(folder / 'policy'),
    reward_funcs=lambda completions, **_: [0.0] * len(completions),
    args=settings,
    train_dataset=Dataset.from_dict({'prompt': ['a'] * rows}),
    processing_class=AutoTokenizer.from_pretrained(folder / 'policy'),
  )
  trainer.current_gradient_accumulation_steps = 1
  trainer.ref_model.load_state_dict(load(folder / 'reference').state_dict())
  return trainer


def main(folder: pathlib.Path, repeats: int, output: str) -> None:
  case = {name: torch.from_numpy(array) for name, array in np.load(folder / 'batch.npz').items()}
  response_RT, sampled_RT = case['response_RT'].long(), case['sampled_RT'].long()
  size = len(response_RT) // len(case['prompt_GP'])
  prompt_RP = case['prompt_GP'].long().repeat_interleave(size, 0)
  tokens_RS, T = torch.cat([prompt_RP, response_RT], 1), response_RT.shape[1]
  start = time.perf_counter()
  trainer = make_trainer(folder, len(response_RT), size, output)
  weights = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
  trainer.model.train()
  seconds = []
  for repeat in range(repeats + 1):
    trainer.model.load_state_dict(weights)
    trainer.model.zero_grad()
    optimizer = torch.optim.AdamW(trainer.model.parameters(), lr=1e-6, weight_decay=0.01)
    begun = time.perf_counter()
    with torch.no_grad():
      old_RT, ref_RT = (
        trainer._get_per_token_logps_and_entropies(model, tokens_RS, torch.ones_like(tokens_RS), T)[0]
        for model in (trainer.model, trainer.ref_model)
      )
    inputs = {
      'prompt_ids': prompt_RP,
      'prompt_mask': torch.ones_like(prompt_RP),
      'completion_ids': response_RT,
      'completion_mask': torch.ones_like(response_RT),
      'tool_mask': sampled_RT,
      'advantages': case['advantage_R'],
      'old_per_token_logps': old_RT,
      'ref_per_token_logps': ref_RT,
    }
    loss = trainer._compute_loss(trainer.model, inputs)
    loss.backward()
    optimizer.step()
    seconds.append(time.perf_counter() - begun)
    if not repeat:
      first = time.perf_counter() - start
  np.savez(folder / 'trl.npz', old_RT=old_RT.numpy(), ref_RT=ref_RT.numpy())
  norm = sum(float(p.grad.square().sum()) for p in trainer.model.parameters()) ** 0.5
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
  print(json.dumps({'seconds': seconds[1:], 'first': first, 'peak': peak, 'loss': loss.item(), 'norm': norm}))


if __name__ == '__main__':
  with tempfile.TemporaryDirectory() as scratch:
    main(pathlib.Path(sys.argv[1]), int(sys.argv[2]), scratch)
