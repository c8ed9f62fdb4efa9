"""SFT on real rows until it knows them by heart: a policy of the quickstart's size, from random weights.

    python benchmarks/sft_overfit.py [--data=DIR --toolrl=40 --steps=600 --kill]
    python benchmarks/sft_overfit.py --toolrl=1000 --width=192 --layers=3 --steps=2500   # all rows, in a wider policy

DIR holds `toucan_preview/` and `toolrl/`: rows of the data that SLCA-GRPO and ToolRL released. All SFT rows of the
preview and the first `--toolrl` of ToolRL's SFT and RL rows are trained on; a tokenizer is made of them. Prints the
loss on these rows, and of greedy rollouts on the same questions the share that makes exactly the calls shown and the
share of Success@0.9. A policy holds about two bits per parameter, and the bits of the learned text as lzma packs it
stand beside its parameters: with more rows it must be wider. With --kill the run is killed twice with SIGKILL and
resumed, and its weights and metrics are compared with those of an unbroken run of as many steps.
"""

import argparse
import dataclasses
import hashlib
import json
import lzma
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from slca_jax.chat.template import Template
from slca_jax.config import as_dict
from slca_jax.data.formats.read import read
from slca_jax.data.formats.row import dialogue_of, task_of
from slca_jax.data.sft import encode
from slca_jax.data.tasks import write_dialogues
from slca_jax.dialogue import Dialogue, Task
from slca_jax.errors import DataError
from slca_jax.quickstart.start import NETWORK, write_random
from slca_jax.quickstart.tokenizer import CHAT_TEMPLATE, END, PAD, SPECIALS
from slca_jax.rollout.settings import Layout, Limits, LocalEngine
from slca_jax.train import settings as s

LENGTH = 3072


def rows_of(data: pathlib.Path, toolrl: int) -> list[Dialogue]:
  """The demonstrations: those of the preview, and ToolRL's, shown by their gold where a row is a task."""
  paths = {
    data / 'toucan_preview' / 'toucan_toolcall_sft.preview.jsonl': None,
    data / 'toolrl' / 'rlla_sft.json': toolrl,
    data / 'toolrl' / 'test.parquet': toolrl,
  }
  out = []
  for path, limit in paths.items():
    for row in read(path, limit=limit):
      try:
        dialogue = row.dialogue or dialogue_of(row.task)
      except DataError as error:
        print(f'left out: {error}')
        continue
      out.append(dataclasses.replace(dialogue, id=f'{path.stem}/{dialogue.id}'))
  return out


def tokenizer_of(dialogues: list[Dialogue], *, size: int) -> PreTrainedTokenizerFast:
  """A byte-level BPE tokenizer of the dialogues' texts, with the quickstart's chat template."""

  def make():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer

  tokenizer = make()
  alphabet = pre_tokenizers.ByteLevel.alphabet()
  texts = [message.content for d in dialogues for message in d.messages]
  texts += [json.dumps(call.arguments, ensure_ascii=False) for d in dialogues for m in d.messages for call in m.calls]
  texts += [f'{tool.name} {json.dumps(dict(tool.parameters))}' for d in dialogues for tool in d.tools]
  trainer = trainers.BpeTrainer(
    vocab_size=size, special_tokens=list(SPECIALS), initial_alphabet=alphabet, show_progress=False
  )
  tokenizer.train_from_iterator(texts, trainer)
  fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=PAD)
  fast.chat_template = CHAT_TEMPLATE
  return fast


def sft_config(folder: pathlib.Path, output: str, steps: int, *, width: int = NETWORK.width) -> s.SFTConfig:
  """The supervised run: one full row per update, which shows about six dialogues; slower steps for a wider policy."""
  rate = 4e-3 * (NETWORK.width / width) ** 0.5
  data = str(folder / 'dialogues.jsonl')
  return s.SFTConfig(
    output=str(folder / output),
    steps=steps,
    eval_every=200,
    logprob_chunk=256,
    model=s.Model(str(folder / 'start'), dtype='float32', remat='none'),
    mesh=s.MeshShape(1, 1, 1),
    data=s.Demonstrations(data, data),
    batching=Layout((LENGTH,), 1),
    packing=s.Packing(rows=1, window=128),
    optimizer=s.Optimizer(rate, 'cosine', warmup=0.03, hold=0.4, final_fraction=0.02, b2=0.98, weight_decay=0.0),
    checkpoint=s.Checkpointing(every=100),
  )


def grade(folder: pathlib.Path, model: pathlib.Path, dialogues: list[Dialogue]) -> dict[str, float]:
  """Greedy rollouts on the questions, as many turns as each demonstration has: shares of exact calls and of success."""
  from slca_jax.train.evaluate import evaluate

  by_turns: dict[int, list[Task]] = {}
  for dialogue in dialogues:
    task = task_of(dialogue)
    by_turns.setdefault(len(task.gold) + (task.answer is not None), []).append(task)
  exact, success, process = [], [], []
  for turns, tasks in sorted(by_turns.items()):
    limits = Limits(turns, 20, LENGTH, LENGTH, 2048, LENGTH)
    config = s.RLConfig(
      model=s.Model(str(model), dtype='float32', remat='none'),
      mesh=s.MeshShape(1, 1, 1),
      environment=s.EnvironmentSettings(checks=False),
      rollout=s.RolloutSettings(limits=limits, local=LocalEngine(slots=8, context=2 * LENGTH, prefill_chunk=128)),
      batching=Layout((2 * LENGTH,), 1),
    )
    _, trajectories, scores = evaluate(config, tasks)
    for trajectory, score in zip(trajectories, scores, strict=True):
      said = tuple(turn.calls for turn in trajectory.turns if turn.calls)
      exact.append(said == trajectory.task.gold)
      success.append(score.why['success'])
      process.append(score.why['process']['total'])
  return {'exact_calls': np.mean(exact), 'success@0.9': np.mean(success), 'process': np.mean(process)}


