"""New weights for a real SGLang server: writing a 1 GB checkpoint and loading it there, against copying the file.

    bash launch/sglang.sh --install-cpu .venv-sglang
    python benchmarks/weight_sync.py [--venv=.venv-sglang --megabytes=1000 --repeats=3]

Starts a server of a random checkpoint on this machine's CPU, publishes weights to it as a training step does (pause,
write a folder, load, check, go on) and copies the same bytes from file to file. Both take turns; medians count. Prints
seconds, bytes per second and the ratio.
"""

import asyncio
import pathlib
import shutil
import statistics
import tempfile
import time

import jax
from absl import app, flags
from flax import nnx
from rivals.sglang_cpu import served

from slca_jax.chat.template import Template
from slca_jax.nn.config import TransformerConfig
from slca_jax.nn.transformer import Transformer
from slca_jax.nn.weights import save_hf
from slca_jax.quickstart.tokenizer import make_tokenizer
from slca_jax.quickstart.world import make_task
from slca_jax.rollout.settings import SGLangServers
from slca_jax.rollout.sglang import SGLangSampler
from slca_jax.train.run import hush

_VENV = flags.DEFINE_string('venv', '.venv-sglang', 'Environment that holds SGLang.')
_MEGABYTES = flags.DEFINE_integer('megabytes', 1000, 'Size of the checkpoint.')
_REPEATS = flags.DEFINE_integer('repeats', 3, 'Syncs and copies; the median counts.')

ROOT = pathlib.Path(__file__).resolve().parent.parent
WIDTH, HIDDEN = 1024, 4096
LAYER = 4 * (2 * WIDTH * WIDTH + 2 * WIDTH * WIDTH // 2 + 3 * WIDTH * HIDDEN)  # bytes, in float32


def copy_seconds(model: pathlib.Path, target: pathlib.Path) -> float:
  """How long it takes to copy the checkpoint's tensor files."""
  start = time.perf_counter()
  for file in sorted(model.glob('*.safetensors')):
    shutil.copyfile(file, target / file.name)
  return time.perf_counter() - start


async def measure(url: str, params: nnx.State, config: TransformerConfig, folder: pathlib.Path) -> list[dict]:
  """The numbers of each sync, the copy's seconds beside them."""
  save = lambda tree, path: save_hf(tree, config, path)
  settings = SGLangServers(urls=url, keep=1)
  engine = SGLangSampler(settings, run='benchmark', folder=folder / 'sync', save=save, vocab=config.vocab)
  found = []
  try:
    await engine.publish(params, 0)
    for version in range(1, _REPEATS.value + 1):
      await engine.publish(params, version)
      found.append(engine.numbers() | {'copy': copy_seconds(folder / 'model', folder / 'copy')})
  finally:
    await engine.close()
  return found


def main(_: list[str]) -> None:
  """Makes a checkpoint, starts the server, measures and prints."""
  hush()
  template = Template(make_tokenizer([make_task(0, 'train', index) for index in range(50)]))
  layers = max(1, round(1e6 * _MEGABYTES.value / LAYER))
  sizes = dict(layers=layers, width=WIDTH, hidden=HIDDEN, heads=16, kv_heads=8, head_dim=64, context=1024, qk_norm=True)
  config = TransformerConfig(vocab=template.vocab_size, **sizes)
  params = jax.jit(lambda: nnx.state(Transformer(config, rngs=nnx.Rngs(0)), nnx.Param))()
  with tempfile.TemporaryDirectory(dir=ROOT) as name:
    folder = pathlib.Path(name)
    (folder / 'copy').mkdir()
    save_hf(params, config, folder / 'model', eos=template.stop_ids)
    make_tokenizer([make_task(0, 'train', index) for index in range(50)]).save_pretrained(str(folder / 'model'))
    with served(folder / 'model', pathlib.Path(_VENV.value)) as url:
      found = asyncio.run(measure(url, params, config, folder))
  median = {
    key: statistics.median(numbers[key] for numbers in found)
    for key in ('sync/seconds', 'sync/write_seconds', 'sync/load_seconds', 'copy')
  }
  size = found[0]['sync/bytes']
  for key, label in (
    ('sync/seconds', 'sync'),
    ('sync/write_seconds', '  writing'),
    ('sync/load_seconds', '  loading'),
    ('copy', 'copy'),
  ):
    print(f'{label:10s}{median[key]:8.2f} s {size / median[key] / 1e6:10.0f} MB/s')
  print(f'{size / 1e6:.0f} MB; sync / copy {median["sync/seconds"] / median["copy"]:.2f}')


if __name__ == '__main__':
  app.run(main)
