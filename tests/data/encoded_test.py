"""Demonstrations as ids on disk: what is read is what was encoded, once, and only of the same data."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from slca_jax.chat.template import Template
from slca_jax.data import encoded
from slca_jax.data.encoded import Encoded, encode_to, key_of
from slca_jax.data.sft import Example, encode
from slca_jax.data.tasks import stream_dialogues, write_dialogues
from slca_jax.dialogue import Dialogue, Message
from slca_jax.errors import DataError
from slca_jax.quickstart.tokenizer import make_tokenizer
from slca_jax.quickstart.world import make_task


def example(number):
  """Left out now and then; of sizes from 2 on, with marks."""
  if number % 5 == 3:
    return None
  rest = np.arange(number % 7 + 1, dtype=np.int32) + 10 * number
  return Example(np.full(number % 3 + 1, number, np.int32), rest, rest % 2 == 0)


def dialogues(count):
  return [Dialogue(str(number), (), (Message('user', 'q'),)) for number in range(count)]


def of(dialogue):
  return example(int(dialogue.id))


def check(folder, count):
  found = Encoded(folder)
  assert len(found) == count
  assert found.sizes.tolist() == [one.size if one else 0 for one in map(example, range(count))]
  for number in range(count):
    one, wanted = found[number], example(number)
    assert (one is None) == (wanted is None)
    for part in ('prompt', 'tokens', 'learned') if wanted else ():
      got, expected = getattr(one, part), getattr(wanted, part)
      np.testing.assert_array_equal(got, expected)
      assert got.dtype == expected.dtype


@pytest.mark.parametrize('together', [1, 20, 1 << 16])
def test_examples_come_back_by_index(tmp_path, monkeypatch, together):
  monkeypatch.setattr(encoded, '_TOGETHER', together)
  encode_to(tmp_path, dialogues(23), of, key='k')
  check(tmp_path, 23)
  assert [one and one.size for one in Encoded(tmp_path)[2:5]] == [example(2).size, None, example(4).size]
  with pytest.raises(IndexError):
    Encoded(tmp_path)[23]


def test_what_is_encoded_is_not_encoded_again_and_what_is_stale_is(tmp_path):
  encode_to(tmp_path, dialogues(9), of, key='k')
  encode_to(tmp_path, dialogues(9), pytest.fail, key='k')
  check(tmp_path, 9)
  encode_to(tmp_path, dialogues(4), of, key='other')
  check(tmp_path, 4)


KILLED = """
import os, pathlib, signal, sys
sys.path.insert(0, sys.argv[2])
import encoded_test
from slca_jax.data import encoded, store
encoded._TOGETHER = 20
left = [int(sys.argv[3])]
kept = store.write_json
def write(*arguments):
  left[0] -= 1
  if left[0] < 0:
    os.kill(os.getpid(), signal.SIGKILL)
  kept(*arguments)
store.write_json = write
encoded.encode_to(pathlib.Path(sys.argv[1]), encoded_test.dialogues(60), encoded_test.of, key='k')
"""


@pytest.mark.parametrize('writes', [3, 6, 7])  # two make the stores; then counts of ids and of places, in turn
def test_a_killed_encoding_goes_on_where_it_was(tmp_path, writes):
  here = os.path.dirname(__file__)
  done = subprocess.run([sys.executable, '-c', KILLED, tmp_path, here, str(writes)], check=False)
  assert done.returncode == -signal.SIGKILL
  before = len(Encoded(tmp_path))
  assert before < 60
  asked = []
  encode_to(tmp_path, dialogues(60), lambda one: asked.append(int(one.id)) or of(one), key='k')
  assert asked == list(range(before, 60))
  check(tmp_path, 60)


def test_the_key_follows_the_file_the_template_and_the_settings(tmp_path):
  tokenizer = make_tokenizer([make_task(0, 'train', index) for index in range(5)])
  template, plain = Template(tokenizer), "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}"
  plain += "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
  other = Template(tokenizer, options={'chat_template': plain})
  assert template.digest == Template(tokenizer).digest != other.digest
  (tmp_path / 'a').write_text('x')
  (tmp_path / 'b').write_text('y')
  keys = [key_of(str(tmp_path / name), *rest) for name in 'ab' for rest in ((1,), (2,), ('1',))]
  assert len(set(keys)) == 6 and keys[0] == key_of(str(tmp_path / 'a'), 1)


def test_dialogues_stream_and_encode_as_in_memory(tmp_path):
  tokenizer = make_tokenizer([make_task(0, 'train', index) for index in range(5)])
  template = Template(tokenizer)
  talks = [Dialogue(str(i), (), (Message('user', 'find ' * i), Message('assistant', f'It is {i}.'))) for i in range(6)]
  write_dialogues(talks, tmp_path / 'd.jsonl')
  encode_to(tmp_path / 'ids', stream_dialogues(tmp_path / 'd.jsonl'), lambda one: encode(one, template), key='k')
  for one, talk in zip(Encoded(tmp_path / 'ids'), talks, strict=True):
    assert one.prompt.tolist() == encode(talk, template).prompt.tolist()
    assert one.tokens.tolist() == encode(talk, template).tokens.tolist()
  write_dialogues([talks[0], talks[0]], tmp_path / 'twice.jsonl')
  with pytest.raises(DataError, match='already stands on line 1'):
    list(stream_dialogues(tmp_path / 'twice.jsonl'))