RUN = """
import json, pathlib, sys
from slca_jax.config import build
from slca_jax.train.settings import SFTConfig
from slca_jax.train.sft import train
train(build(SFTConfig, json.loads(pathlib.Path(sys.argv[1]).read_text())))
"""


def start(config: s.SFTConfig) -> subprocess.Popen:
  """The run as a process of its own."""
  path = pathlib.Path(config.output).with_suffix('.json')
  path.write_text(json.dumps(as_dict(config)))
  return subprocess.Popen([sys.executable, '-c', RUN, str(path)], stderr=subprocess.DEVNULL)


def killed(folder: pathlib.Path, steps: int, width: int) -> bool:
  """Whether a run that was killed twice ends with the weights of an unbroken one."""
  digests = []
  for output, kills in (('unbroken', ()), ('killed', (steps // 3, 2 * steps // 3))):
    config = dataclasses.replace(
      sft_config(folder, output, steps, width=width), eval_every=0, checkpoint=s.Checkpointing(every=max(1, steps // 7))
    )
    metrics = pathlib.Path(config.output) / 'metrics.jsonl'
    for kill in kills:
      process = start(config)
      while process.poll() is None and not (metrics.exists() and metrics.read_text().count('\n') >= kill):
        time.sleep(0.05)
      process.send_signal(signal.SIGKILL)
      process.wait()
      print(f'  killed after step {metrics.read_text().count(chr(10))}')
    if start(config).wait():
      raise SystemExit(f'the run {output} failed')
    digests.append(
      (
        hashlib.sha256((pathlib.Path(config.output) / 'model' / 'model.safetensors').read_bytes()).hexdigest(),
        metrics.read_text(),
      )
    )
  return digests[0] == digests[1]


def main() -> None:
  """Prepares, trains, grades and prints."""
  root = pathlib.Path(__file__).resolve().parent.parent
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--data', type=pathlib.Path, default=root.parent / 'shared' / 'data')
  parser.add_argument('--output', type=pathlib.Path, default=root / 'runs' / 'sft_overfit')
  parser.add_argument('--toolrl', type=int, default=40, help="rows of each of ToolRL's two files")
  parser.add_argument('--vocab', type=int, default=4096)
  parser.add_argument('--steps', type=int, default=600)
  parser.add_argument('--width', type=int, default=NETWORK.width, help='of the policy; heads have 32')
  parser.add_argument('--layers', type=int, default=NETWORK.layers)
  parser.add_argument('--kill', action='store_true')
  args = parser.parse_args()
  args.output.mkdir(parents=True, exist_ok=True)
  dialogues = rows_of(args.data, args.toolrl)
  tokenizer = tokenizer_of(dialogues, size=args.vocab)
  template = Template(tokenizer)
  examples = [encode(dialogue, template) for dialogue in dialogues]
  fits = [dialogue for dialogue, example in zip(dialogues, examples, strict=True) if example.size <= LENGTH]
  write_dialogues(fits, args.output / 'dialogues.jsonl')
  heads = args.width // NETWORK.head_dim
  shape = {'width': args.width, 'hidden': 3 * args.width, 'heads': heads, 'kv_heads': heads, 'layers': args.layers}
  network = dataclasses.replace(NETWORK, context=2 * LENGTH, **shape)
  parameters = write_random(args.output / 'start', tokenizer, seed=0, network=network)
  sizes = [example.size for example in examples if example.size <= LENGTH]
  learned = sum(int(example.learned.sum()) for example in examples if example.size <= LENGTH)
  print(f'{len(fits)} of {len(dialogues)} dialogues, {sum(sizes)} tokens (longest {max(sizes)}), {learned} learned')
  text = '\n'.join(tokenizer.decode(example.tokens[example.learned]) for example in examples)
  bits = 8 * len(lzma.compress(text.encode(), preset=9))
  print(f'{parameters} parameters; learned text of {bits} bits under lzma', flush=True)
  if args.kill:
    print('weights and metrics of a killed run are equal:', killed(args.output, min(args.steps, 30), args.width))
    return
  from slca_jax.train import sft

  begin = time.perf_counter()
  numbers = sft.train(sft_config(args.output, 'sft', args.steps, width=args.width))
  print(
    f'{numbers["heldout_loss"]:.4f} loss on these rows after {args.steps} steps, {time.perf_counter() - begin:.0f} s'
  )
  for name, value in grade(args.output, args.output / 'sft' / 'model', fits).items():
    print(f'{value:.3f} {name}', flush=True)


if __name__ == '__main__':
  os.environ.setdefault('JAX_PLATFORMS', 'cpu')
  main()
