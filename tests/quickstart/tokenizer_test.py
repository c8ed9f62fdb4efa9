"""The quickstart's tokenizer: loses nothing, keeps names and numbers whole, renders in Qwen style."""

import pytest
from transformers import AutoTokenizer

from slca_jax.quickstart.demonstrations import demonstrate
from slca_jax.quickstart.tokenizer import make_tokenizer
from slca_jax.quickstart.world import COMPANIES, CURRENCIES, TICKERS, TOOLS, VALUES, make_task


def plain(messages):
  return [
    {
      'role': message.role,
      'content': message.content,
      'tool_calls': [
        {'type': 'function', 'function': {'name': call.name, 'arguments': dict(call.arguments)}}
        for call in message.calls
      ],
    }
    for message in messages
  ]


def schemas(tools=TOOLS):
  return [
    {'type': 'function', 'function': {'name': t.name, 'description': t.description, 'parameters': dict(t.parameters)}}
    for t in tools
  ]


def tasks():
  return [make_task(0, 'train', index) for index in range(600)]


@pytest.fixture(scope='module')
def tokenizer():
  return make_tokenizer(tasks())


def rendered(tokenizer, messages, **options):
  return tokenizer.apply_chat_template(plain(messages), tools=schemas(), tokenize=False, **options)


def test_every_dialogue_comes_back_from_its_ids(tokenizer):
  for split in ('train', 'heldout'):
    for index in range(200):
      text = rendered(tokenizer, demonstrate(make_task(9, split, index)))
      assert tokenizer.decode(tokenizer(text)['input_ids']) == text


@pytest.mark.parametrize(
  'text', ['zażółć gęślą jaźń', '日本語 🙂', '{"error": "no ticker named \'NOPE\'"}', '  two  spaces\n\n']
)
def test_text_from_outside_the_world_comes_back_too(tokenizer, text):
  assert tokenizer.decode(tokenizer(text)['input_ids']) == text


def test_a_name_and_a_number_are_one_token_each(tokenizer):
  for piece in (*TICKERS, *CURRENCIES, *COMPANIES, *map(str, VALUES)):
    assert len(tokenizer(piece)['input_ids']) == 1, piece


def test_prompt_is_short_and_a_dialogue_fits_112_tokens(tokenizer):
  for index in range(300):
    task = make_task(9, 'train', index)
    prompt = rendered(tokenizer, task.messages, add_generation_prompt=True)
    assert len(tokenizer(prompt)['input_ids']) <= 24
    whole = rendered(tokenizer, demonstrate(task, efficient=False))
    assert whole.startswith(prompt)
    assert len(tokenizer(whole)['input_ids']) <= 112


def test_a_parallel_step_is_rendered_as_qwen_does(tokenizer):
  task = make_task(0, 'train', 0, kind='two')
  text = rendered(tokenizer, demonstrate(task, efficient=True))
  first, second = (dict(call.arguments) for call in task.gold[0])
  assert f'</tool_call>\n<tool_call>\n{{"name": "{task.gold[0][1].name}", "arguments": {{"' in text
  assert text.count('<|im_start|>user\n') == 2  # the question, and both results in one turn
  assert '</tool_response>\n<tool_response>\n' in text
  assert text.startswith('<|im_start|>system\ntools: find_ticker(company) get_price(ticker)')
  assert all(value in text for value in (*first.values(), *second.values()))
  assert text.endswith(f'<|im_start|>assistant\n{task.answer}<|im_end|>\n')


def test_template_without_tools_has_no_system_turn(tokenizer):
  text = tokenizer.apply_chat_template(
    [{'role': 'user', 'content': 'hello'}], tokenize=False, add_generation_prompt=True
  )
  assert text == '<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n'


def test_system_message_stands_before_the_tools(tokenizer):
  messages = [{'role': 'system', 'content': 'be brief'}, {'role': 'user', 'content': 'hello'}]
  text = tokenizer.apply_chat_template(messages, tools=schemas(TOOLS[-1:]), tokenize=False)
  assert text == '<|im_start|>system\nbe brief\ntools: market_status()<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n'


def test_saved_folder_opens_as_the_same_tokenizer(tokenizer, tmp_path):
  tokenizer.save_pretrained(tmp_path)
  again = AutoTokenizer.from_pretrained(tmp_path)
  text = rendered(tokenizer, demonstrate(make_task(9, 'train', 1)))
  assert again(text)['input_ids'] == tokenizer(text)['input_ids']
  assert again.chat_template == tokenizer.chat_template
  assert (again.eos_token, again.pad_token) == ('<|im_end|>', '<|endoftext|>')


def test_training_twice_gives_the_same_vocabulary(tokenizer):
  assert make_tokenizer(tasks()).get_vocab() == tokenizer.get_vocab()
